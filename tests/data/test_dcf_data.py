"""Frozen test sets: written, read back bit for bit, and checked."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from stackformer import tasks
from stackformer.data import dcf

FIELDS = ("inputs", "outputs", "output_mask", "length")


def small(name):
    """A data set of few strings, under another name than the frozen one."""
    return dcf.DcfConfig(
        name=f"small_{name}",
        task=tasks.get(name),
        ranges=((1, 3), (4, 6)),
        strings_per_length=8,
    )


def drawn(task, ranges, count):
    """What was drawn before it was written, in arrays of just the length."""
    samples = {}
    for first, last in ranges:
        for n, sample in dcf.draw(task, range(first, last + 1), count):
            m = task.output_length(n)
            samples[n] = tasks.Sample(
                np.asarray(sample.inputs)[:, :n],
                np.asarray(sample.outputs)[:, :m],
                np.asarray(sample.output_mask)[:, :m],
                np.asarray(sample.length),
            )
    return samples


@pytest.mark.parametrize("name", ["SM", "modular_arithmetic", "binary_multiplication"])
def test_reading_back_gives_the_same_strings(name, tmp_path):
    config = small(name)
    dataset = dcf.builder(name, tmp_path, config)
    written = []
    dataset.on_written = written.append
    path = dcf.export(dataset)
    assert path.is_relative_to(tmp_path)
    assert sum(written) == config.num_strings == 48
    assert {file.suffix for file in path.iterdir() if "lengths" in file.name} == {
        ".array_record-00000-of-00001"
    }

    read = dcf.read(dcf.builder(name, tmp_path, config))
    expected = drawn(config.task, config.ranges, config.strings_per_length)
    assert list(read) == [1, 2, 3, 4, 5, 6]
    for length, sample in read.items():
        for field in FIELDS:
            a, b = getattr(sample, field), getattr(expected[length], field)
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    assert dcf.checksum(read) == dcf.checksum(expected)


def test_records_are_readable(tmp_path):
    dataset = dcf.builder("SE", tmp_path, small("SE"))
    dcf.export(dataset)
    source = dataset.as_data_source(split="lengths_4_6")
    record = source[8]
    assert len(source) == 24 and record["length"] == 5
    text, answer = record["input"].decode(), record["output"].decode()
    assert tasks.get("SE").answer(text) == answer
    metadata = dataset.info.metadata
    assert metadata["seed"] == dcf.Dcf.SEED
    assert metadata["input_symbols"] == list(tasks.get("SE").input_symbols)


def test_another_tasks_records_are_refused(tmp_path):
    dcf.export(dcf.builder("RS", tmp_path, small("RS")))
    config = small("RS")
    config.task = tasks.get("SM")
    with pytest.raises(ValueError, match="but got another task"):
        dcf.read(dcf.builder("SM", tmp_path, config))


def test_every_task_has_a_config_and_a_checksum():
    assert set(dcf.Dcf.builder_configs) == set(dcf.CHECKSUMS)
    assert len(dcf.CHECKSUMS) >= 15
    config = dcf.Dcf.builder_configs["solve_equation"]
    assert config.num_strings == 51_200
    assert [dcf.split_name(*r) for r in config.ranges] == [
        "lengths_1_40",
        "lengths_41_100",
    ]


@pytest.mark.parametrize("name", ["modular_arithmetic_brackets", "binary_addition"])
def test_the_strings_are_the_frozen_ones(name):
    samples = drawn(tasks.get(name), dcf.LENGTH_RANGES, dcf.STRINGS_PER_LENGTH)
    assert dcf.checksum(samples) == dcf.CHECKSUMS[name]


def test_checksum_sees_one_changed_symbol():
    samples = drawn(tasks.get("RS"), ((3, 3),), 4)
    before = dcf.checksum(samples)
    changed = np.array(samples[3].inputs)
    changed[0, 0] ^= 1
    samples[3] = dataclasses.replace(samples[3], inputs=changed)
    assert dcf.checksum(samples) != before


def test_a_missing_set_says_how_to_write_it(tmp_path):
    with pytest.raises(ValueError, match=r"no frozen test set.*--task=reverse_string"):
        dcf.load_test_set(tmp_path, "RS")
    with pytest.raises(ValueError, match="default options"):
        dcf.load_test_set(tmp_path, tasks.get("MA", modulus=7))


def test_neither_tensorflow_nor_tfds_is_imported_without_need():
    program = (
        "import sys, stackformer.tasks, stackformer.data\n"
        "assert 'tensorflow_datasets' not in sys.modules\n"
        "import stackformer.data.dcf\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(dcf.CHECKSUMS))
def test_whole_frozen_set(name, tmp_path):
    dcf.export(dcf.builder(name, tmp_path))
    samples = dcf.load_test_set(tmp_path, name)
    assert list(samples) == list(range(1, 101))
    assert samples[100].inputs.shape == (512, 100)
    assert dcf.checksum(samples) == dcf.CHECKSUMS[name]
