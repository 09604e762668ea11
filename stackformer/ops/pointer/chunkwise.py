"""The stack with a pointer over whole strings, chunk by chunk."""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from stackformer.checks import check_arrays, check_count
from stackformer.ops.pointer.step import hats, pointers

Array = jax.Array
CHUNK = 32


def pointer_stack(
    actions: Array,
    values: Array,
    *,
    max_depth: int | None = None,
    segment_ids: Array | None = None,
    chunk_size: int = CHUNK,
) -> Array:
    """What lies at the pointer after every position.

    Args:
      actions: probabilities of push, pop and no-op, shape (..., T, 3); those of
        position 0, the bottom, are ignored.
      values: what a push writes, shape (..., T, D).
      max_depth: H, elements that the stack holds; a push onto a full one overwrites its
        top. None: as many as there can be.
      segment_ids: neighbours of one number are a string of their own, shape (..., T).
      chunk_size: positions that are computed at once.

    Returns:
      Shape (..., T, D), the dtype of `values`; computed in float32 or wider.

    Example:
      >>> actions = jax.nn.one_hot(jnp.array([2, 0, 0, 1]), 3)  # -, push, push, pop
      >>> values = jnp.array([[0.0], [10.0], [20.0], [30.0]])
      >>> print(pointer_stack(actions, values)[:, 0])
      [ 0. 10. 20. 10.]
    """
    _check(actions, values, segment_ids, max_depth, chunk_size)
    lead, length, features = values.shape[:-2], *values.shape[-2:]
    dtype = jnp.promote_types(jnp.promote_types(actions.dtype, values.dtype), "float32")
    depth = max(length - 1, 1)
    depth = depth if max_depth is None else min(max_depth, depth)
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
    starts = flat(jnp.pad(changes, widths, constant_values=True))
    actions, moved = flat(actions.astype(dtype)), flat(values.astype(dtype))
    push, pop = actions[..., 0], actions[..., 1]
    keys = hats(pointers(push, pop, starts, depth), depth + 1)
    strength = jnp.where(starts, 1.0, push)

    def chunks(array: Array) -> Array:
        """(B, T', *) to (T' / c, B, c, *)."""
        shape = (array.shape[0], count, size, *array.shape[2:])
        return jnp.moveaxis(array.reshape(shape), 1, 0)

    inputs = tuple(chunks(x) for x in (keys, strength, moved, starts))
    memory = jnp.zeros((moved.shape[0], depth + 1, features), dtype)
    _, readings = jax.lax.scan(jax.checkpoint(_chunk), memory, inputs)
    readings = jnp.moveaxis(readings, 0, 1).reshape(-1, count * size, features)
    return readings[:, :length].reshape(values.shape).astype(values.dtype)


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


def _check(actions, values, segment_ids, max_depth, chunk_size):
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
    for name, number in (("max_depth", max_depth), ("chunk_size", chunk_size)):
        if number is not None:
            check_count(name, number)
