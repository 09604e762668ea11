"""The builders: both formats, what is missing, what is cached."""

import pathlib
import subprocess
import sys

import pytest

from stackformer.data.text import BUILDERS, load_lines

SPLITS = ("train", "valid", "test")
TEXTS = {
    "wikitext2": " \n = Robert <unk> = \n \n Robert <unk> is an actor . \n",
    "ptb": " mr. <unk> joined the board N years ago \n he is N years old \n",
}
NAMES = {"wikitext2": "{}.txt", "ptb": "ptb.{}.txt"}


def write_dataset(dataset: str, folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        text = f" {split} in München \n" + TEXTS[dataset]
        (folder / NAMES[dataset].format(split)).write_bytes(text.encode())


@pytest.mark.parametrize("dataset", list(TEXTS))
def test_the_lines_joined_are_the_files(dataset, tmp_path):
    write_dataset(dataset, tmp_path / "text")
    lines = load_lines(dataset, tmp_path / "text", cache_dir=tmp_path / "cache")
    for split in SPLITS:
        assert lines[split][0] == f" {split} in München \n"
        assert "".join(lines[split][1:]) == TEXTS[dataset]
    records = list((tmp_path / "cache").rglob("*train.array_record*"))
    assert len(records) == 1
    written = records[0].stat().st_mtime_ns
    again = load_lines(dataset, tmp_path / "text", cache_dir=tmp_path / "cache")
    assert again == lines
    assert records[0].stat().st_mtime_ns == written


def test_changed_files_are_read_anew(tmp_path):
    write_dataset("ptb", tmp_path)
    load_lines("ptb", tmp_path, cache_dir=tmp_path / "cache")
    (tmp_path / "ptb.test.txt").write_text("something else\n")
    lines = load_lines("ptb", tmp_path, cache_dir=tmp_path / "cache")
    assert lines["test"] == ["something else\n"]


def test_the_original_names_and_a_folder_above_are_found(tmp_path):
    write_dataset("wikitext2", tmp_path / "wikitext-2")
    for split in SPLITS:
        path = tmp_path / "wikitext-2" / f"{split}.txt"
        path.rename(path.with_name(f"wiki.{split}.tokens"))
    files = BUILDERS["wikitext2"].find_files(tmp_path)
    assert files["valid"] == tmp_path / "wikitext-2" / "wiki.valid.tokens"


def test_what_is_missing_is_named_with_where_to_get_it(tmp_path):
    write_dataset("ptb", tmp_path)
    (tmp_path / "ptb.valid.txt").unlink()
    with pytest.raises(ValueError, match=r"ptb\.valid\.txt.*LDC"):
        load_lines("ptb", tmp_path)
    with pytest.raises(ValueError, match=r"train\.txt or wiki\.train\.tokens.*hub"):
        load_lines("wikitext2", tmp_path)
    with pytest.raises(ValueError, match="not one"):
        load_lines("ptb", tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"'wikitext2', 'ptb'.*'c4'"):
        load_lines("c4", tmp_path)
    (tmp_path / "ptb.valid.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(ValueError, match=r"ptb\.valid\.txt should be UTF-8"):
        load_lines("ptb", tmp_path)


def test_tensorflow_is_not_needed(tmp_path):
    write_dataset("ptb", tmp_path)
    program = f"""
import sys
from stackformer.data.text import load_lines
load_lines("ptb", {str(tmp_path)!r}, cache_dir={str(tmp_path / "c")!r})
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
