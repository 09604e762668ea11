"""Runs that are killed and started again end like runs that were not."""

import random
import signal
import time

import numpy as np
import pytest
from toy_process import finish, start, toy

from stackformer.training.records import read_lines

# Every block is followed by a checkpoint, and a pause leaves time to aim.
FLAGS = ("--seeds=0,1", "--steps=100", "--checkpoint_every=5")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never killed, and a cache of its compiled programs."""
    out = tmp_path_factory.mktemp("whole")
    cache = tmp_path_factory.mktemp("cache")
    toy(out, *FLAGS, cache=cache)
    return out, cache


def steps_done(out) -> int:
    lines = read_lines(out / "metrics.jsonl")
    return lines[-1]["step"] if lines else 0


def wait_until(condition, process, seconds=120) -> bool:
    """Polls; False when the process has ended before."""
    end = time.time() + seconds
    while time.time() < end:
        if condition():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    raise TimeoutError


def kill_at_step(out, cache, step, delay=0.0) -> None:
    process = start(out, *FLAGS, "--pause=0.05", cache=cache)
    assert wait_until(lambda: steps_done(out) >= step, process)
    time.sleep(delay)
    process.kill()
    process.wait()


def kill_during_a_save(out, cache, after: int) -> None:
    def saving() -> bool:
        names = [p.name for p in (out / "checkpoints").glob("*tmp*")]
        return steps_done(out) >= after and bool(names)

    process = start(out, *FLAGS, "--pause=0.05", cache=cache)
    assert wait_until(saving, process)
    process.kill()
    process.wait()


def assert_same(out, whole) -> None:
    a, b = np.load(out / "final.npz"), np.load(whole / "final.npz")
    for name in b.files:
        np.testing.assert_array_equal(a[name], b[name])
    metrics = (whole / "metrics.jsonl").read_bytes()
    assert (out / "metrics.jsonl").read_bytes() == metrics


def test_sigkill_also_during_a_save(whole, tmp_path):
    reference, cache = whole
    kill_during_a_save(tmp_path, cache, after=20)
    kill_at_step(tmp_path, cache, 60, delay=random.random() * 0.1)
    assert "finished 100" in toy(tmp_path, *FLAGS, cache=cache)
    assert_same(tmp_path, reference)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_sigkill_many_times_at_random_moments(whole, tmp_path, seed):
    reference, cache = whole
    rng = random.Random(seed)
    for step in (1, 15, 40, 70):
        kill_at_step(tmp_path, cache, step, delay=rng.random() * 0.3)
        kill_during_a_save(tmp_path, cache, after=step + 5)
    process = start(tmp_path, *FLAGS, cache=cache)
    time.sleep(rng.random() * 8)  # anywhere: while importing, compiling or restoring
    process.kill()
    process.wait()
    assert "finished 100" in toy(tmp_path, *FLAGS, cache=cache)
    assert_same(tmp_path, reference)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_stop_saves_and_goes_on(whole, tmp_path, number):
    reference, cache = whole
    process = start(tmp_path, *FLAGS, "--pause=0.05", cache=cache)
    assert wait_until(lambda: steps_done(tmp_path) >= 10, process)
    process.send_signal(number)
    output = finish(process)
    assert "interrupted" in output
    step = int(output.split()[-1])
    assert 10 <= step < 100
    assert (tmp_path / "checkpoints" / str(step)).is_dir()
    assert "finished 100" in toy(tmp_path, *FLAGS, cache=cache)
    assert_same(tmp_path, reference)
