"""Stack attention one position at a time: a superposition stack of values.

What a decoder needs: the state holds the top H elements, whatever was read before.
"""

import math

import jax
import jax.numpy as jnp


def stack_attention_recurrent(
    actions: jax.Array,
    values: jax.Array,
    *,
    max_depth: int | None = None,
    max_pops: int = 1,
) -> jax.Array:
    """Runs `stack_step` over all positions.

    The gradient keeps the stack at about sqrt(N) positions and computes the others
    again.

    Args:
      actions: probabilities, shape (..., T, 2 + max_pops).
      values: shape (..., T, D).
      max_depth: the number of elements that the stack remembers. None: as many as
        there can be elements that later steps can still reach.
      max_pops: the largest number of elements that one step can pop.

    Returns:
      The tops, shape (..., T, D).
    """
    steps = values.shape[-2] - 1
    # After i steps there are at most i elements; N - i steps reach max_pops (N - i).
    depth = max(steps * max_pops // (max_pops + 1) + 1, 1)
    depth = depth if max_depth is None else min(depth, max_depth)
    state = init_stack_state(values[..., 0, :], depth)

    def step(state, inputs):
        return stack_step(state, *inputs, max_pops=max_pops)

    @jax.checkpoint
    def segment(state, inputs):
        return jax.lax.scan(step, state, inputs)

    inputs = tuple(jnp.moveaxis(x[..., 1:, :], -2, 0) for x in (actions, values))
    length = max(math.isqrt(steps), 1)
    whole = steps - steps % length
    segments = tuple(x[:whole].reshape(-1, length, *x.shape[1:]) for x in inputs)
    state, tops = jax.lax.scan(segment, state, segments)
    _, last = segment(state, tuple(x[whole:] for x in inputs))
    tops = jnp.concatenate([tops.reshape(whole, *last.shape[1:]), last])
    return jnp.concatenate([values[..., :1, :], jnp.moveaxis(tops, 0, -2)], axis=-2)


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
    if depth < 1:
        raise ValueError(f"`depth` should be at least 1, but got {depth}.")
    bottom = bottom.astype(jnp.promote_types(bottom.dtype, jnp.float32))
    shape = (*bottom.shape[:-1], depth + 1, bottom.shape[-1])
    return jnp.broadcast_to(bottom[..., None, :], shape)


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
    pushed = jnp.concatenate(
        [value.astype(state.dtype)[..., None, :], state[..., :-2, :]], axis=-2
    )
    new = weights[..., :1, :] * pushed + weights[..., 2:3, :] * elements
    popped = state
    for k in range(1, max_pops + 1):
        popped = jnp.concatenate([popped[..., 1:, :], bottom], axis=-2)
        index = 1 if k == 1 else k + 1
        new = new + weights[..., index : index + 1, :] * popped[..., :-1, :]
    # Probabilities that do not sum to one weigh the bottom as any other element.
    bottom = bottom * weights.sum(-2, keepdims=True)
    state = jnp.concatenate([new, bottom], axis=-2)
    return state, new[..., 0, :].astype(value.dtype)
