"""Stack attention chunk by chunk: exact, with dense products and few steps.

Split the positions into chunks of b. What a chunk does to the stack is a set of small
tables (`chunk_tables.py`), found for all chunks at once; they are then applied to a
stack of values, one chunk after another (`chunk_scan.py`). O(N²D) work in about
log2(b) + N / b sequential products, or O(N H D) with a stack of bounded depth H.
"""

import math

import jax
import jax.numpy as jnp

from stackformer.ops.chunk_scan import ChunkMatrices, scan_chunks
from stackformer.ops.chunk_tables import (
    ChunkTables,
    bottom_correction,
    chunk_tables,
    depth_transfer,
    einsum,
    piece_size,
    toeplitz_blocks,
)


def stack_attention_chunkwise(
    actions: jax.Array,
    values: jax.Array,
    *,
    chunk_size: int,
    max_depth: int | None = None,
) -> jax.Array:
    """Computes alpha @ values without alpha.

    Args:
      actions: probabilities, shape (..., T, 3).
      values: shape (..., T, D), the same dtype.
      chunk_size: b; rounded up to a number of the form m 2^j with m <= 8, and down to
        max_depth - 1 where that is less.
      max_depth: the number of elements that the stack remembers, at least 2, or None.

    Returns:
      shape (..., T, D).
    """
    *batch, length, features = values.shape
    flat_actions = actions.reshape(-1, length, 3)
    flat_values = values.reshape(-1, length, features)
    tops = _attend(flat_actions, flat_values, chunk_size, max_depth)
    return tops.reshape(*batch, length, features)


def stack_attention_weights_chunkwise(
    actions: jax.Array, *, chunk_size: int, max_depth: int | None = None
) -> jax.Array:
    """alpha itself, shape (..., T, T): the values are one-hot positions."""
    length = actions.shape[-2]
    positions = jnp.broadcast_to(
        jnp.eye(length, dtype=actions.dtype), (*actions.shape[:-1], length)
    )
    return stack_attention_chunkwise(
        actions, positions, chunk_size=chunk_size, max_depth=max_depth
    )


def _attend(actions, values, chunk_size, max_depth):
    length = values.shape[1]
    steps = length - 1
    if steps == 0:
        return values
    if max_depth is not None and max_depth >= steps:
        max_depth = None  # never full
    piece, levels, size = _sizes(chunk_size, steps, max_depth)
    chunks = -(-steps // size)

    # Rest the stack on zeros instead of h_0: what it holds beyond the bottom.
    total = _cumulative_product(actions[:, 1:].sum(-1))[..., None]
    before = jnp.pad(total[:, :-1], ((0, 0), (1, 0), (0, 0)), constant_values=1.0)
    bottom = values[:, :1]
    pushed = actions[:, 1:, :1] * (values[:, 1:] - before * bottom)

    if chunks == 1 and max_depth is None:
        lanes = _lanes(actions[:, 1:], piece, levels, chunks)
        new = chunk_tables(lanes, levels).new[:, :steps, :steps]
        tops = einsum("bik,bkd->bid", new, pushed)
    else:
        matrices, limit = _matrices(actions[:, 1:], piece, levels, chunks, max_depth)
        # Otherwise XLA fuses their last steps into every scan that reads them.
        matrices = jax.lax.optimization_barrier(matrices)
        padded = jnp.pad(pushed, ((0, 0), (0, chunks * size - steps), (0, 0)))
        tops = scan_chunks(matrices, padded, limit)[:, :steps]
    return jnp.concatenate([bottom, tops + total * bottom], axis=1)


def _sizes(chunk_size, steps, max_depth):
    size = min(chunk_size, steps)
    if max_depth is not None:
        size = min(size, max_depth - 1)
    piece, levels = piece_size(size)
    if max_depth is not None:
        while piece << levels > max_depth - 1:
            piece -= 1
    return piece, levels, piece << levels


def _matrices(actions, piece, levels, chunks, max_depth):
    batch = actions.shape[0]
    size = piece << levels
    lanes = _lanes(actions, piece, levels, chunks)
    tables = chunk_tables(lanes, levels)
    top, limit = 1, None
    forget = None
    if max_depth is not None:
        limit = (max_depth - 1) // size
        top = max_depth - limit * size
        mirrored = chunk_tables(lanes[jnp.array([1, 0, 2])], levels).moves
        forget = bottom_correction(mirrored)
    matrices = ChunkMatrices(
        near=_near(tables, top), far=toeplitz_blocks(tables.moves), forget=forget
    )
    by_chunk = jax.tree.map(lambda x: x.reshape(chunks, batch, *x.shape[1:]), matrices)
    return by_chunk, limit


def _near(tables: ChunkTables, top: int) -> jax.Array:
    size = tables.new.shape[1]
    outputs = jnp.concatenate([tables.new, tables.old], 2)
    outputs = jnp.pad(outputs, ((0, 0), (0, 0), (0, size + top - 1)))
    pushed = jnp.pad(tables.pushed[:, 1:], ((0, 0), (0, top), (0, 0)))
    transfer = depth_transfer(tables.moves, top + size)[:, 1:]
    return jnp.concatenate([outputs, jnp.concatenate([pushed, transfer], 2)], 1)


def _lanes(actions, piece, levels, chunks):
    """(B, N, 3) to (3, piece, lanes), in the order that `chunk_tables` expects."""
    batch, steps, _ = actions.shape
    missing = chunks * (piece << levels) - steps
    noop = jnp.zeros((1, 1, 3), actions.dtype).at[..., 2].set(1.0)
    noops = jnp.broadcast_to(noop, (batch, missing, 3))
    padded = jnp.concatenate([actions, noops], axis=1)
    split = padded.reshape(batch, chunks, *(2,) * levels, piece, 3)
    halves = range(split.ndim - 3, 1, -1)
    order = (split.ndim - 1, split.ndim - 2, *halves, 1, 0)
    return split.transpose(order).reshape(3, piece, -1)


def _cumulative_product(x):
    """prod_{j <= i} x_j along the last axis, for x near one, in rows of about sqrt."""
    batch, length = x.shape
    row = math.isqrt(length - 1) + 1
    logarithms = jnp.log(jnp.maximum(x, jnp.finfo(x.dtype).tiny))
    rows = jnp.pad(logarithms, ((0, 0), (0, -length % row))).reshape(batch, -1, row)
    inside = einsum("bri,ij->brj", rows, jnp.triu(jnp.ones((row, row), x.dtype)))
    count = rows.shape[1]
    earlier = jnp.triu(jnp.ones((count, count), x.dtype), 1)
    before = einsum("br,rq->bq", inside[..., -1], earlier)
    return jnp.exp(inside + before[..., None]).reshape(batch, -1)[:, :length]
