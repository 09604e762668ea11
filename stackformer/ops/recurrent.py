"""Stack attention one position at a time: a superposition stack of values.

What a decoder needs: the state holds the top H elements, whatever was read before.
"""

import jax
import jax.numpy as jnp


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
    state = jnp.concatenate([new, bottom], axis=-2)
    return state, new[..., 0, :].astype(value.dtype)
