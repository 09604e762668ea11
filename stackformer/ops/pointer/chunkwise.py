"""The stack with a pointer over whole strings, chunk by chunk."""

from typing import Literal, overload

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from stackformer.checks import check_arrays, check_count
from stackformer.ops.pointer.step import (
    PointerState,
    hats,
    init_pointer_state,
    pointers,
    resize_pointer_state,
)
from stackformer.ops.stack_attention.recurrent import state_depth

Array = jax.Array
CHUNK = 32


@overload
def pointer_stack(
    actions: Array,
    values: Array,
    *,
    max_depth: int | None = ...,
    segment_ids: Array | None = ...,
    initial_state: PointerState | None = ...,
    return_state: Literal[False] = ...,
    chunk_size: int = ...,
) -> Array: ...


@overload
def pointer_stack(
    actions: Array,
    values: Array,
    *,
    max_depth: int | None = ...,
    segment_ids: Array | None = ...,
    initial_state: PointerState | None = ...,
    return_state: Literal[True],
    chunk_size: int = ...,
) -> tuple[Array, PointerState]: ...


def pointer_stack(
    actions: Array,
    values: Array,
    *,
    max_depth: int | None = None,
    segment_ids: Array | None = None,
    initial_state: PointerState | None = None,
    return_state: bool = False,
    chunk_size: int = CHUNK,
) -> Array | tuple[Array, PointerState]:
    """What lies at the pointer after every position.

    Args:
      actions: probabilities of push, pop and no-op, shape (..., T, 3); those of
        position 0, the bottom, are ignored.
      values: what a push writes, shape (..., T, D).
      max_depth: H, elements that the stack holds; a push onto a full one overwrites its
        top. None: as many as there can be.
      segment_ids: neighbours of one number are a string of their own, shape (..., T).
      initial_state: what an earlier piece of the string left: position 0 is then a
        position as any other.
      return_state: return the memory and the pointer after the last position too.
      chunk_size: positions that are computed at once.

    Returns:
      Shape (..., T, D), the dtype of `values`; computed in float32 or wider. With
      `return_state` the pair of it and the state, of `max_depth` elements, or where
      that is None of as many as there can be.

    Example:
      >>> actions = jax.nn.one_hot(jnp.array([2, 0, 0, 1]), 3)  # -, push, push, pop
      >>> values = jnp.array([[0.0], [10.0], [20.0], [30.0]])
      >>> print(pointer_stack(actions, values)[:, 0])
      [ 0. 10. 20. 10.]
    """
    _check(actions, values, segment_ids, initial_state, max_depth, chunk_size)
    lead, length, features = values.shape[:-2], *values.shape[-2:]
    dtype = jnp.promote_types(jnp.promote_types(actions.dtype, values.dtype), "float32")
    before = initial_state and initial_state.memory.shape[-2] - 1
    depth = state_depth(length, max_depth, before)
    if initial_state is None:
        if not return_state:
            depth = min(depth, max(length - 1, 1))
        initial_state = init_pointer_state(lead, depth, features, dtype=dtype)
        first = True
    else:
        initial_state = resize_pointer_state(initial_state, depth)
        first = False
    size = min(chunk_size, length)
    count = -(-length // size)

    def flat(array: Array) -> Array:
        """(..., T, *) to (B, T', *), T' a multiple of the chunk's size."""
        array = array.reshape(-1, length, *array.shape[len(lead) + 1 :])
        widths = [(0, 0), (0, count * size - length)] + [(0, 0)] * (array.ndim - 2)
        return jnp.pad(array, widths)

    if segment_ids is None:
        segment_ids = jnp.zeros(values.shape[:-1], jnp.int32)
    changes = segment_ids[..., 1:] != segment_ids[..., :-1]
    widths = [(0, 0)] * len(lead) + [(1, 0)]
    starts = flat(jnp.pad(changes, widths, constant_values=first))
    actions, moved = flat(actions.astype(dtype)), flat(values.astype(dtype))
    push, pop = actions[..., 0], actions[..., 1]
    pointer = initial_state.pointer.astype(dtype).reshape(-1)
    pointer = pointers(push, pop, starts, depth, pointer)
    keys = hats(pointer, depth + 1)
    strength = jnp.where(starts, 1.0, push)

    def chunks(array: Array) -> Array:
        """(B, T', *) to (T' / c, B, c, *)."""
        shape = (array.shape[0], count, size, *array.shape[2:])
        return jnp.moveaxis(array.reshape(shape), 1, 0)

    inputs = tuple(chunks(x) for x in (keys, strength, moved, starts))
    memory = initial_state.memory.astype(dtype).reshape(-1, depth + 1, features)
    memory, readings = jax.lax.scan(jax.checkpoint(_chunk), memory, inputs)
    readings = jnp.moveaxis(readings, 0, 1).reshape(-1, count * size, features)
    readings = readings[:, :length].reshape(values.shape).astype(values.dtype)
    if not return_state:
        return readings
    # What fills up the last chunk moves nothing.
    state = PointerState(memory, pointer[:, -1])
    return readings, jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), state)


def _chunk(memory: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
    """One chunk of all strings: what it leaves in the memory, and what it reads."""
    keys, strength, values, starts = inputs
    number = jnp.cumsum(starts, axis=1)  # of the string, 0 being the one that came in
    same = (number[:, :, None] == number[:, None, :]).astype(keys.dtype)
    overlap = same * jnp.einsum("bih,bjh->bij", keys, keys)
    came_in = (number == 0).astype(keys.dtype)[:, :, None]
    old = came_in * jnp.einsum("bih,bhd->bid", keys, memory)
    # Only what is left of the diagonal is read: there it is one.
    system = strength[:, :, None] * overlap
    written = solve_triangular(
        system, strength[:, :, None] * (values - old), lower=True, unit_diagonal=True
    )
    readings = old + jnp.einsum("bij,bjd->bid", jnp.tril(overlap), written)
    stays = (number == number[:, -1:]).astype(keys.dtype)[:, :, None]
    memory = memory * (number[:, -1] == 0).astype(keys.dtype)[:, None, None]
    return memory + jnp.einsum("bih,bid->bhd", stays * keys, written), readings


def _check(actions, values, segment_ids, state, max_depth, chunk_size):
    check_arrays(actions=actions, values=values, segment_ids=segment_ids)
    if actions.ndim < 2 or actions.shape[-1] != 3:
        raise ValueError(
            f"`actions` shape should be (..., T, 3), but got {actions.shape}."
        )
    if values.shape[:-1] != actions.shape[:-1]:
        raise ValueError(
            f"`values` shape should be {actions.shape[:-1]} and an axis of features, "
            f"but got {values.shape}."
        )
    if segment_ids is not None and segment_ids.shape != actions.shape[:-1]:
        raise ValueError(
            f"`segment_ids` shape should be {actions.shape[:-1]}, but got "
            f"{segment_ids.shape}."
        )
    if state is not None:
        lead, features = values.shape[:-2], values.shape[-1]
        memory = state.memory.shape
        if (*memory[:-2], memory[-1]) != (*lead, features):
            expected = ", ".join(map(str, (*lead, "H + 1", features)))
            raise ValueError(
                f"`initial_state.memory` shape should be ({expected}), as `values` has "
                f"shape {values.shape}, but got {memory}."
            )
        if max_depth is not None and memory[-2] - 1 > max_depth:
            raise ValueError(
                f"`initial_state` should have at most `max_depth` ({max_depth}) "
                f"elements, but got {memory[-2] - 1}."
            )
    for name, number in (("max_depth", max_depth), ("chunk_size", chunk_size)):
        if number is not None:
            check_count(name, number)
