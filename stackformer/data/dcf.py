"""Frozen test sets of the formal-language tasks, as a tensorflow-datasets builder.

Two people who compare models should compare on the same strings. `Dcf` has one config
per task, one split per range of lengths and 512 strings of every length; the strings
are a function of the task's name, the length and `Dcf.SEED` alone, and `CHECKSUMS` says
what they are. Files are array_record; TensorFlow is not needed. A record is readable:

    {"length": 9, "input": "((1+2)*3)", "output": "4"}

where the output goes up to the last position that counts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import numpy as np
import tensorflow_datasets as tfds

from stackformer import tasks
from stackformer.tasks.sampling import FROZEN_SEED, FROZEN_STRINGS, frozen_key

STRINGS_PER_LENGTH = FROZEN_STRINGS
# The paper trains on the lengths 1..40 and tests on 41..100.
LENGTH_RANGES: tuple[tuple[int, int], ...] = ((1, 40), (41, 100))
# `checksum` of the strings of all lengths, version 1.0.0.
CHECKSUMS: dict[str, str] = {
    "reverse_string": "a65839d7d12a1d0e",
    "stack_manipulation": "6479279b3a0509ed",
    "modular_arithmetic_brackets": "aa8fba8594417491",
    "solve_equation": "4d7677b59f3758ac",
    "even_pairs": "d91cb685896c1e2a",
    "modular_arithmetic": "14c8f48cab477ac1",
    "parity_check": "5071131528d5bce0",
    "cycle_navigation": "6d2dfbc57d153e8e",
    "duplicate_string": "051a3ce83dff8944",
    "missing_duplicate_string": "ff8ff0f43ed1b07a",
    "odds_first": "ecdfb2b975159f66",
    "binary_addition": "f2ac15c5522e5692",
    "binary_multiplication": "acf15935c4f775b3",
    "compute_sqrt": "f336a883a3291230",
    "bucket_sort": "7112b6a8c1dd5166",
}


@dataclasses.dataclass(eq=False, kw_only=True)
class DcfConfig(tfds.core.BuilderConfig):
    """Which strings a data set has.

    Attributes:
        task: the task.
        ranges: first and last length of every split.
        strings_per_length: number of strings of each length.
    """

    task: tasks.Task
    ranges: tuple[tuple[int, int], ...] = LENGTH_RANGES
    strings_per_length: int = STRINGS_PER_LENGTH

    @property
    def num_strings(self) -> int:
        """Number of strings in all splits."""
        lengths = sum(last - first + 1 for first, last in self.ranges)
        return lengths * self.strings_per_length


def _config(task: tasks.Task) -> DcfConfig:
    return DcfConfig(
        name=task.name, task=task, description=f"Strings of the task {task.name}."
    )


class Dcf(tfds.core.GeneratorBasedBuilder):
    """Strings of a task with their answers; `tfds.builder("dcf/reverse_string")`."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First release."}
    SEED: int = FROZEN_SEED
    BUILDER_CONFIGS: ClassVar[list[DcfConfig]] = [
        _config(tasks.get(name)) for name in tasks.names()
    ]
    # TFDS looks beside the code for checksums of downloads, with a package that it
    # does not install; nothing is downloaded here.
    code_path = None
    # Called with a number of strings after they are handed to the writer.
    on_written: Callable[[int], object] | None = None

    @property
    def builder_config(self) -> DcfConfig:
        """Which strings the data set has."""
        config = super().builder_config
        assert isinstance(config, DcfConfig)
        return config

    def _info(self) -> tfds.core.DatasetInfo:
        task = self.builder_config.task
        features = {
            "length": tfds.features.Scalar(dtype=np.int32),
            "input": tfds.features.Text(),
            "output": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description=f"Frozen strings of the task {task.name} with their answers.",
            features=tfds.features.FeaturesDict(features),
            metadata=tfds.core.MetadataDict(_metadata(task)),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict:
        return {
            split_name(first, last): self._generate_examples(first, last)
            for first, last in self.builder_config.ranges
        }

    def _generate_examples(self, first: int, last: int) -> Iterator[tuple[int, dict]]:
        task, count = self.builder_config.task, self.builder_config.strings_per_length
        number = 0
        for length, sample in draw(task, range(first, last + 1), count):
            for x, y in task.decode_sample(sample):
                yield number, {"length": length, "input": x, "output": y}
                number += 1
            if self.on_written is not None:
                self.on_written(count)


def split_name(first: int, last: int) -> str:
    """The name of the split with the lengths first..last.

    >>> split_name(41, 100)
    'lengths_41_100'
    """
    return f"lengths_{first}_{last}"


def draw(
    task: tasks.Task,
    lengths: Iterable[int],
    strings_per_length: int = STRINGS_PER_LENGTH,
) -> Iterator[tuple[int, tasks.Sample]]:
    """The frozen strings, drawn anew: pairs of a length and its sample."""
    lengths = list(lengths)
    for length in lengths:
        key = frozen_key(task.name, length)
        yield length, task.sample(key, strings_per_length, length, max(lengths))


def builder(
    task: str | tasks.Task, data_dir: str | os.PathLike, config: DcfConfig | None = None
) -> Dcf:
    """The builder of a task's frozen set; `config` for another set of strings."""
    task = tasks.get(task) if isinstance(task, str) else task
    known = Dcf.builder_configs.get(task.name)
    assert known is None or isinstance(known, DcfConfig)
    if (
        config is None
        and known is not None
        and _metadata(known.task) != _metadata(task)
    ):
        raise ValueError(
            f"the frozen set of {task.name} is of the task with its default options; "
            "give a DcfConfig of another name for this one"
        )
    return Dcf(
        data_dir=os.fspath(pathlib.Path(data_dir).expanduser()),
        config=config or known or _config(task),
        file_format="array_record",
    )


def export(dataset: Dcf) -> pathlib.Path:
    """Write a data set, check it, and return its folder; one that is there is kept.

    Raises:
        ValueError: the strings are not the frozen ones.
    """
    download = tfds.download.DownloadConfig(try_download_gcs=False)
    dataset.download_and_prepare(download_config=download)
    read(dataset)
    return pathlib.Path(dataset.data_dir)


def load_test_set(
    data_dir: str | os.PathLike, task: str | tasks.Task
) -> dict[int, tasks.Sample]:
    """Read the frozen set of a task.

    Args:
        data_dir: the folder given to `python -m experiments.tasks --export`.
        task: a task or its name.

    Returns:
        Samples of NumPy arrays by length 1..100, each with 512 strings, in arrays
        of just their length: inputs (512, length).

    Raises:
        ValueError: the folder has no such set, or not the frozen strings.
    """
    dataset = builder(task, data_dir)
    name = dataset.builder_config.name
    if not dataset.is_prepared():
        raise ValueError(
            f"{data_dir} has no frozen test set of {name} (version {Dcf.VERSION}); "
            f"write it with: python -m experiments.tasks --task={name} "
            f"--export={data_dir}"
        )
    return read(dataset)


def read(dataset: Dcf) -> dict[int, tasks.Sample]:
    """The samples of a prepared data set by length; see `load_test_set`."""
    task = dataset.builder_config.task
    metadata = dataset.info.metadata
    assert isinstance(metadata, tfds.core.MetadataDict)  # of `Dcf._info`
    written = dict(metadata)
    if written != _metadata(task):
        raise ValueError(
            f"{dataset.data_dir} should be of {_metadata(task)}, but got another "
            f"task, {written}"
        )
    pairs: dict[int, list[tuple[str, str]]] = {}
    for split in dataset.info.splits:
        # TFDS's logging decorator hides the parameters.
        source = dataset.as_data_source(split=split)  # pyright: ignore[reportCallIssue]
        for record in source.__getitems__(range(len(source))):
            pair = record["input"].decode(), record["output"].decode()
            pairs.setdefault(int(record["length"]), []).append(pair)
    samples = {n: _sample(task, n, pairs[n]) for n in sorted(pairs)}
    config = dataset.builder_config
    standard = (config.ranges, config.strings_per_length)
    if standard == (LENGTH_RANGES, STRINGS_PER_LENGTH):
        expected, got = CHECKSUMS.get(config.name), checksum(samples)
        if expected not in (None, got):
            raise ValueError(
                f"{dataset.data_dir} should have the frozen strings of {config.name} "
                f"{Dcf.VERSION}, with checksum {expected}, but got {got}; if the "
                "files are whole, this version of JAX draws other numbers than 0.10"
            )
    return samples


def checksum(samples: dict[int, tasks.Sample]) -> str:
    """16 hexadecimal digits that stand for all strings and answers, bit for bit."""
    digest = hashlib.sha256()
    for _, sample in sorted(samples.items()):
        for array in (sample.inputs, sample.outputs, sample.output_mask):
            digest.update(np.asarray(array, "<i4").tobytes())
    return digest.hexdigest()[:16]


def _metadata(task: tasks.Task) -> dict:
    return {
        "task": task.name,
        "seed": Dcf.SEED,
        "input_symbols": list(task.input_symbols),
        "output_symbols": list(task.output_symbols),
    }


def _sample(
    task: tasks.Task, length: int, pairs: list[tuple[str, str]]
) -> tasks.Sample:
    """The sample that `task.decode_sample` made readable."""
    size = task.string_length(length)
    inputs = np.zeros((len(pairs), length), np.int32)
    outputs = np.zeros((len(pairs), task.output_length(length)), np.int32)
    mask = np.zeros(outputs.shape, bool)
    if tasks.END in task.output_symbols:
        end = task.output_symbols.index(tasks.END)
        outputs[:, : task.output_length(size)] = end
    for row, (x, y) in enumerate(pairs):
        answer = task.encode_output(y)
        inputs[row, :size] = task.encode(x)
        outputs[row, : answer.size] = answer
        mask[row, : answer.size] = True
    return tasks.Sample(inputs, outputs, mask, np.asarray(size, np.int32))
