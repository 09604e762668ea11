"""Checkpoints: the one place that talks to orbax.

A checkpoint is a flat dict of arrays, one for every leaf of the state, and a checksum
for each. Orbax writes it in the background into a temporary folder and renames the
folder when it is whole, so a checkpoint exists completely or not at all. The checksum
finds what renaming cannot: files that were damaged later.
"""

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

PyTree = Any


def _flatten(state: PyTree) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): x for path, x in leaves
    }


def _checksum(leaf: jax.Array) -> jax.Array:
    """Sum of words times odd weights, modulo 2**32: no single changed word escapes.

    Integers, so the result does not depend on how the array is split over devices.
    """
    if leaf.dtype == jnp.bool_:
        leaf = leaf.astype(jnp.uint8)
    words = jax.lax.bitcast_convert_type(
        leaf, jnp.dtype(f"uint{8 * min(4, leaf.dtype.itemsize)}")
    ).astype(jnp.uint32)
    weight = jnp.ones(words.shape, jnp.uint32)
    stride = 2
    for axis in reversed(range(words.ndim)):
        index = jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
        weight += index * jnp.uint32(stride % 2**32)
        stride *= words.shape[axis]
    return jnp.sum(words * weight, dtype=jnp.uint32)


@jax.jit
def _checksums(flat: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: _checksum(leaf) for name, leaf in flat.items()}


@jax.jit
def _copy(flat: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: jnp.copy(leaf) for name, leaf in flat.items()}


class Checkpoints:
    """The checkpoints of one run, newest few kept.

    Args:
      directory: the folder, made when the first checkpoint is saved.
      keep: how many of the newest checkpoints stay.
      read_only: neither creates nor cleans the folder.
    """

    def __init__(
        self, directory: Path | str, *, keep: int = 3, read_only: bool = False
    ):
        self.directory = Path(directory).absolute()
        self._read_only = read_only
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None if read_only else keep,
            create=not read_only,
            read_only=read_only,
            cleanup_tmp_directories=not read_only,
            enable_async_checkpointing=not read_only,
        )
        self._manager = ocp.CheckpointManager(self.directory, options=options)

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, oldest first."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: PyTree) -> None:
        """Starts to save in the background; waits for an earlier save first."""
        if step in self._manager.all_steps():
            return
        flat = _flatten(state)
        if jax.default_backend() == "cpu":
            # On a CPU orbax may read the very buffers that the next step overwrites.
            flat = _copy(flat)
        tree = {"arrays": flat, "checksums": _checksums(flat)}
        self._manager.save(step, args=ocp.args.StandardSave(tree))

    def wait(self) -> None:
        """Returns when nothing is being written any more."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()

    def restore(self, abstract: PyTree) -> PyTree | None:
        """The newest whole checkpoint, or None where there is none.

        A damaged one is named in a warning, moved aside into the folder
        `damaged_checkpoints` beside this one (unless read-only), and the one before
        is tried.
        """
        for step in reversed(self.steps()):
            try:
                return self._restore(step, abstract)
            except Exception as error:  # orbax raises many types on damaged files
                reason = str(error).strip().splitlines() or [type(error).__name__]
                warnings.warn(
                    f"checkpoint {self.directory / str(step)} is damaged and is "
                    f"skipped ({reason[0][:300]})",
                    stacklevel=2,
                )
                self._set_aside(step)
        return None

    def _restore(self, step: int, abstract: PyTree) -> PyTree:
        flat = _flatten(abstract)
        leaf = next(iter(flat.values()))
        replicated = jax.sharding.NamedSharding(
            leaf.sharding.mesh, jax.sharding.PartitionSpec()
        )
        word = jax.ShapeDtypeStruct((), jnp.uint32, sharding=replicated)
        target = {"arrays": flat, "checksums": dict.fromkeys(flat, word)}
        tree = self._manager.restore(step, args=ocp.args.StandardRestore(target))
        arrays, expected = tree["arrays"], tree["checksums"]
        for name, value in _checksums(arrays).items():
            if np.asarray(value) != np.asarray(expected[name]):
                raise ValueError(f"checksum of {name} does not match its contents")
        return jax.tree.unflatten(
            jax.tree.structure(abstract), [arrays[name] for name in flat]
        )

    def _set_aside(self, step: int) -> None:
        if self._read_only:
            return
        if jax.process_index() == 0:
            aside = self.directory.parent / "damaged_checkpoints"
            aside.mkdir(exist_ok=True)
            target = aside / f"{step}-{len(os.listdir(aside))}"
            shutil.move(self.directory / str(step), target)
        self._manager.reload()
