"""WikiText-2 and Penn Treebank as tensorflow-datasets builders, without TensorFlow.

Both read three text files from a folder that the user gives (`manual_dir`) and keep one
record per line, the line end included, so that the records joined are the file.
Prepared data lies as array_record in a cache, in a folder named after the contents of
the files: another copy of the text never meets stale records.
"""

import hashlib
import os
import pathlib
import re

import tensorflow_datasets as tfds

SPLITS = ("train", "valid", "test")
# An article of WikiText; its sections have two equal signs or more.
_TITLE = re.compile(r"= [^=].*[^=] =|= [^=] =")


class _LinesBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """One record per line of `<split>` files in a folder of the user."""

    VERSION = tfds.core.Version("1.0.0")
    # TFDS looks beside the code for checksums of downloads, with a package that it
    # does not install; nothing is downloaded here.
    code_path = None
    DESCRIPTION = ""
    # Names under which a split's file is looked for, in this order.
    PATTERNS: tuple[str, ...] = ()
    # Folders inside the given one that are looked into as well.
    FOLDERS: tuple[str, ...] = ()

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.DESCRIPTION,
            features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager):
        files = self.find_files(dl_manager.manual_dir)
        return {split: self._generate_examples(path) for split, path in files.items()}

    def _generate_examples(self, path: pathlib.Path):
        with path.open("rb") as file:
            for number, line in enumerate(file):
                yield number, {"text": line}

    @classmethod
    def find_files(cls, folder: str | os.PathLike) -> dict[str, pathlib.Path]:
        """The file of every split.

        Raises:
          ValueError: one is missing or is not UTF-8; the message says which, and
            where to get it.
        """
        folder = pathlib.Path(folder).expanduser()
        if not folder.is_dir():
            raise ValueError(
                f"`data_dir` should be a folder with the text files, but {folder} is "
                f"not one. {cls.MANUAL_DOWNLOAD_INSTRUCTIONS}"
            )
        folders = [folder, *(folder / name for name in cls.FOLDERS)]
        found = {}
        for split in SPLITS:
            names = [pattern.format(split) for pattern in cls.PATTERNS]
            paths = [place / name for place in folders for name in names]
            path = next((path for path in paths if path.is_file()), None)
            if path is None:
                raise ValueError(
                    f"`data_dir` should have the {split} text as {' or '.join(names)}, "
                    f"but {folder} has no such file. {cls.MANUAL_DOWNLOAD_INSTRUCTIONS}"
                )
            try:
                if not path.read_text(encoding="utf-8").strip():
                    raise ValueError(f"{path} should have text in it, but is empty.")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path} should be UTF-8 text, but {error}.") from None
            found[split] = path
        return found


class Wikitext2(_LinesBuilder, skip_registration=True):
    """WikiText-2 (Merity et al., 2016), word-tokenised or raw."""

    DESCRIPTION = "WikiText-2: verified good and featured articles, one line a record."
    PATTERNS = ("{}.txt", "wiki.{}.tokens", "wiki.{}.raw", "wikitext-2.{}.txt")
    FOLDERS = ("wikitext-2", "wikitext2", "wikitext-2-raw")
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "WikiText-2 needs train.txt, valid.txt and test.txt (or wiki.train.tokens and "
        "so on, as in the original archives); the text is on the Hugging Face hub as "
        "Salesforce/wikitext, configurations wikitext-2-v1 and wikitext-2-raw-v1."
    )


class PennTreebank(_LinesBuilder, skip_registration=True):
    """Penn Treebank as prepared for language modeling (Mikolov et al., 2010)."""

    DESCRIPTION = "Penn Treebank, Wall Street Journal, one sentence a record."
    PATTERNS = ("ptb.{}.txt",)
    FOLDERS = ("ptb", "penn-treebank")
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "Penn Treebank needs ptb.train.txt, ptb.valid.txt and ptb.test.txt: one "
        "sentence a line, rare words as <unk>, numbers as N. The text is licensed by "
        "the LDC, https://catalog.ldc.upenn.edu/LDC99T42."
    )


BUILDERS = {"wikitext2": Wikitext2, "ptb": PennTreebank}


def load_lines(
    dataset: str,
    data_dir: str | os.PathLike,
    *,
    cache_dir: str | os.PathLike | None = None,
) -> dict[str, list[str]]:
    """The lines of every split, prepared on the first call.

    Args:
      dataset: "wikitext2" or "ptb".
      data_dir: the folder with the text files.
      cache_dir: where prepared data lies; `$XDG_CACHE_HOME/stackformer` or
        `~/.cache/stackformer` where None.

    Returns:
      {"train": lines, "valid": lines, "test": lines}, each line with its end.
    """
    if dataset not in BUILDERS:
        raise ValueError(
            f"`dataset` should be one of {tuple(BUILDERS)}, but got {dataset!r}."
        )
    files = BUILDERS[dataset].find_files(data_dir)
    builder = BUILDERS[dataset](
        data_dir=str(_cache(cache_dir) / fingerprint(files)),
        file_format="array_record",
    )
    config = tfds.download.DownloadConfig(
        manual_dir=str(pathlib.Path(data_dir).expanduser()), try_download_gcs=False
    )
    builder.download_and_prepare(download_config=config)
    lines = {}
    for split in SPLITS:
        source = builder.as_data_source(split=split)
        records = source.__getitems__(range(len(source)))
        lines[split] = [record["text"].decode("utf-8") for record in records]
    return lines


def documents(dataset: str, lines: list[str]) -> list[list[str]]:
    """The lines of a split, grouped into texts that belong together.

    Of WikiText-2 the articles, which begin with a line " = Title = "; of Penn Treebank
    the sentences, as it has no other marks.

    Example:
      >>> documents("wikitext2", [" = A = ", " text ", " = = Part = = ", " = B = "])
      [[' = A = ', ' text ', ' = = Part = = '], [' = B = ']]
    """
    if dataset == "ptb":
        return [[line] for line in lines]
    texts: list[list[str]] = []
    for line in lines:
        if not texts or _TITLE.fullmatch(line.strip()):
            texts.append([])
        texts[-1].append(line)
    return texts


def fingerprint(files: dict[str, pathlib.Path]) -> str:
    """A name for the contents of some files: 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for split, path in sorted(files.items()):
        digest.update(split.encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _cache(folder: str | os.PathLike | None) -> pathlib.Path:
    if folder is not None:
        return pathlib.Path(folder).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(base).expanduser() / "stackformer" / "tfds"
