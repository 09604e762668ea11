"""The stack of frames with certain actions: F runs at pops, and nowhere else.

Which items share a frame is then a function of the actions alone (`members.py`). With
v_j the item of position j, or where a pop closes a frame its value,

    v_j = F(v at the members of the frame after j - 1)

and only this is computed with numbers: pop by pop in their order, or level by level,
all pops at once, as often as frames are nested. The actions are data: no gradient
flows into them.
"""

import jax
import jax.numpy as jnp

from stackformer.ops.frames.members import frame_members
from stackformer.ops.frames.reference import Close

Array = jax.Array


def frames_by_pops(
    actions: Array,
    items: Array,
    closing: Array,
    close: Close,
    *,
    num_items: int,
    starts: Array,
    at: Array | None = None,
) -> Array:
    """A `lax.scan` over the pops of each string; arguments as in `stack_of_frames`."""
    batch, length, _ = items.shape
    members = frame_members(actions, num_items=num_items, starts=starts)
    places = _pop_places(members.closes)
    count = places.shape[1]
    # Values are kept pop by pop, and so are the items of the frames that pops close:
    # a step then reads and writes one row, and what it leaves out costs nothing.
    known = _padded(jnp.where(members.closes[..., None], 0.0, items))
    ranks = jnp.where(members.closes, jnp.cumsum(members.closes, axis=1) - 1, count)
    ranks = jnp.pad(ranks, ((0, 0), (0, 1)), constant_values=count)
    ids = _at(members.ids, jnp.maximum(places - 1, 0))
    beside = _at(closing, jnp.minimum(places, length - 1))
    row = jnp.arange(batch)[:, None]

    def sources(ids: Array) -> Array:
        """The rows of `values` that a frame reads; one past them where it does not."""
        rank = ranks[row, ids.reshape(batch, -1)].reshape(ids.shape)
        return jnp.where(rank < count, rank * batch + row[..., None], count * batch)

    def read(values: Array, sources: Array) -> Array:
        flat = values.reshape(count * batch, -1)
        return jnp.take(flat, sources, axis=0, mode="fill", fill_value=0)

    def step(values: Array, inputs: tuple[Array, ...]) -> tuple[Array, None]:
        i, frame, sources, beside = inputs
        value = close(frame + read(values, sources), beside)
        return jax.lax.dynamic_update_index_in_dim(values, value, i, 0), None

    inputs = (_gather(known, ids), sources(ids), beside)
    inputs = (jnp.arange(count), *(jnp.moveaxis(x, 1, 0) for x in inputs))
    values = jnp.zeros((count, batch, items.shape[2]), items.dtype)
    values, _ = jax.lax.scan(step, values, inputs)
    wanted = members.ids if at is None else _at(members.ids, at)
    return _gather(known, wanted) + read(values, sources(wanted))


def frames_by_levels(
    actions: Array,
    items: Array,
    closing: Array,
    close: Close,
    *,
    num_items: int,
    starts: Array,
    at: Array | None = None,
    levels: int | None = None,
) -> Array:
    """All pops at once, `levels` times; arguments as in `stack_of_frames`.

    After t rounds every frame that nests at most t others is right. Where `levels` is
    None there are as many as there can be pops: then it is exact for all strings.
    """
    length = items.shape[1]
    members = frame_members(actions, num_items=num_items, starts=starts)
    places = _pop_places(members.closes)
    before = jnp.maximum(places - 1, 0)[:, :, None]
    ids = jnp.take_along_axis(members.ids, before, axis=1)
    inside = jnp.minimum(places, length - 1)[:, :, None]
    beside = jnp.take_along_axis(closing, inside, axis=1)
    apply = jax.vmap(close, in_axes=(1, 1), out_axes=1)
    padded = _padded(items)

    def round_(values: Array, _: None) -> tuple[Array, None]:
        found = apply(_gather(values, ids), beside)
        return _put(padded, places, found), None

    count = places.shape[1] if levels is None else min(levels, places.shape[1])
    values, _ = jax.lax.scan(round_, padded, None, length=count)
    return _gather(values, members.ids if at is None else _at(members.ids, at))


def _pop_places(closes: Array) -> Array:
    """Positions of the 1st, 2nd, … pop that closes a frame, (B, P); T where none is.

    Each of them has a push before it, so that there are at most (T - 1) / 2.
    """
    length = closes.shape[1]
    places = jnp.where(closes, jnp.arange(length)[None, :], length)
    return jnp.sort(places, axis=1)[:, : max((length - 1) // 2, 1)]


def _at(values: Array, places: Array) -> Array:
    """values (B, T, D) at places (B, P): (B, P, D)."""
    return jnp.take_along_axis(values, places[:, :, None], axis=1)


def _padded(items: Array) -> Array:
    """Items with a row of zeros, for places in a frame that hold nothing."""
    return jnp.pad(items, ((0, 0), (0, 1), (0, 0)))


def _gather(values: Array, ids: Array) -> Array:
    """values (B, T + 1, D) at ids (B, ..., K), -1 being the row of zeros."""
    last = values.shape[1] - 1
    return jax.vmap(lambda v, i: v[jnp.where(i < 0, last, i)])(values, ids)


def _put(values: Array, places: Array, new: Array) -> Array:
    """new (B, ..., D) at places (B, ...); those from T on are left out."""
    last = values.shape[1] - 1
    outside = jnp.where(places >= last, last + 1, places)
    return jax.vmap(lambda v, p, x: v.at[p].set(x, mode="drop"))(values, outside, new)
