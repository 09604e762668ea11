"""A task of the user's own, tried out on a few strings before it is trained on."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stackformer.tasks.base import Task

_BATCH, _LENGTH, _WIDTH = 4, 5, 7


def try_out(task: Task) -> None:
    """Raises `ValueError` where strings or answers are not what a task gives.

    Looks at shapes and symbols of a few strings of one length.
    """
    length = int(task.string_length(_LENGTH))
    strings = _array(
        "strings",
        task.strings(jax.random.key(0), _BATCH, length, _WIDTH),
        (_BATCH, _WIDTH),
        len(task.input_symbols),
        length,
    )
    inside = np.arange(_WIDTH) < length
    inputs = jnp.asarray(np.where(inside[None], strings, 0), jnp.int32)
    width, answered = (int(task.output_length(n)) for n in (_WIDTH, length))
    _array(
        "solve",
        task.solve(inputs, length),
        (_BATCH, width),
        len(task.output_symbols),
        answered,
    )


def _array(
    name: str, value: Any, shape: tuple[int, ...], count: int, used: int
) -> np.ndarray:
    """The value as an array; `used` first columns have symbols from 0 to count - 1."""
    if getattr(value, "shape", None) != shape or value.dtype.kind not in "iu":
        got = f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else value
        raise ValueError(f"`{name}` should give int32{list(shape)}, but got {got!r}")
    array = np.asarray(value)
    wrong = array[:, :used][(array[:, :used] < 0) | (array[:, :used] >= count)]
    if wrong.size:
        raise ValueError(
            f"`{name}` should give symbols from 0 to {count - 1}, but got {wrong[0]}"
        )
    return array
