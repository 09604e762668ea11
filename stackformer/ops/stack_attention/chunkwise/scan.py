"""From chunk to chunk: the stack of values, moved by matrix products.

The stack holds `head`, the s + b topmost elements, and `rest`, blocks of b deeper ones,
laid out (B, b, blocks, D) so that one matrix moves all blocks at once. A stack has no
more elements than were pushed, and an element deeper than the number of steps that
remain is never read; so the stack grows and shrinks with the chunks, in a few phases
of constant shape, each a `lax.scan`.
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from stackformer.ops.stack_attention.chunkwise.tables import einsum
from stackformer.ops.stack_attention.sharding import varying_like

# Phases in which the stack grows to its largest size, and as many to shrink.
PHASES = 3


class ChunkMatrices(NamedTuple):
    """The matrices of C chunks of b steps.

    near: rows are the b outputs, then depths 1..s+b-1 of the new stack; columns the b
      values of the chunk, then depths 0..s+2b-1 of the old stack.
    far: moves blocks that lie deeper, see `toeplitz_blocks`.
    forget: what a bounded stack forgets in its lowest block, or None.
    """

    near: jax.Array  # (C, B, s + 2 b - 1, s + 3 b)
    far: jax.Array  # (C, B, b, 3 b)
    forget: jax.Array | None  # (C, B, b, b)


class Stack(NamedTuple):
    head: jax.Array  # (B, s + b, D)
    rest: jax.Array  # (B, b, blocks, D)


class Phase(NamedTuple):
    start: int
    stop: int
    blocks: int


def plan(
    chunks: int,
    limit: int | None,
    phases: int = PHASES,
    *,
    before: int = 0,
    after: int = 0,
) -> list[Phase]:
    """Groups chunks by the number of blocks that the stack needs below its head.

    The stack has `before` blocks at the beginning, and `after` are wanted at the end.

    Example:
      >>> plan(8, None, phases=2)
      [Phase(start=0, stop=1, blocks=0), Phase(start=1, stop=3, blocks=2), ...]
    """
    limit = chunks + before if limit is None else limit
    # At the beginning of chunk c there are c more blocks, and chunks - c can be read.
    needed = [
        max(min(before + c, chunks - c + after, limit) - 1, 0)
        for c in range(chunks + 1)
    ]
    largest = max(needed)
    step = max(1, -(-largest // phases))
    sizes = [
        min(-(-max(pair) // step) * step, largest)
        for pair in itertools.pairwise(needed)
    ]
    result: list[Phase] = []
    for c, size in enumerate(sizes):
        if result and result[-1].blocks == size:
            result[-1] = result[-1]._replace(stop=c + 1)
        else:
            result.append(Phase(c, c + 1, size))
    return result


def _scan_chunks(
    matrices: ChunkMatrices,
    values: jax.Array,
    initial: Stack | None,
    limit: int | None,
    after: int,
) -> tuple[jax.Array, Stack]:
    """The tops of the stack at all positions.

    Args:
      matrices: of all chunks.
      values: what a push of probability one would push; shape (B, C b, D).
      initial: the stack before the first chunk, see `to_stack`; None is an empty one.
      limit: the number of blocks that the stack remembers below its topmost s
        elements; None is all of them.
      after: how many of its blocks are wanted after the last chunk.

    Returns:
      The tops, shape (B, C b, D), for a stack that rests on zeros, and the stack.
    """
    return _forward(matrices, values, initial, limit, after)[0]


scan_chunks = jax.custom_vjp(_scan_chunks, nondiff_argnums=(3, 4))


def to_stack(rows: jax.Array, top: int, size: int) -> Stack:
    """Elements from the top down, (B, rows, D), with zeros below them, as a `Stack`."""
    batch, count, features = rows.shape
    blocks = max(-(-(count - top) // size), 1)
    missing = top + blocks * size - count
    rows = jnp.pad(rows, ((0, 0), (0, missing), (0, 0)))
    rest = rows[:, top + size :].reshape(batch, blocks - 1, size, features)
    return Stack(rows[:, : top + size], rest.swapaxes(1, 2))


def from_stack(stack: Stack, count: int) -> jax.Array:
    """The topmost `count` elements, (B, count, D)."""
    batch, _, _, features = stack.rest.shape
    rest = stack.rest.swapaxes(1, 2).reshape(batch, -1, features)
    rows = jnp.concatenate([stack.head, rest], 1)[:, :count]
    return jnp.pad(rows, ((0, 0), (0, count - rows.shape[1]), (0, 0)))


def _phases(matrices, initial, limit, after):
    before = 0 if initial is None else 1 + initial.rest.shape[2]
    return plan(matrices.far.shape[0], limit, before=before, after=after)


def _forward(matrices, values, initial, limit, after):
    size = matrices.far.shape[2]

    def body(carry, inputs, bounded):
        stack, tops = carry
        index, near, far, forget = inputs
        x = _near_inputs(stack, _take(values, index, size))
        y = einsum("bmk,bkd->bmd", near, x)
        new = Stack(y[:, size - 1 :], _move(far, stack))
        if bounded:
            new = _forget(forget, stack, new)
        return (new, _put(tops, index, y[:, :size])), stack

    stack = initial
    if stack is None:
        nothing = jnp.zeros((values.shape[0], 0, values.shape[2]), values.dtype)
        stack = to_stack(nothing, matrices.near.shape[3] - 3 * size, size)
    carry = _varying((stack, jnp.zeros_like(values)), values)
    stacks = []
    for phase in _phases(matrices, initial, limit, after):
        carry = (_resize(carry[0], phase.blocks), carry[1])
        step = functools.partial(body, bounded=_bounded(matrices, phase, limit))
        carry, saved = _scan(step, carry, matrices, phase)
        stacks.append(saved)
    stack, tops = carry
    return (tops, stack), stacks


def _scan_chunks_fwd(matrices, values, initial, limit, after):
    outputs, stacks = _forward(matrices, values, initial, limit, after)
    return outputs, (matrices, values, initial, stacks)


def _scan_chunks_bwd(limit, after, residuals, cotangents):
    matrices, values, initial, stacks = residuals
    size = matrices.far.shape[2]
    top = matrices.near.shape[3] - 3 * size

    def body(carry, inputs, bounded):
        # `gradient` holds the cotangent of tops still to come, then of values.
        lam, gradient = carry
        (index, near, far, forget), stack = inputs
        x = _near_inputs(stack, _take(values, index, size))
        lam_y = _take(gradient, index, size)
        lam_y = jnp.concatenate(
            [lam_y[:, :-1], lam_y[:, -1:] + lam.head[:, :1], lam.head[:, 1:]], 1
        )
        d_near = einsum("bmd,bkd->bmk", lam_y, x)
        d_x = einsum("bmk,bmd->bkd", near, lam_y)
        d_far, d_stack = _move_transpose(far, stack, lam.rest)
        first = d_x[:, size : 2 * size + top]
        d_stack = d_stack._replace(head=d_stack.head + first)
        if stack.rest.shape[2]:
            second = d_x[:, 2 * size + top :]
            d_stack = d_stack._replace(rest=d_stack.rest.at[:, :, 0].add(second))
        d_forget = None
        if forget is not None:
            d_forget, d_stack = _forget_transpose(forget, stack, lam, d_stack, bounded)
        gradient = _put(gradient, index, d_x[:, :size])
        return (d_stack, gradient), (d_near, d_far, d_forget)

    cotangent, lam = cotangents
    carry = (_varying(lam, values), cotangent)
    gradients = []
    phases = _phases(matrices, initial, limit, after)
    for phase, saved in zip(reversed(phases), reversed(stacks), strict=True):
        carry = (_resize(carry[0], phase.blocks), carry[1])
        step = functools.partial(body, bounded=_bounded(matrices, phase, limit))
        carry, gradient = _scan(step, carry, matrices, phase, saved, reverse=True)
        gradients.append(gradient)
    joined = jax.tree.map(lambda *parts: jnp.concatenate(parts), *reversed(gradients))
    d_initial = None
    if initial is not None:
        d_initial = _resize(carry[0], initial.rest.shape[2])
    return ChunkMatrices(*joined), carry[1], d_initial


scan_chunks.defvjp(_scan_chunks_fwd, _scan_chunks_bwd)


def _varying(tree, other):
    return jax.tree.map(lambda array: varying_like(array, other), tree)


def _scan(body, carry, matrices, phase, saved=None, reverse=False):
    def part(array):
        return array[phase.start : phase.stop]

    inputs = (jnp.arange(phase.start, phase.stop), *jax.tree.map(part, matrices))
    inputs = inputs if saved is None else (inputs, saved)
    return jax.lax.scan(body, carry, inputs, reverse=reverse)


def _near_inputs(stack, values):
    if stack.rest.shape[2]:
        following = stack.rest[:, :, 0]
    else:
        following = jnp.zeros_like(values)
    return jnp.concatenate([values, stack.head, following], 1)


def _move(far, stack):
    """The blocks of the new stack: each takes from three of the old one."""
    batch, size, blocks, features = stack.rest.shape
    if not blocks:
        return stack.rest
    moved = einsum("bmk,bkd->bmd", far, _windows(stack))
    return moved.reshape(batch, size, blocks, features)


def _windows(stack):
    above = jnp.concatenate(
        [stack.head[:, -stack.rest.shape[1] :, None], stack.rest[:, :, :-1]], 2
    )
    below = jnp.pad(stack.rest[:, :, 1:], ((0, 0), (0, 0), (0, 1), (0, 0)))
    return _side_by_side(above, stack.rest, below)


def _side_by_side(*parts):
    """(B, b, blocks, D) each, stacked along b and flat behind it."""
    windows = jnp.concatenate(parts, 1)
    return windows.reshape(*windows.shape[:2], -1)


def _move_transpose(far, stack, lam):
    """The gradients of `_move`, from the cotangent `lam` of the new blocks.

    Block i of the old stack goes into blocks i + 1, i and i - 1 of the new one: three
    neighbours of `lam`, laid side by side, serve both products.
    """
    batch, size, blocks, features = stack.rest.shape
    if not blocks:
        return jnp.zeros_like(far), Stack(jnp.zeros_like(stack.head), lam)
    after = jnp.pad(lam[:, :, 1:], ((0, 0), (0, 0), (0, 1), (0, 0)))
    before = jnp.pad(lam[:, :, :-1], ((0, 0), (0, 0), (1, 0), (0, 0)))
    windows = _side_by_side(after, lam, before)
    parts = far.reshape(batch, size, 3, size)
    transposed = parts.transpose(0, 3, 2, 1).reshape(batch, size, 3 * size)
    rest = einsum("bkm,bmd->bkd", transposed, windows).reshape(stack.rest.shape)
    flat = stack.rest.reshape(batch, size, blocks * features)
    d_parts = einsum("bmd,bkd->bmk", windows, flat).reshape(batch, 3, size, size)
    # The block above the first is the end of the head.
    first = lam[:, :, 0]
    d_above = einsum("bmd,bkd->bmk", first, stack.head[:, -size:])
    d_far = d_parts.at[:, 0].add(d_above).transpose(0, 2, 1, 3)
    head = einsum("bmk,bmd->bkd", parts[:, :, 0], first)
    head = jnp.pad(head, ((0, 0), (stack.head.shape[1] - size, 0), (0, 0)))
    return d_far.reshape(far.shape), Stack(head, rest)


def _bounded(matrices, phase, limit):
    return matrices.forget is not None and phase.blocks == max(limit - 1, 0)


def _lowest(stack, size):
    return stack.rest[:, :, -1] if stack.rest.shape[2] else stack.head[:, -size:]


def _add_lowest(stack, change):
    if stack.rest.shape[2]:
        return stack._replace(rest=stack.rest.at[:, :, -1].add(change))
    return stack._replace(head=stack.head.at[:, -change.shape[1] :].add(change))


def _forget(forget, old, new):
    change = einsum("bmk,bkd->bmd", forget, _lowest(old, forget.shape[-1]))
    return _add_lowest(new, -change)


def _forget_transpose(forget, stack, lam, d_stack, bounded):
    if not bounded:
        return jnp.zeros_like(forget), d_stack
    size = forget.shape[-1]
    lam = -_lowest(lam, size)
    d_forget = einsum("bmd,bkd->bmk", lam, _lowest(stack, size))
    return d_forget, _add_lowest(d_stack, einsum("bmk,bmd->bkd", forget, lam))


def _resize(stack, blocks):
    have = stack.rest.shape[2]
    rest = stack.rest[:, :, :blocks]
    return stack._replace(
        rest=jnp.pad(rest, ((0, 0), (0, 0), (0, max(blocks - have, 0)), (0, 0)))
    )


def _take(array, index, size):
    return jax.lax.dynamic_slice_in_dim(array, index * size, size, axis=1)


def _put(array, index, part):
    return jax.lax.dynamic_update_slice_in_dim(
        array, part, index * part.shape[1], axis=1
    )
