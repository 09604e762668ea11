"""Stack attention one position at a time: a superposition stack of values.

What a decoder needs: the state holds the top H elements, whatever was read before.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from stackformer.checks import check_count
from stackformer.ops.stack_attention.form import Form, Options


def stack_attention_recurrent(
    actions: jax.Array,
    values: jax.Array,
    *,
    max_depth: int | None = None,
    max_pops: int = 1,
    starts: jax.Array | None = None,
    initial_state: jax.Array | None = None,
    return_state: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """Runs `stack_step` over all positions.

    The gradient keeps the stack at about sqrt(N) positions and computes the others
    again.

    Args:
      actions: probabilities, shape (..., T, 2 + max_pops).
      values: shape (..., T, D).
      max_depth: the number of elements that the stack remembers. None: as many as
        there can be elements that later steps can still reach.
      max_pops: the largest number of elements that one step can pop.
      starts: True where a string of its own begins, shape (..., T), or None.
      initial_state: the stack before position 0, shape (..., H + 1, D); None: position
        0 is the bottom.
      return_state: return the stack after the last position.

    Returns:
      The tops, shape (..., T, D), and the stack or None.
    """
    length = values.shape[-2]
    if initial_state is None:
        first, bottom = 1, values[..., 0, :]
        depth = reachable_depth(length, max_depth=max_depth, max_pops=max_pops)
        if return_state:
            depth = state_depth(length, max_depth)
        state = init_stack_state(bottom, depth)
    else:
        first = 0
        depth = state_depth(length, max_depth, initial_state.shape[-2] - 1)
        state = resize_stack_state(initial_state, depth)

    step: Any = functools.partial(_one_of_one, max_pops=max_pops)
    if starts is not None:
        # How much of an element is the string's bottom is then kept as a number beside
        # it: a start empties the stack by a product with zero, and only these numbers
        # and the bottom are chosen. A choice of elements takes a third longer.
        elements, bottom = state[..., :-1, :], state[..., -1:, :]
        state = elements, jnp.zeros_like(state[..., :1]).at[..., -1:, :].set(1), bottom
        step = functools.partial(_one_of_several, max_pops=max_pops)

    @jax.checkpoint
    def part(state, inputs):
        return jax.lax.scan(step, state, inputs)

    arrays = [actions, values] + ([] if starts is None else [starts[..., None]])
    inputs = tuple(jnp.moveaxis(x[..., first:, :], -2, 0) for x in arrays)
    steps = length - first
    size = max(math.isqrt(steps), 1)
    whole = steps - steps % size
    parts = tuple(x[:whole].reshape(-1, size, *x.shape[1:]) for x in inputs)
    state, tops = jax.lax.scan(part, state, parts)
    state, last = part(state, tuple(x[whole:] for x in inputs))
    tops = jnp.concatenate([tops.reshape(whole, *last.shape[1:]), last])
    tops = jnp.moveaxis(tops, 0, -2)
    tops = jnp.concatenate([values[..., :first, :], tops], axis=-2)
    if not return_state:
        return tops, None
    if starts is not None:
        elements, share, bottom = state
        rest = jnp.zeros_like(bottom)
        state = jnp.concatenate([elements, rest], axis=-2) + share * bottom
    return tops, state


def _one_of_one(
    state: jax.Array, inputs: tuple[jax.Array, ...], *, max_pops: int
) -> tuple[jax.Array, jax.Array]:
    """A step of `lax.scan` over the positions of one string."""
    actions, value = inputs
    return stack_step(state, actions, value, max_pops=max_pops)


def _one_of_several(
    state: tuple[jax.Array, ...], inputs: tuple[jax.Array, ...], *, max_pops: int
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """The same where strings follow each other.

    The state: elements (..., H, D) but for the bottom's share in them, that share
    (..., H + 1, 1), also in what lies below, and the bottom (..., 1, D).
    """
    elements, share, bottom = state
    actions, value, start = inputs
    raised = value.astype(bottom.dtype)[..., None, :]
    weights = actions.astype(bottom.dtype)[..., None]
    weights = jnp.where(start[..., None], 0.0, weights)
    elements = _moved(elements, jnp.zeros_like(bottom), weights, raised, max_pops)
    share, below = share[..., :-1, :], share[..., -1:, :]
    share = _moved(share, below, weights, jnp.zeros_like(below), max_pops)
    below = below * weights.sum(-2, keepdims=True)
    share = jnp.concatenate([share, below], axis=-2)
    share = jnp.where(start[..., None], 1.0, share)
    bottom = jnp.where(start[..., None], raised, bottom)
    top = elements[..., 0, :] + share[..., 0, :] * bottom[..., 0, :]
    return (elements, share, bottom), top.astype(value.dtype)


def state_depth(
    length: int, max_depth: int | None, initial_depth: int | None = None
) -> int:
    """Elements H of the state that `stackformer.stack_attention` returns.

    `max_depth`, or where it is None all that there can be after `length` positions.

    Example:
      >>> state_depth(5, None), state_depth(5, None, 4), state_depth(5, 3, 4)
      (4, 9, 3)
    """
    if max_depth is not None:
        return max_depth
    return max(length - 1, 1) if initial_depth is None else initial_depth + length


def reachable_depth(
    length: int, *, max_depth: int | None = None, max_pops: int = 1
) -> int:
    """Elements that a stack must remember over `length` positions.

    After i steps there are at most i elements, and the N - i steps that remain reach
    `max_pops` (N - i) of them: what lies deeper can never come back to the top.

    Example:
      >>> reachable_depth(9)
      5
    """
    depth = (length - 1) * max_pops // (max_pops + 1) + 1
    return depth if max_depth is None else min(depth, max_depth)


def init_stack_state(bottom: jax.Array, depth: int) -> jax.Array:
    """The empty stack.

    Args:
      bottom: what an empty stack reads, the value of position 0, shape (..., D).
      depth: the number of elements H that the stack remembers. An element pushed
        deeper is forgotten: the bottom stands in its place.

    Returns:
      The state, shape (..., H + 1, D) in float32: the expected elements from the top
      down, and the bottom as the last row.

    Example:
      >>> import jax.numpy as jnp
      >>> from stackformer.ops import init_stack_state, stack_step
      >>> state = init_stack_state(jnp.zeros(1), depth=4)
      >>> push, pop = jnp.array([1.0, 0.0, 0.0]), jnp.array([0.0, 1.0, 0.0])
      >>> state, top = stack_step(state, push, jnp.array([5.0]))
      >>> state, top = stack_step(state, push, jnp.array([7.0]))
      >>> state, top = stack_step(state, pop, jnp.array([9.0]))
      >>> top.item()
      5.0
    """
    check_count("depth", depth)
    bottom = bottom.astype(jnp.promote_types(bottom.dtype, jnp.float32))
    shape = (*bottom.shape[:-1], depth + 1, bottom.shape[-1])
    return jnp.broadcast_to(bottom[..., None, :], shape)


def resize_stack_state(state: jax.Array, depth: int) -> jax.Array:
    """The same stack, of which `depth` elements are remembered.

    Args:
      state: shape (..., H + 1, D).
      depth: the new H; with fewer than before the lowest elements are forgotten, with
        more there is room for what is to be pushed.

    Example:
      >>> state = init_stack_state(jnp.zeros(2), depth=4)
      >>> resize_stack_state(state, 6).shape, resize_stack_state(state, 1).shape
      ((7, 2), (2, 2))
    """
    elements, bottom = state[..., :-1, :], state[..., -1:, :]
    missing = max(depth - elements.shape[-2], 0)
    rows = jnp.repeat(bottom, missing + 1, axis=-2)
    return jnp.concatenate([elements[..., :depth, :], rows], axis=-2)


def stack_step(
    state: jax.Array, actions: jax.Array, value: jax.Array, *, max_pops: int = 1
) -> tuple[jax.Array, jax.Array]:
    """Executes one position's actions.

      state'[k] = push state[k-1] + no-op state[k] + pop state[k+1],  state[-1] = value

    Args:
      state: the stack, shape (..., H + 1, D), from `init_stack_state`.
      actions: probabilities, shape (..., 2 + max_pops).
      value: what a push puts on top, shape (..., D).
      max_pops: the largest number of elements that one step can pop.

    Returns:
      The new state, and its top, shape (..., D), the dtype of `value`.
    """
    if actions.shape[-1] != max_pops + 2:
        raise ValueError(
            f"`actions` shape should be (..., {max_pops + 2}), but got {actions.shape}."
        )
    if state.shape[-1] != value.shape[-1]:
        raise ValueError(
            f"`value` shape should be (..., {state.shape[-1]}) as the state's, but got "
            f"{value.shape}."
        )
    weights = actions.astype(state.dtype)[..., None]
    elements, bottom = state[..., :-1, :], state[..., -1:, :]
    raised = value.astype(state.dtype)[..., None, :]
    new = _moved(elements, bottom, weights, raised, max_pops)
    # Probabilities that do not sum to one weigh the bottom as any other element.
    bottom = bottom * weights.sum(-2, keepdims=True)
    state = jnp.concatenate([new, bottom], axis=-2)
    return state, new[..., 0, :].astype(value.dtype)


def _moved(
    elements: jax.Array,
    bottom: jax.Array,
    weights: jax.Array,
    value: jax.Array,
    max_pops: int,
) -> jax.Array:
    """The elements (..., H, D) after a step with weights (..., 2 + max_pops, 1)."""
    pushed = jnp.concatenate([value, elements[..., :-1, :]], axis=-2)
    new = weights[..., :1, :] * pushed + weights[..., 2:3, :] * elements
    popped = elements
    for k in range(1, max_pops + 1):
        popped = jnp.concatenate([popped[..., 1:, :], bottom], axis=-2)
        index = 1 if k == 1 else k + 1
        new = new + weights[..., index : index + 1, :] * popped
    return new


def _refuses(length: int, options: Options) -> str | None:
    del length
    return options.unsupported("chunk_size")


def _attend_to(
    actions: jax.Array,
    values: jax.Array,
    options: Options,
    starts: jax.Array | None = None,
    initial_state: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    return stack_attention_recurrent(
        actions,
        values,
        max_depth=options.max_depth,
        max_pops=options.max_pops,
        starts=starts,
        initial_state=initial_state,
        return_state=options.return_state,
    )


FORM = Form(refuses=_refuses, attend_to=_attend_to, longest=513)
