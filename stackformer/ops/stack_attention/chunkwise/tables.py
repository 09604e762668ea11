"""What a chunk of actions does to a stack, whatever lies on it: small tables.

A chunk of `a` steps has four tables. Steps are i, t = 1..a; k, m, u are depths, 0 the
top; "old" elements lay on the stack before the chunk, k-th from its top.

  old    (a, a+1)    old[i, k]: probability that the top after step i is old element k
  new    (a, a)      new[i, t]: the top after step i is the one that step t pushed,
                     given that step t pushes
  pushed (a, a)      pushed[k, t]: after the chunk that element lies at depth k
  moves  (a+1, a+1)  moves[u, d]: the chunk pops d old elements, then pushes u new ones

(d, u) is an element of the bicyclic monoid. The tables of short pieces are computed
step by step, those of longer ones by merging two neighbours with matrix products, so
that a chunk of size b costs about log2(b) sequential products. `README.md` of this
folder derives the equations. Arrays have the chunks ("lanes") as their first axis.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

# Below this size a piece is computed step by step, above it by merging.
MAX_PIECE = 8

einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


class ChunkTables(NamedTuple):
    """The tables of L chunks of `a` steps; see the module's docstring."""

    old: jax.Array  # (L, a, a + 1)
    new: jax.Array  # (L, a, a)
    pushed: jax.Array  # (L, a, a)
    moves: jax.Array  # (L, a + 1, a + 1)


def piece_size(chunk_size: int) -> tuple[int, int]:
    """Splits a chunk size into (piece, levels) with piece * 2**levels >= chunk_size.

    Example:
      >>> piece_size(5), piece_size(16), piece_size(50)
      ((5, 0), (8, 1), (7, 3))
    """
    levels = 0
    while chunk_size > MAX_PIECE:
        chunk_size = -(-chunk_size // 2)
        levels += 1
    return chunk_size, levels


def chunk_tables(actions: jax.Array, levels: int) -> ChunkTables:
    """The tables of chunks of a * 2**levels steps.

    Args:
      actions: push, pop and no-op of pieces of `a` steps, shape (3, a, 2**levels * L).
        The first half of the lanes are the left halves of the longest chunks, the
        second half the right ones, and so on inside each half for shorter pieces.
      levels: how often neighbours are merged.
    """
    tables = _piece_tables(actions)
    for _ in range(levels):
        tables = merge(*_halves(tables))
    return tables


def _halves(tables: ChunkTables) -> tuple[ChunkTables, ChunkTables]:
    lanes = tables.old.shape[0] // 2
    left = jax.tree.map(lambda table: table[:lanes], tables)
    right = jax.tree.map(lambda table: table[lanes:], tables)
    return left, right


def _piece_tables(actions: jax.Array) -> ChunkTables:
    """The recurrence, one step after another; lanes are the last axis inside.

    One array holds, for every depth u, the rows t = a..1 of elements that step t
    pushed, then d = 0..a of `moves`. A push moves every row one place deeper, a pop
    one place up; a pop at u = 0 loses a pushed element and turns row d into d + 1.
    """
    _, size, lanes = actions.shape
    rows = 2 * size + 1

    def pad(array, above=0, before=0, after=0):
        return jnp.pad(array, ((above, 0), (before, after), (0, 0)))

    table = jnp.zeros((rows, 1, lanes), actions.dtype).at[size, 0].set(1.0)
    tops = []
    for i in range(size):
        push, pop, noop = actions[:, i, None, None]
        born = jnp.zeros((rows, i + 2, 1), actions.dtype).at[size - 1 - i, 0].set(1.0)
        table = (
            noop * pad(table, after=1)
            + push * pad(table, before=1)
            + pop * pad(table[:, 1:], after=2)
            + pad(pop * table[size:-1, :1], above=size + 1, after=i + 1)
            + born
        )
        # Otherwise XLA fuses the steps and computes each again for every use.
        table = jax.lax.optimization_barrier(table)
        tops.append(table[:, 0])
    tops = jnp.stack(tops).transpose(2, 0, 1)
    table = table.transpose(2, 1, 0)
    return ChunkTables(
        old=tops[:, :, size:],
        new=tops[:, :, size - 1 :: -1],
        pushed=table[:, :size, size - 1 :: -1],
        moves=table[:, :, size:],
    )


def merge(left: ChunkTables, right: ChunkTables) -> ChunkTables:
    """The tables of `left` followed by `right`, both of size a: two products.

    What `right` finds k-th from the top is, with the probabilities of `left`, an old
    element (`depth_transfer`) or one that `left` pushed. And the moves of both: either
    `right` stays within what `left` pushed, or it digs through it.
    """
    size = left.new.shape[1]
    left_pushed = _pad(left.pushed, below=1)
    through_left = einsum(
        "lmk,lkn->lmn",
        jnp.concatenate([right.old, _pad(right.moves[:, :, 1:], right=1)], 1),
        jnp.concatenate([left_pushed, depth_transfer(left.moves)], 2),
    )
    through_right = einsum(
        "lmk,lmn->lkn",
        depth_transfer(right.moves.swapaxes(1, 2)),  # the transfer of `right`, [m, k]
        jnp.concatenate([left_pushed, left.moves], 2),
    )
    lower_new = jnp.concatenate([through_left[:, :size, :size], right.new], 2)
    return ChunkTables(
        old=jnp.concatenate(
            [_pad(left.old, right=size), through_left[:, :size, size:]], 1
        ),
        new=jnp.concatenate([_pad(left.new, right=size), lower_new], 1),
        pushed=jnp.concatenate(
            [through_right[:, :-1, :size], _pad(right.pushed, below=size)], 2
        ),
        moves=_pad(through_right[:, :, size:], right=size)
        + _pad(through_left[:, size:, size:-1], below=size, left=1),
    )


def depth_transfer(moves: jax.Array, rows: int | None = None) -> jax.Array:
    """transfer[k, m]: the probability that old element m ends at depth k.

      transfer[k, m] = sum_{u <= k} moves[u, m - k + u]

    Args:
      moves: shape (L, a + 1, a + 1).
      rows: the number of depths k, at least a + 1 (the default).

    Returns:
      shape (L, rows, a + rows); from row a on a row is the row above, moved by one.
    """
    return _unskew(_diagonal_sums(moves, rows), drop=moves.shape[1] - 1)


def toeplitz_blocks(moves: jax.Array) -> jax.Array:
    """The transfer between depths of at least a, in blocks: shape (L, a, 3 a).

    Entry [r, s] carries an element from row s of three neighbouring blocks of `a`
    depths to row r of the middle one. It depends on s - r alone.
    """
    size = moves.shape[1] - 1
    last = _diagonal_sums(moves)[:, -1:]
    return _unskew(jnp.broadcast_to(last, (last.shape[0], size, 2 * size + 1)), drop=0)


def bottom_correction(moves: jax.Array) -> jax.Array:
    """What a stack of bounded depth forgets, shape (L, a, a).

    Args:
      moves: of the actions with push and pop exchanged: the view from below.

    Returns:
      [r, s]: the probability that an element goes from row s to row r of the lowest
      block of `a` depths and was below the lowest depth in between.
    """
    size = moves.shape[1] - 1
    sums = _diagonal_sums(moves)
    beyond = _unskew(sums[:, -1:] - sums, drop=0)[:, :size, size : 2 * size]
    return beyond[:, ::-1, ::-1]


def _diagonal_sums(moves: jax.Array, rows: int | None = None) -> jax.Array:
    """sums[k, m - k + a] = sum_{u <= k} moves[u, m - k + u], shape (L, rows, 2a+1)."""
    lanes, size = moves.shape[0], moves.shape[1] - 1
    # Reading rows of length 2a as rows of length 2a + 1 moves row u by u places.
    flat = _pad(moves, right=size - 1).reshape(lanes, -1)
    skewed = jnp.pad(flat, ((0, 0), (size, 1))).reshape(lanes, size + 1, 2 * size + 1)
    ones = jnp.tril(jnp.ones((rows or size + 1, size + 1), moves.dtype))
    return einsum("ku,lux->lkx", ones, skewed)


def _unskew(skewed: jax.Array, *, drop: int) -> jax.Array:
    """Moves row k by k places to the right, then drops the first columns."""
    lanes, rows, width = skewed.shape
    columns = width + rows - 1 - drop
    flat = _pad(skewed, right=columns + 1 - width).reshape(lanes, -1)
    return flat[:, drop : drop + rows * columns].reshape(lanes, rows, columns)


def _pad(array: jax.Array, *, below: int = 0, left: int = 0, right: int = 0):
    return jnp.pad(array, ((0, 0), (0, below), (left, right)))
