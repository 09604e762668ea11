"""Checkpoints come back as they were, or not at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stackformer.training import Placement, UserError
from stackformer.training.checkpoints import Checkpoints, _checksum


def state(value: float) -> dict:
    sharding = Placement.create().replicated
    tree = {
        "a": np.full((3, 50), value, np.float32),
        "b": [np.arange(7, dtype=np.int32), np.float32(value)],
        "c": {1: np.ones((2, 2), jnp.bfloat16), 2: np.array([True, False])},
    }
    return jax.tree.map(lambda leaf: jax.device_put(leaf, sharding), tree)


def abstract() -> dict:
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state(0)
    )


@pytest.fixture
def saved(tmp_path):
    """Three checkpoints, at steps 1, 2 and 3, with those values."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=3)
    for step in (1, 2, 3):
        checkpoints.save(step, state(step))
    checkpoints.wait()
    checkpoints.close()
    return tmp_path / "checkpoints"


def restored(path, **options) -> dict | None:
    checkpoints = Checkpoints(path, **options)
    try:
        return checkpoints.restore(abstract())
    finally:
        checkpoints.close()


def test_newest_comes_back_and_few_are_kept(saved):
    checkpoints = Checkpoints(saved, keep=2)
    assert checkpoints.steps() == [1, 2, 3]
    checkpoints.save(4, state(4))
    checkpoints.wait()
    assert checkpoints.steps() == [3, 4]
    back = checkpoints.restore(abstract())
    checkpoints.close()
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(state(4)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_nothing_saved_is_none(tmp_path):
    assert restored(tmp_path / "empty") is None


def data_files(checkpoint) -> list:
    """The files that hold the arrays, largest first."""
    files = [p for p in checkpoint.rglob("*") if p.is_file() and p.stat().st_size]
    return sorted(files, key=lambda p: p.stat().st_size, reverse=True)


def damage_truncate(checkpoint) -> None:
    for file in data_files(checkpoint):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def damage_flip(checkpoint) -> None:
    for file in data_files(checkpoint):
        if "/d/" in str(file):
            content = np.frombuffer(file.read_bytes(), np.uint8).copy()
            content[len(content) // 3 :: 7] ^= 0x10
            file.write_bytes(content.tobytes())


def damage_empty(checkpoint) -> None:
    for file in data_files(checkpoint):
        file.unlink()


@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, damage_empty])
def test_a_damaged_one_is_skipped_with_a_warning(saved, damage):
    damage(saved / "3")
    with pytest.warns(UserWarning, match="checkpoints/3 is damaged"):
        back = restored(saved)
    assert float(back["b"][1]) == 2
    # It is set aside, so that step 3 can be saved again.
    assert not (saved / "3").exists()
    assert len(list((saved.parent / "damaged_checkpoints").iterdir())) == 1


@pytest.mark.parametrize("read_only", [False, True])
def test_a_whole_one_of_another_structure_is_named_and_stays(saved, read_only):
    other = abstract()
    other["renamed"] = other.pop("a")
    leaf = other["b"][0]
    other["b"][0] = jax.ShapeDtypeStruct((9,), leaf.dtype, sharding=leaf.sharding)
    before = sorted(saved.parent.rglob("*"))
    checkpoints = Checkpoints(saved, read_only=read_only)
    with pytest.raises(UserError) as error:
        checkpoints.restore(other)
    checkpoints.close()
    message = str(error.value)
    assert "checkpoints/3 is of another model" in message and "\n" not in message
    assert "a float32[3, 50] is not in the model" in message
    assert "renamed float32[3, 50] is not in the checkpoint" in message
    assert "b.0 is int32[7] in the checkpoint, not int32[9]" in message
    assert sorted(saved.parent.rglob("*")) == before


def test_nothing_is_printed_or_warned(saved, recwarn, caplog, capfd):
    assert restored(saved, read_only=True) is not None
    assert not recwarn.list and not caplog.records
    assert capfd.readouterr() == ("", "")


def test_read_only_changes_nothing(saved):
    damage_truncate(saved / "3")
    before = sorted(saved.parent.rglob("*"))
    with pytest.warns(UserWarning, match="damaged"):
        back = restored(saved, read_only=True)
    assert float(back["b"][1]) == 2
    assert sorted(saved.parent.rglob("*")) == before


def test_checksum_sees_every_changed_bit():
    values = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    right = int(_checksum(jnp.asarray(values)))
    for position in range(values.size):
        for bit in (0, 7, 23, 31):
            words = values.copy().view(np.uint32)
            words.flat[position] ^= np.uint32(1 << bit)
            assert int(_checksum(jnp.asarray(words.view(np.float32)))) != right
    swapped = values[:, ::-1].copy()
    assert int(_checksum(jnp.asarray(swapped))) != right
