"""Token streams cut into chunks of one length, and the batches drawn from them.

Legend: C chunks, T tokens of a chunk, B chunks of a batch.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np


def cut(
    stream: np.ndarray,
    length: int,
    *,
    first: int | None = None,
    last: int | None = None,
) -> np.ndarray:
    """Cuts a stream of tokens into chunks; what is left over at the end is dropped.

    Args:
      stream: token ids, (number of tokens,).
      length: T.
      first: a token put at the beginning of every chunk (<s>), if any.
      last: a token put at the end of every chunk (</s>), if any.

    Returns:
      Chunks, (C, T) int32. `first` and `last` count among the T tokens.

    Example:
      >>> cut(np.arange(7), 3)
      array([[0, 1, 2],
             [3, 4, 5]], dtype=int32)
      >>> cut(np.arange(4), 3, first=9)
      array([[9, 0, 1],
             [9, 2, 3]], dtype=int32)
    """
    inner = length - (first is not None) - (last is not None)
    if inner < 1 or len(stream) < inner:
        raise ValueError(
            f"`stream` should have at least {max(inner, 1)} tokens, one chunk of "
            f"length {length}, but got {len(stream)}; give a longer text."
        )
    count = len(stream) // inner
    body = np.asarray(stream[: count * inner], np.int32).reshape(count, inner)
    ends = [
        np.full((count, 1), token, np.int32)
        for token in (first, last)
        if token is not None
    ]
    if first is None:
        return np.concatenate([body, *ends], 1)
    return np.concatenate([ends[0], body, *ends[1:]], 1)


def pack(
    documents: Sequence[np.ndarray],
    length: int,
    *,
    first: int | None = None,
    last: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Puts whole documents into chunks, several in each where they fit.

    Each goes into the fullest chunk that has room for it, longer ones first. Of a
    document longer than a chunk every full chunk is a string of its own, and so is
    what is left.

    Args:
      documents: token ids of each.
      length: T.
      first: a token put at the beginning of every string (<s>), if any.
      last: a token put at the end of every string (</s>), if any.

    Returns:
      Chunks, (C, T) int32, and segment ids of the same shape: 1, 2, ... for the strings
      of a chunk, 0 where it is padding (token 0).

    Example:
      >>> chunks, segment_ids = pack([np.array([5, 6]), np.arange(1, 6)], 4)
      >>> chunks
      array([[1, 2, 3, 4],
             [5, 6, 5, 0]], dtype=int32)
      >>> segment_ids
      array([[1, 1, 1, 1],
             [1, 1, 2, 0]], dtype=int32)
    """
    begin = [] if first is None else [first]
    end = [] if last is None else [last]
    inner = length - len(begin) - len(end)
    if inner < 1:
        raise ValueError(f"`length` should leave room for text, but got {length}.")
    strings = [
        np.concatenate([begin, document[at : at + inner], end]).astype(np.int32)
        for document in documents
        for at in range(0, len(document), inner)
    ]
    if not strings:
        raise ValueError("`documents` should have at least one token, but got none.")
    strings.sort(key=len, reverse=True)
    rows: list[list[np.ndarray]] = []
    with_room: dict[int, list[int]] = {}  # chunks by the room that they have
    for string in strings:
        rooms = [n for n in range(len(string), length + 1) if with_room.get(n)]
        room = rooms[0] if rooms else length
        row = with_room[room].pop() if rooms else len(rows)
        if row == len(rows):
            rows.append([])
        rows[row].append(string)
        with_room.setdefault(room - len(string), []).append(row)
    chunks = np.zeros((len(rows), length), np.int32)
    segment_ids = np.zeros_like(chunks)
    for row, members in enumerate(rows):
        joined = np.concatenate(members)
        numbers = np.arange(1, len(members) + 1)
        chunks[row, : len(joined)] = joined
        segment_ids[row, : len(joined)] = np.repeat(numbers, [len(m) for m in members])
    return chunks, segment_ids


def training_rows(
    key: jax.Array, step: jax.Array, *, num_chunks: int, batch_size: int
) -> jax.Array:
    """Which chunks step `step` trains on, (B,) int32.

    Every epoch of `num_chunks // batch_size` steps goes once through the chunks in an
    order of its own; the last ones of that order, too few for a batch, are left out.
    A function of the key and the step alone.
    """
    steps = num_chunks // batch_size
    order = jax.random.permutation(jax.random.fold_in(key, step // steps), num_chunks)
    return jax.lax.dynamic_slice_in_dim(order, step % steps * batch_size, batch_size)


def evaluation_rows(
    index: jax.Array, *, num_chunks: int, batch_size: int
) -> tuple[jax.Array, jax.Array]:
    """Chunks of the `index`-th batch in their own order, (B,), and which are real.

    The last batch is filled up with repeated chunks that are not real.
    """
    rows = index * batch_size + jnp.arange(batch_size)
    return jnp.minimum(rows, num_chunks - 1), rows < num_chunks
