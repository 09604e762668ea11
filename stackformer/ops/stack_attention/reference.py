"""Stack attention as the paper writes it: the specification, never fast.

Li, White, Sachan and Cotterell (2024), "A Transformer with Stack Attention",
section 3.2. Every other form in this folder is compared with this one.
"""

import jax
import jax.numpy as jnp

from stackformer.ops.stack_attention.form import (
    STATES,
    Form,
    Options,
    with_first,
)


def stack_attention_weights_reference(
    actions: jax.Array, *, max_pops: int = 1, starts: jax.Array | None = None
) -> jax.Array:
    """Computes alpha by a Python loop over positions.

    Args:
      actions: action probabilities, shape (..., T, 2 + max_pops), in the order
        push, pop, no-op, pop 2, pop 3, ...
      max_pops: the largest number of elements that one step can pop; 1 is the
        paper's stack.
      starts: True where a string of its own begins, shape (..., T); position 0 always
        is one. A start is the bottom of its string: a push that no pop removes.

    Returns:
      alpha, shape (..., T, T); row i is the distribution of the stack's top after
      step i over the positions 0..i.
    """
    length = actions.shape[-2]
    starts = with_first(starts, actions.shape[:-1])
    alpha = jnp.zeros((*actions.shape[:-1], length), actions.dtype)
    alpha = alpha.at[..., 0, 0].set(1.0)  # alpha_0 attends to BOS: the empty stack

    for i in jnp.arange(1, length):

        def pop(top: jax.Array, alpha: jax.Array = alpha) -> jax.Array:
            # What lies under element j is what was on top just before j was pushed,
            # alpha_{j-1}; a pop on the empty stack changes nothing: the bottom, where
            # a string starts, stays. (The paper has one string, and sums j = 1..i-1;
            # beyond that `top` is zero.)
            bottom, element = jnp.where(starts, top, 0.0), jnp.where(starts, 0.0, top)
            below = jnp.einsum("...j,...jn->...n", element[..., 1:], alpha[..., :-1, :])
            return below + bottom

        push = jnp.zeros_like(alpha[..., 0, :]).at[..., i].set(1.0)
        noop = alpha[..., i - 1, :]
        popped = pop(noop)
        a = actions[..., i, :]
        row = a[..., 0:1] * push + a[..., 1:2] * popped + a[..., 2:3] * noop
        for k in range(2, max_pops + 1):
            popped = pop(popped)
            row = row + a[..., k + 1 : k + 2] * popped
        row = jnp.where(starts[..., i, None], push, row)
        alpha = alpha.at[..., i, :].set(row)

    return alpha


def _refuses(length: int, options: Options) -> str | None:
    del length
    return options.unsupported("chunk_size", "max_depth", *STATES)


def _weights_of(
    actions: jax.Array, options: Options, starts: jax.Array | None = None
) -> jax.Array:
    return stack_attention_weights_reference(
        actions, max_pops=options.max_pops, starts=starts
    )


FORM = Form(refuses=_refuses, weights_of=_weights_of, longest=81)
