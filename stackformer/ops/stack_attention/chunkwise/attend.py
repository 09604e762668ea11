"""Stack attention chunk by chunk: exact, with dense products and few steps.

Split the positions into chunks of b. What a chunk does to the stack is a set of small
tables (`tables.py`), found for all chunks at once; they are then applied to a
stack of values, one chunk after another (`scan.py`). O(N²D) work in about
log2(b) + N / b sequential products, or O(N H D) with a stack of bounded depth H.
"""

import math

import jax
import jax.numpy as jnp

from stackformer.ops.stack_attention.chunkwise.scan import (
    ChunkMatrices,
    from_stack,
    scan_chunks,
    to_stack,
)
from stackformer.ops.stack_attention.chunkwise.tables import (
    ChunkTables,
    bottom_correction,
    chunk_tables,
    depth_transfer,
    einsum,
    piece_size,
    toeplitz_blocks,
)
from stackformer.ops.stack_attention.form import Form, Options
from stackformer.ops.stack_attention.recurrent import (
    resize_stack_state,
    state_depth,
)

DEFAULT_CHUNK = 16


def stack_attention_chunkwise(
    actions: jax.Array,
    values: jax.Array,
    *,
    chunk_size: int,
    max_depth: int | None = None,
    starts: jax.Array | None = None,
    initial_state: jax.Array | None = None,
    return_state: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """Computes alpha @ values without alpha.

    Args:
      actions: probabilities, shape (..., T, 3).
      values: shape (..., T, D), the same dtype.
      chunk_size: b; rounded up to a number of the form m 2^j with m <= 8, and down to
        max_depth - 1 where that is less.
      max_depth: the number of elements that the stack remembers, at least 2, or None.
      starts: True where a string of its own begins, shape (..., T), or None.
      initial_state: the stack before position 0, shape (..., H + 1, D), or None.
      return_state: return the stack after the last position.

    Returns:
      shape (..., T, D), and the stack or None.
    """
    *batch, length, features = values.shape
    if initial_state is None:
        depth, first = None, 1
        bottom, elements = values[..., :1, :], None
    else:
        depth, first = initial_state.shape[-2] - 1, 0
        bottom = initial_state[..., -1:, :]
        elements = initial_state[..., :-1, :] - bottom

    def flat(array):
        return None if array is None else array.reshape(-1, *array.shape[len(batch) :])

    lead = (math.prod(batch), length - first)
    tops, final = _attend(
        actions[..., first:, :].reshape(*lead, 3),
        values[..., first:, :].reshape(*lead, features),
        flat(bottom),
        None if starts is None else starts[..., first:].reshape(lead),
        flat(elements),
        chunk_size,
        max_depth,
        return_state,
    )
    tops = tops.reshape(*batch, *tops.shape[1:])
    if first:
        tops = jnp.concatenate([bottom, tops], axis=-2)
    if final is not None:
        final = final.reshape(*batch, *final.shape[1:])
        final = resize_stack_state(final, state_depth(length, max_depth, depth))
    return tops, final


def _attend(
    actions, values, bottom, starts, elements, chunk_size, max_depth, return_state
):
    """The tops at N steps, and the stack after them.

    Args: actions (B, N, 3), values (B, N, D), what the stack rests on (B, 1, D), starts
    (B, N) or None, what lies on it beyond that (B, H, D) or None.
    """
    steps = values.shape[1]
    if steps == 0:
        return values, jnp.repeat(bottom, 2, axis=1) if return_state else None
    most = steps if elements is None else steps + elements.shape[1]
    if max_depth is not None and max_depth >= most:
        max_depth = None  # never full
    if max_depth is not None and elements is not None:
        elements = elements[:, :max_depth]
    piece, levels, size = _sizes(chunk_size, steps, max_depth)
    chunks = -(-steps // size)

    # Rest the stack on zeros instead of its bottom: what it holds beyond the bottom.
    total, bottom, actions = _below(actions, values, bottom, starts)
    before = jnp.pad(total[:, :-1], ((0, 0), (1, 0), (0, 0)), constant_values=1.0)
    pushed = actions[..., :1] * (values - before * bottom)

    final = None
    if chunks == 1 and max_depth is None and elements is None and not return_state:
        lanes = _lanes(actions, piece, levels, chunks)
        new = chunk_tables(lanes, levels).new[:, :steps, :steps]
        tops = einsum("bik,bkd->bid", new, pushed)
    else:
        matrices, top, limit = _matrices(actions, piece, levels, chunks, max_depth)
        # Otherwise XLA fuses their last steps into every scan that reads them.
        matrices = jax.lax.optimization_barrier(matrices)
        padded = jnp.pad(pushed, ((0, 0), (0, chunks * size - steps), (0, 0)))
        depth = min(most, max_depth or most)
        stack = None if elements is None else to_stack(elements, top, size)
        after = -(-depth // size) if return_state else 0
        tops, stack = scan_chunks(matrices, padded, stack, limit, after)
        tops = tops[:, :steps]
        final = jnp.pad(from_stack(stack, depth), ((0, 0), (0, 1), (0, 0)))
    lowest = total * bottom
    if return_state:
        assert final is not None
        final = final + lowest[:, -1:]
    return tops + lowest, final


def _below(actions, values, bottom, starts):
    """What the stack rests on at every step, and the actions that reset it.

    Returns the product of the sums of actions so far (B, N, 1), the bottom (B, 1, D),
    or (B, N, D) with starts, and the actions. At a start no old element is left, as
    though all three actions had the probability zero, and from there on the stack
    rests on the start's value.
    """
    if starts is None:
        total = jnp.exp(_cumulative_logarithm(actions.sum(-1)))
        return total[..., None], bottom, actions
    at = jnp.where(starts, jnp.arange(1, starts.shape[1] + 1)[None], 0)
    at = jax.lax.cummax(at, axis=1)
    bottoms = jnp.concatenate([bottom, values], axis=1)
    bottoms = jnp.take_along_axis(bottoms, at[..., None], axis=1)
    logarithms = _cumulative_logarithm(jnp.where(starts, 1.0, actions.sum(-1)))
    begun = jnp.take_along_axis(jnp.pad(logarithms, ((0, 0), (1, 0))), at, axis=1)
    actions = jnp.where(starts[..., None], 0.0, actions)
    return jnp.exp(logarithms - begun)[..., None], bottoms, actions


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
    return by_chunk, top, limit


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


def _cumulative_logarithm(x):
    """sum_{j <= i} log x_j along the last axis, for x near one, in rows of sqrt."""
    batch, length = x.shape
    row = math.isqrt(length - 1) + 1
    logarithms = jnp.log(jnp.maximum(x, jnp.finfo(x.dtype).tiny))
    rows = jnp.pad(logarithms, ((0, 0), (0, -length % row))).reshape(batch, -1, row)
    inside = einsum("bri,ij->brj", rows, jnp.triu(jnp.ones((row, row), x.dtype)))
    count = rows.shape[1]
    earlier = jnp.triu(jnp.ones((count, count), x.dtype), 1)
    before = einsum("br,rq->bq", inside[..., -1], earlier)
    return (inside + before[..., None]).reshape(batch, -1)[:, :length]


def _refuses(length: int, options: Options) -> str | None:
    if options.max_depth == 1 and (length > 2 or options.initial_state):
        return "`max_depth` should be at least 2, but got 1"
    return options.unsupported("max_pops")


def _attend_to(
    actions: jax.Array,
    values: jax.Array,
    options: Options,
    starts: jax.Array | None = None,
    initial_state: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    return stack_attention_chunkwise(
        actions,
        values,
        chunk_size=options.chunk_size or DEFAULT_CHUNK,
        max_depth=options.max_depth,
        starts=starts,
        initial_state=initial_state,
        return_state=options.return_state,
    )


FORM = Form(refuses=_refuses, attend_to=_attend_to, forward_mode=False)
