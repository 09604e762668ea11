"""Which positions lie in which frame, where every action is certain."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array


class Members(NamedTuple):
    """The structure that hard actions give to a string.

    Attributes:
      ids: (..., T, K) int32, the positions of the items in the frame after every
        position, the newest last; -1 where there are fewer.
      closes: (..., T) bool, True where a pop closes a frame: position i then stands for
        the value of the frame after position i - 1.
    """

    ids: Array
    closes: Array


def frame_members(
    actions: Array, *, num_items: int, starts: Array | None = None
) -> Members:
    """The frames that a program with lists would keep.

    Args:
      actions: one-hot, or probabilities whose largest counts, shape (..., T, 3). What
        position 0 says does not count: it is a no-op.
      num_items: K, the items that a frame keeps.
      starts: True at the first position of a string, shape (..., T); None: only
        position 0 is one.

    Example:
      >>> actions = jax.nn.one_hot(jnp.array([2, 0, 2, 1]), 3)  # -, (, 7, )
      >>> print(frame_members(actions, num_items=2).ids)
      [[-1  0]
       [-1 -1]
       [-1  2]
       [ 0  3]]
    """
    chosen = jnp.argmax(actions, axis=-1)
    if starts is None:
        starts = jnp.zeros(chosen.shape, bool)
    starts = starts.at[..., 0].set(True)
    one = functools.partial(_members, num_items=num_items)
    for _ in range(chosen.ndim - 1):
        one = jax.vmap(one)
    return one(chosen, starts)


def open_frames(
    actions: Array, index: int | Array, *, depth: int
) -> tuple[Array, Array]:
    """The frames on the stack after position `index` of one string, the top first.

    Args:
      actions: as in `frame_members`.
      index: a number, or a traced scalar.
      depth: H, how many are wanted.

    Returns:
      The positions after which each of them was the current frame, and whether there
      is one, (..., H).

    Example:
      >>> actions = jax.nn.one_hot(jnp.array([2, 0, 2, 0]), 3)  # -, (, 7, (
      >>> places, there = open_frames(actions, 3, depth=3)
      >>> print(places[:2], there)
      [2 0] [ True  True False]
    """
    chosen = jnp.argmax(actions, axis=-1)
    position = jnp.arange(chosen.shape[-1])

    def one(chosen: Array) -> tuple[Array, Array]:
        inside = position > 0
        push = (chosen == 0) & inside
        depths = _depths(push, (chosen == 1) & inside, ~inside)
        levels = depths[index] - jnp.arange(depth)
        # The push that opened a level: the last one that led to it.
        opens = (push & (position <= index))[None, :] & (
            depths[None] == levels[:, None]
        )
        places = jnp.max(jnp.where(opens, position, 0), axis=1)
        return jnp.maximum(places - 1, 0), levels > 0

    for _ in range(chosen.ndim - 1):
        one = jax.vmap(one)
    return one(chosen)


def _members(chosen: Array, starts: Array, *, num_items: int) -> Members:
    """Of one string: every item points at the one before it in its frame."""
    length = chosen.shape[0]
    position = jnp.arange(length, dtype=jnp.int32)
    push = (chosen == 0) & ~starts
    depth = _depths(push, (chosen == 1) & ~starts, starts)
    before = jnp.append(0, depth[:-1])
    closes = (chosen == 1) & ~starts & (before > 0)
    # The push that a pop closes: the last one that led to the depth before the pop.
    earlier = position[None, :] < position[:, None]
    opens = push[None, :] & earlier & (depth[None, :] == before[:, None])
    opened = jnp.max(jnp.where(opens, position[None, :], 0), axis=1)
    # `length` stands for nothing.
    newest = jnp.where(push, length, position)
    newest_before = jnp.where(starts, length, jnp.append(length, newest[:-1]))
    previous = jnp.where(closes, newest_before[opened], newest_before)
    previous = jnp.append(previous, length)
    chain = [newest]
    for _ in range(num_items - 1):
        chain.append(previous[chain[-1]])
    ids = jnp.stack(chain[::-1], axis=-1)
    return Members(jnp.where(ids == length, -1, ids).astype(jnp.int32), closes)


def _depths(push: Array, pop: Array, starts: Array) -> Array:
    """Open frames after every position: d <- max(d + push - pop, 0), 0 at starts."""
    fall = jnp.where(starts, starts.shape[0], pop.astype(jnp.int32))
    total = jnp.cumsum(push.astype(jnp.int32) - fall)
    return total - jnp.minimum(jax.lax.cummin(total), 0)
