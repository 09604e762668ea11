"""What the fused kernels do in a chunk of K steps; the same on a TPU and on a GPU.

A stack is a reference of shape (slots, rows, D). In a slot, row 0 is the value that the
step may push, rows 1..H are the elements from the top down, row H + 1 is the bottom;
rows beyond are padding. A step reads one slot and writes another:

    new[k] = push old[k-1] + no-op old[k] + pop old[k+1]     k = 1..H
    new[H+1] = (push + no-op + pop) old[H+1]

Where strings begin within a row there is a fourth number, the reset: it is 1 at a first
position, whose other numbers are 0, and adds the value to all elements and the bottom.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

Ref = Any


@dataclasses.dataclass(frozen=True)
class Plan:
    """Sizes of a kernel.

    Attributes:
      depth: H.
      steps: K of a chunk, even.
      chunks: C.
      block: rows that are moved at once.
      blocks: how many of these there are; block * blocks >= H + 1.
      barrier: makes what all threads wrote visible to all; nothing on a TPU.
      numbers: of a step, push, pop, no-op, and the reset where there are 4.
    """

    depth: int
    steps: int
    chunks: int
    block: int
    blocks: int
    barrier: Callable[[], None]
    numbers: int

    @property
    def rows(self) -> int:
        return self.block * self.blocks + 2

    def for_blocks(self, body: Callable[[Any, Any], Any], carry: Any) -> Any:
        """`carry = body(first row, carry)` for each block of rows."""
        if self.blocks == 1:
            return body(0, carry)
        return jax.lax.fori_loop(
            0, self.blocks, lambda i, carry: body(i * self.block, carry), carry
        )

    def depths(self, first: Any, features: int) -> jax.Array:
        """k of the rows first + 1 .. first + block."""
        iota = jax.lax.broadcasted_iota(jnp.int32, (self.block, features), 0)
        return iota + (first + 1)


def fill(plan: Plan, stack: Ref, slot: int, row: jax.Array) -> None:
    """Writes one row (1, D) into the elements of a slot."""
    shape = (plan.block, row.shape[-1])

    def write(first, carry):
        stack[slot, pl.ds(first + 1, plan.block), :] = jnp.broadcast_to(row, shape)
        return carry

    plan.for_blocks(write, 0)
    stack[slot, pl.ds(0, 1), :] = row
    stack[slot, pl.ds(plan.rows - 1, 1), :] = row
    plan.barrier()


def copy(plan: Plan, source: Ref, at: Any, target: Ref, to: Any) -> None:
    """Copies the elements of a slot."""

    def move(first, carry):
        rows = pl.ds(first + 1, plan.block)
        target[to, rows, :] = source[at, rows, :]
        return carry

    plan.for_blocks(move, 0)
    plan.barrier()


def actions_of(plan: Plan, actions: Ref, chunk: Any, j: Any) -> tuple[Any, ...]:
    """The A numbers of local step j, from a reference (C, A K)."""
    first = plan.numbers * j
    return tuple(actions[chunk, first + a] for a in range(plan.numbers))


def step(plan: Plan, stack: Ref, old: Any, new: Any, action: Any, value: Any) -> None:
    """One step, from slot `old` to slot `new`."""
    push, pop, noop, *reset = action
    stack[old, pl.ds(0, 1), :] = value
    plan.barrier()

    def move(first, carry):
        above, here, below = _neighbours(plan, stack, old, first)
        mixed = push * above + noop * here + pop * below
        kept = (push + noop + pop) * here
        inside = plan.depths(first, here.shape[-1]) <= plan.depth
        moved = jnp.where(inside, mixed, kept)
        rows = pl.ds(first + 1, plan.block)
        stack[new, rows, :] = moved + reset[0] * value if reset else moved
        return carry

    plan.for_blocks(move, 0)
    plan.barrier()


def step_back(
    plan: Plan, stack: Ref, at: Any, lam: Ref, old: Any, new: Any, action: Any, d_top
) -> tuple[tuple[Any, ...], jax.Array]:
    """The transpose of a step that read slot `at` of `stack`.

    `lam` holds the cotangents of the elements after the step in slot `old`; those
    before it are written to slot `new`.

    Returns:
      The gradients of the step's numbers (zero for the reset, which is given) and of
      the value.
    """
    push, pop, noop, *reset = action
    first_row = pl.ds(1, 1)
    lam[old, first_row, :] = lam[old, first_row, :] + d_top
    plan.barrier()

    def move(first, carry):
        above, here, below = _neighbours(plan, lam, old, first)
        k = plan.depths(first, here.shape[-1])
        inside = k <= plan.depth
        bottom = jnp.where(k == plan.depth + 1, here, 0.0)
        from_here = jnp.where(inside, here, 0.0)
        from_above = jnp.where((k >= 2) & (k <= plan.depth + 1), above, 0.0)
        from_below = jnp.where(k < plan.depth, below, 0.0)
        change = push * from_below + noop * from_here + pop * from_above
        change = change + (push + noop + pop) * bottom
        lam[new, pl.ds(first + 1, plan.block), :] = change
        old_above, old_here, old_below = _neighbours(plan, stack, at, first)
        edge = jnp.sum(bottom * old_here)
        d_push, d_pop, d_noop = carry
        return (
            d_push + jnp.sum(from_here * old_above) + edge,
            d_pop + jnp.sum(jnp.where(inside, here * old_below, 0.0)) + edge,
            d_noop + jnp.sum(from_here * old_here) + edge,
        )

    zero = jnp.zeros((), lam.dtype)
    gradients = plan.for_blocks(move, (zero, zero, zero))
    d_value = push * lam[old, first_row, :]
    if reset:
        gradients = (*gradients, zero)
        d_value += reset[0] * column_sum(plan, lam, old, d_top.shape[-1])
    plan.barrier()
    return gradients, d_value


def column_sum(plan: Plan, lam: Ref, slot: Any, features: int) -> jax.Array:
    """The sum of the elements and the bottom, shape (1, D)."""

    def add(first, total):
        rows = lam[slot, pl.ds(first + 1, plan.block), :]
        k = plan.depths(first, features)
        rows = jnp.where(k <= plan.depth + 1, rows, 0.0)
        return total + jnp.sum(rows, axis=0, keepdims=True)

    return plan.for_blocks(add, jnp.zeros((1, features), lam.dtype))


def forward_chunk(
    plan: Plan, actions: Ref, values: Ref, tops: Ref, work: Ref, chunk: Any
) -> None:
    """K steps on two slots; begins and ends in slot 0."""

    def body(j, carry):
        here = pl.ds(chunk * plan.steps + j, 1)
        old = j & 1
        new = 1 - old
        action = actions_of(plan, actions, chunk, j)
        step(plan, work, old, new, action, values[here, :])
        tops[here, :] = work[new, pl.ds(1, 1), :]
        return carry

    jax.lax.fori_loop(0, plan.steps, body, 0)


def backward_chunk(
    plan: Plan,
    actions: Ref,
    values: Ref,
    d_tops: Ref,
    d_actions: Ref,
    d_values: Ref,
    work: Ref,
    lam: Ref,
    chunk: Any,
) -> None:
    """The transpose of K steps; slot 0 of `work` holds the stack before the first."""

    def again(j, carry):
        value = values[pl.ds(chunk * plan.steps + j, 1), :]
        step(plan, work, j, j + 1, actions_of(plan, actions, chunk, j), value)
        return carry

    last = plan.steps - 1
    jax.lax.fori_loop(0, last, again, 0)
    work[last, pl.ds(0, 1), :] = values[pl.ds(chunk * plan.steps + last, 1), :]
    plan.barrier()

    def body(i, carry):
        j = last - i
        here = pl.ds(chunk * plan.steps + j, 1)
        gradients, d_value = step_back(
            plan,
            work,
            j,
            lam,
            i & 1,
            1 - (i & 1),
            actions_of(plan, actions, chunk, j),
            d_tops[here, :],
        )
        for a, gradient in enumerate(gradients):
            d_actions[chunk, plan.numbers * j + a] = gradient
        d_values[here, :] = d_value
        return carry

    jax.lax.fori_loop(0, plan.steps, body, 0)


def _neighbours(plan: Plan, ref: Ref, slot: Any, first: Any) -> tuple[Any, Any, Any]:
    """Rows k - 1, k and k + 1 for the block k = first + 1 .. first + block."""
    above, here, below = (
        ref[slot, pl.ds(first + offset, plan.block), :] for offset in range(3)
    )
    return above, here, below
