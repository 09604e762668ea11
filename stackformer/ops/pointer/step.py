"""Pointers, their keys, and one step of the stack with a pointer."""

import dataclasses

import jax
import jax.numpy as jnp

from stackformer.checks import check_count

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PointerState:
    """What is remembered.

    Attributes:
      memory: a row for each depth 0..H, shape (..., H + 1, D).
      pointer: how deep the stack is, shape (...), from 0 to H.
    """

    memory: Array
    pointer: Array


def init_pointer_state(
    batch_shape: tuple[int, ...],
    max_depth: int,
    features: int,
    *,
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> PointerState:
    """The state before position 0; the stack holds H = `max_depth` elements."""
    check_count("max_depth", max_depth)
    return PointerState(
        memory=jnp.zeros((*batch_shape, max_depth + 1, features), dtype),
        pointer=jnp.zeros(batch_shape, dtype),
    )


def resize_pointer_state(state: PointerState, depth: int) -> PointerState:
    """The same stack with room for `depth` elements, no fewer than it has.

    Example:
      >>> state = init_pointer_state((2,), max_depth=3, features=4)
      >>> resize_pointer_state(state, 5).memory.shape
      (2, 6, 4)
    """
    rows = depth + 1 - state.memory.shape[-2]
    widths = [(0, 0)] * (state.memory.ndim - 2) + [(0, rows), (0, 0)]
    return PointerState(jnp.pad(state.memory, widths), state.pointer)


def pointer_step(
    state: PointerState, actions: Array, value: Array, index: int | Array
) -> tuple[PointerState, Array]:
    """Executes one position's actions.

    Args:
      state: from `init_pointer_state` or the step before.
      actions: probabilities of push, pop and no-op, shape (..., 3).
      value: what a push writes, shape (..., D).
      index: the scalar position, counted from 0. Position 0 is the bottom: its action
        is ignored, and it reads itself.

    Returns:
      The new state, and what is read, shape (..., D), the dtype of the memory.

    Example:
      >>> state = init_pointer_state((), max_depth=3, features=1)
      >>> for index, action in enumerate([2, 0, 0, 1]):  # -, push, push, pop
      ...     value, actions = jnp.array([10.0 * index]), jax.nn.one_hot(action, 3)
      ...     state, top = pointer_step(state, actions, value, index)
      >>> top.item()
      10.0
    """
    dtype, rows = state.memory.dtype, state.memory.shape[-2]
    first = jnp.asarray(index) == 0
    moved = state.pointer + (actions[..., 0] - actions[..., 1]).astype(dtype)
    pointer = jnp.where(first, 0.0, jnp.clip(moved, 0.0, rows - 1))
    strength = jnp.where(first, 1.0, actions[..., 0].astype(dtype))
    key = hats(pointer, rows)
    error = value.astype(dtype) - jnp.einsum("...h,...hd->...d", key, state.memory)
    change = jnp.einsum("...,...h,...d->...hd", strength, key, error)
    memory = state.memory + change
    reading = jnp.einsum("...h,...hd->...d", key, memory)
    return PointerState(memory, pointer), reading


def hats(pointer: Array, rows: int) -> Array:
    """The key of a pointer (...): 1 at its depth, linear in between, (..., rows).

    Example:
      >>> print(hats(jnp.array(1.25), 4))
      [0.   0.75 0.25 0.  ]
    """
    depths = jnp.arange(rows, dtype=pointer.dtype)
    depths = depths.reshape((1,) * pointer.ndim + (rows,))
    return jnp.maximum(0.0, 1.0 - jnp.abs(pointer[..., None] - depths))


def pointers(
    push: Array, pop: Array, starts: Array, max_depth: int, first: Array | float = 0.0
) -> Array:
    """All pointers of strings (..., T) at once; `first` (...) is the one before them.

    x -> clip(x + a, low, high) is such a function again after another one, so that an
    associative scan composes the steps; the start of a string is the constant 0.

    Example:
      >>> push, pop = jnp.array([0.0, 1.0, 1.0, 0.0]), jnp.array([0.0, 0.0, 0.0, 1.0])
      >>> print(pointers(push, pop, jnp.array([True, False, False, False]), 3))
      [0. 1. 2. 1.]
    """
    change = jnp.where(starts, 0.0, push - pop)
    low = jnp.zeros_like(change)
    high = jnp.where(starts, 0.0, jnp.asarray(max_depth, change.dtype))

    def after(first, second):
        a, low, high = first
        b, least, most = second
        return a + b, jnp.clip(low + b, least, most), jnp.clip(high + b, least, most)

    a, low, high = jax.lax.associative_scan(after, (change, low, high), axis=-1)
    return jnp.clip(a + jnp.asarray(first)[..., None], low, high)
