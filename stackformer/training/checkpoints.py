"""Checkpoints: the one place that talks to orbax.

A checkpoint is a flat dict of arrays, one for every leaf of the state, and a checksum
for each. Orbax writes it in the background into a temporary folder and renames the
folder when it is whole, so a checkpoint exists completely or not at all. The checksum
finds what renaming cannot: files that were damaged later. Damaged is what cannot be
read; a whole checkpoint of another model is the user's to know about and stays.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from stackformer.training.errors import UserError

PyTree = Any
_MOST_DIFFERENCES = 5
_NOT_OF_THE_STATE = ("steps", "environment", "command")


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


def fingerprint(tree: PyTree) -> str:
    """16 hexadecimal digits that stand for the names and contents of all arrays.

    >>> fingerprint({"a": jnp.arange(3)}) == fingerprint({"a": jnp.arange(3)})
    True
    >>> fingerprint({"a": jnp.arange(3)}) == fingerprint({"a": jnp.arange(3) + 1})
    False
    """
    digest = hashlib.sha256()
    for name, value in sorted(_checksums(_flatten(tree)).items()):
        digest.update(f"{name}:{int(value)};".encode())
    return digest.hexdigest()[:16]


def stamp(
    config: dict[str, Any],
    step: int,
    params: PyTree,
    *,
    without: tuple[str, ...] = (),
) -> dict[str, Any]:
    """What a result belongs to: it is that of just this configuration and state.

    How long a run may still go on is no part of it, nor are the fields `without`, such
    as those that say how far it is measured.

    >>> stamp({"task": "RS", "steps": 5}, 5, {})["configuration"]
    '897980c71d25e4cd'
    """
    left_out = (*_NOT_OF_THE_STATE, *without)
    kept = {name: x for name, x in config.items() if name not in left_out}
    text = json.dumps(kept, sort_keys=True)
    return {
        "configuration": hashlib.sha256(text.encode()).hexdigest()[:16],
        "step": step,
        "parameters": fingerprint(params),
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Orbax explains its own choices through the logger of absl; nobody asked."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


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
        with _quiet():
            options = ocp.CheckpointManagerOptions(
                max_to_keep=None if read_only else keep,
                create=not read_only,
                read_only=read_only,
                cleanup_tmp_directories=not read_only,
                enable_async_checkpointing=not read_only,
            )
            self._manager = ocp.CheckpointManager(
                self.directory,
                options=options,
                item_handlers=ocp.StandardCheckpointHandler(),
            )

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
        with self._writing():
            self._manager.save(step, args=ocp.args.StandardSave(tree))

    def wait(self) -> None:
        """Returns when nothing is being written any more."""
        with self._writing():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits, and ends the threads; what is left of a failed save is no error."""
        with _quiet(), contextlib.suppress(OSError, UserError):
            self._manager.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Within, what keeps a checkpoint from the disk is the user's to mend."""
        try:
            with _quiet():
                yield
        except OSError as error:
            raise UserError(
                f"a checkpoint could not be written to {self.directory}: "
                f"{error.strerror or error}; older ones are whole: make room, then the "
                "same command goes on from them"
            ) from None
        except Exception as error:  # of the libraries below orbax
            if "No space" not in str(error) and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise UserError(
                f"a checkpoint could not be written to {self.directory}: no space "
                "left; older ones are whole: make room, then the same command goes on"
            ) from None

    def restore(self, abstract: PyTree) -> PyTree | None:
        """The newest whole checkpoint, or None where there is none.

        A damaged one is named in a warning, moved aside into the folder
        `damaged_checkpoints` beside this one (unless read-only), and the one before
        is tried.

        Raises:
          UserError: a checkpoint can be read, but is of another structure; nothing is
            moved.
        """
        for step in reversed(self.steps()):
            try:
                with _quiet():
                    self._check_structure(step, abstract)
                    return self._restore(step, abstract)
            except UserError:
                raise
            except Exception as error:  # orbax raises many types on damaged files
                reason = str(error).strip().splitlines() or [type(error).__name__]
                warnings.warn(
                    f"checkpoint {self.directory / str(step)} is damaged and is "
                    f"skipped ({reason[0][:300]})",
                    stacklevel=2,
                )
                self._set_aside(step)
        return None

    def _check_structure(self, step: int, abstract: PyTree) -> None:
        saved = self._manager.item_metadata(step)["arrays"]
        differences = _differences(saved, _flatten(abstract))
        if differences:
            shown = differences[:_MOST_DIFFERENCES]
            more = len(differences) - len(shown)
            shown += [f"and {more} more"] if more else []
            raise UserError(
                f"checkpoint {self.directory / str(step)} is of another model than the "
                f"one asked for: {'; '.join(shown)}. It may come from another version "
                "of the code; choose another folder, or use that version"
            )

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


def _differences(saved: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """In words, what a saved structure has otherwise than the wanted one."""
    differences = []
    for name in sorted({**saved, **wanted}):
        have, want = (
            f"{np.dtype(tree[name].dtype).name}{list(tree[name].shape)}"
            if name in tree
            else None
            for tree in (saved, wanted)
        )
        if want is None:
            differences.append(f"{name} {have} is not in the model")
        elif have is None:
            differences.append(f"{name} {want} is not in the checkpoint")
        elif have != want:
            differences.append(f"{name} is {have} in the checkpoint, not {want}")
    return differences
