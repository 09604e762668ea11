"""Stack attention as one `lax.scan` over positions that carries the matrix.

The gradient is a custom VJP: alpha alone determines every intermediate value, so
the backward pass keeps O(N²) where autodiff through the scan would keep one
matrix for each step, O(N³). The derivation is in `README.md` of this folder.
"""

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from stackformer.ops.stack_attention.form import (
    STATES,
    Form,
    Options,
    with_first,
)
from stackformer.ops.stack_attention.sharding import varying_like


def stack_attention_weights_scan(
    actions: jax.Array, starts: jax.Array | None = None
) -> jax.Array:
    """Computes alpha, shape (..., T, T).

    Args:
      actions: probabilities, shape (..., T, 3).
      starts: True where a string of its own begins, shape (..., T), or None.
    """
    starts = with_first(starts, actions.shape[:-1])
    # The bottom of a string is pushed, whatever lay there before.
    push = jax.nn.one_hot(0, 3, dtype=actions.dtype)
    push = push.reshape((1,) * (actions.ndim - 1) + (3,))
    actions = jnp.where(starts[..., None], push, actions)
    fixed = starts.astype(actions.dtype)
    return jnp.vectorize(_weights, signature="(t,a),(t)->(t,t)")(actions, fixed)


def _pop_weights(top: jax.Array, fixed: jax.Array) -> jax.Array:
    """The row vector u for which a pop is u @ alpha.

    u_{j-1} += top_j for an element j, and u_j += top_j where j is a bottom (`fixed`).
    """
    return jnp.roll(top * (1.0 - fixed), -1) + top * fixed


def _pop_weights_transpose(u: jax.Array, fixed: jax.Array) -> jax.Array:
    return jnp.roll(u, 1) * (1.0 - fixed) + u * fixed


def _row_major(matrix: jax.Array) -> jax.Array:
    """Keeps the strings of a batch apart in memory.

    Otherwise XLA makes them the last axis on a TPU, where that is padded to 128: two
    strings then take the memory of 128.
    """
    return with_layout_constraint(matrix, Layout(major_to_minor=(0, 1)))


def _forward(actions: jax.Array, fixed: jax.Array) -> jax.Array:
    length = actions.shape[0]
    positions = jnp.arange(length)

    def step(alpha, inputs):
        i, (push, pop, noop) = inputs
        previous = alpha[i - 1]
        row = (
            push * (positions == i)
            + pop * (_pop_weights(previous, fixed) @ alpha)
            + noop * previous
        )
        return alpha.at[i].set(row), None

    alpha = jnp.zeros((length, length), actions.dtype).at[0, 0].set(1.0)
    alpha = varying_like(alpha, actions)
    alpha, _ = jax.lax.scan(step, alpha, (positions[1:], actions[1:]))
    return alpha


_weights = jax.custom_vjp(_forward)


def _weights_fwd(actions, fixed):
    # Not `_weights`: this is differentiated again by a Hessian.
    alpha = _forward(actions, fixed)
    return alpha, (actions, fixed, alpha)


def _weights_bwd(residuals, cotangent):
    actions, fixed, alpha = residuals
    length = alpha.shape[0]
    # pulled[k, j] = o_k u_k(j): how much row k took from row j through its pop.
    pulled = jax.vmap(_pop_weights, in_axes=(0, None))(alpha[:-1], fixed)
    pulled = jnp.pad(pulled, ((1, 0), (0, 0)))
    pulled = (pulled * actions[:, 1, None]).T

    def step(carry, inputs):
        # Rows above i of `lam` are complete cotangents, the others still zero;
        # `from_next` is what row i + 1 sends to row i as its predecessor.
        lam, from_next = carry
        i, (_, pop, noop), pulled_i, cotangent_i = inputs
        lam_i = cotangent_i + from_next + pulled_i @ lam
        previous = alpha[i - 1]
        through_pop = alpha @ lam_i
        gradient = jnp.stack(
            [lam_i[i], _pop_weights(previous, fixed) @ through_pop, previous @ lam_i]
        )
        from_i = noop * lam_i + pop * _pop_weights_transpose(through_pop, fixed)
        return (_row_major(lam.at[i].set(lam_i)), from_i), gradient

    pulled, cotangent = _row_major(pulled), _row_major(cotangent)
    rows = (jnp.arange(1, length), actions[1:], pulled[1:], cotangent[1:])
    zeros = varying_like(jnp.zeros_like(alpha), alpha)
    start = (zeros, zeros[0])
    _, gradient = jax.lax.scan(step, start, rows, reverse=True)
    return jnp.pad(gradient, ((1, 0), (0, 0))), jnp.zeros_like(fixed)


_weights.defvjp(_weights_fwd, _weights_bwd)


def _refuses(length: int, options: Options) -> str | None:
    del length
    return options.unsupported("chunk_size", "max_depth", "max_pops", *STATES)


def _weights_of(
    actions: jax.Array, options: Options, starts: jax.Array | None = None
) -> jax.Array:
    del options
    return stack_attention_weights_scan(actions, starts)


FORM = Form(refuses=_refuses, weights_of=_weights_of, longest=513, forward_mode=False)
