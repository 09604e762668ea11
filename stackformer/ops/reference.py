"""Stack attention as the paper writes it: the specification, never fast.

Li, White, Sachan and Cotterell (2024), "A Transformer with Stack Attention",
section 3.2. Every other form in this folder is compared with this one.
"""

import jax
import jax.numpy as jnp


def stack_attention_weights_reference(
    actions: jax.Array, *, max_pops: int = 1
) -> jax.Array:
    """Computes alpha by a Python loop over positions.

    Args:
      actions: action probabilities, shape (..., T, 2 + max_pops), in the order
        push, pop, no-op, pop 2, pop 3, ...
      max_pops: the largest number of elements that one step can pop; 1 is the
        paper's stack.

    Returns:
      alpha, shape (..., T, T); row i is the distribution of the stack's top after
      step i over the positions 0..i.
    """
    length = actions.shape[-2]
    alpha = jnp.zeros((*actions.shape[:-1], length), actions.dtype)
    alpha = alpha.at[..., 0, 0].set(1.0)  # alpha_0 attends to BOS: the empty stack

    for i in jnp.arange(1, length):

        def pop(top: jax.Array, alpha: jax.Array = alpha) -> jax.Array:
            # What lies under element j is what was on top just before j was pushed,
            # alpha_{j-1}; a pop on the empty stack changes nothing. (The paper sums
            # j = 1..i-1; beyond that `top` is zero.)
            below = jnp.einsum("...j,...jn->...n", top[..., 1:], alpha[..., :-1, :])
            return below + top[..., :1] * alpha[..., 0, :]

        push = jnp.zeros_like(alpha[..., 0, :]).at[..., i].set(1.0)
        noop = alpha[..., i - 1, :]
        popped = pop(noop)
        a = actions[..., i, :]
        row = a[..., 0:1] * push + a[..., 1:2] * popped + a[..., 2:3] * noop
        for k in range(2, max_pops + 1):
            popped = pop(popped)
            row = row + a[..., k + 1 : k + 2] * popped
        alpha = alpha.at[..., i, :].set(row)

    return alpha
