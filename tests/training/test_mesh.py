"""Meshes: the same losses on one device, on eight, and in two processes."""

import json
import socket

import jax
import numpy as np
import pytest
from toy_process import finish, start, toy

from stackformer.training import Placement, UserError, parse_mesh

# Wide enough that the axis `params` splits the arrays.
WIDE = ("--seeds=0,1", "--hidden=4096")


def losses(out) -> list:
    return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").open()]


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    out = tmp_path_factory.mktemp("one")
    toy(out, *WIDE, "--steps=20")
    return out


def test_eight_devices_give_the_losses_of_one(one_device, tmp_path):
    for mesh in ("data:8", "seeds:2,data:2,params:2"):
        out = tmp_path / mesh.replace(":", "")
        toy(out, *WIDE, "--steps=20", f"--mesh={mesh}", devices=8)
        np.testing.assert_allclose(losses(out), losses(one_device), rtol=2e-5)


def test_two_processes_give_the_losses_of_one(one_device, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = (
        *WIDE,
        "--steps=20",
        "--mesh=data:2",
        f"--coordinator=127.0.0.1:{port}",
    )
    processes = [start(tmp_path, *flags, f"--process_id={i}") for i in range(2)]
    for process in processes:
        assert "finished 20" in finish(process)
    np.testing.assert_allclose(losses(tmp_path), losses(one_device), rtol=2e-5)
    assert len(losses(tmp_path)) == 4  # one process writes, not both
    # A checkpoint of two processes goes on in one.
    assert "finished 30" in toy(tmp_path, *WIDE, "--steps=30")


def test_parse_mesh():
    assert parse_mesh("data:4", 8, 32) == {"seeds": 1, "data": 4, "params": 1}
    assert parse_mesh(None, 8, 32)["data"] == 8
    assert parse_mesh(None, 8, 12)["data"] == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("date:4", "axes seeds, data, params"),
        ("data", "AXIS:SIZE"),
        ("data:0", "AXIS:SIZE"),
        ("data:16", "at most the 8 devices .* needs 16 devices"),
        ("data:5", "`batch_size` 32 is not divisible by 5"),
    ],
)
def test_bad_meshes_are_explained(text, message):
    with pytest.raises(UserError, match=message):
        parse_mesh(text, 8, 32)


def test_seeds_must_fit_the_axis():
    devices = jax.devices() * 2
    placement = Placement.create({"seeds": 2}, devices=devices)
    with pytest.raises(UserError, match=r"split the 3 seeds .* but got seeds:2"):
        placement.check_seeds(3)


def test_large_arrays_are_split_and_small_ones_copied():
    placement = Placement.create({"params": 4}, devices=jax.devices() * 4)

    def spec(*shape):
        leaf = jax.ShapeDtypeStruct(shape, np.float32)
        return tuple(placement.per_seed(leaf).spec)

    assert spec(1, 256, 1024) == ("seeds", None, "params")
    assert spec(1, 1024, 255) == ("seeds", "params", None)
    assert spec(1, 255, 1023) == ("seeds", None, None)  # nothing divides
    assert spec(1, 8, 8) == ("seeds", None, None)  # too small to be worth it
