"""Stack attention as one `lax.scan` over positions that carries the matrix.

The gradient is a custom VJP: alpha alone determines every intermediate value, so
the backward pass keeps O(N²) where autodiff through the scan would keep one
matrix for each step, O(N³). The derivation is in `README.md` of this folder.
"""

import jax
import jax.numpy as jnp


def stack_attention_weights_scan(actions: jax.Array) -> jax.Array:
    """Computes alpha, shape (..., T, T), of actions, shape (..., T, 3)."""
    return jnp.vectorize(_weights, signature="(t,a)->(t,t)")(actions)


def _pop_weights(top: jax.Array) -> jax.Array:
    """The row vector u for which a pop is u @ alpha: u_{j-1} = top_j, u_0 += top_0."""
    return jnp.roll(top, -1).at[-1].set(0.0).at[0].add(top[0])


def _pop_weights_transpose(u: jax.Array) -> jax.Array:
    return jnp.roll(u, 1).at[0].set(u[0])


@jax.custom_vjp
def _weights(actions: jax.Array) -> jax.Array:
    length = actions.shape[0]
    positions = jnp.arange(length)

    def step(alpha, inputs):
        i, (push, pop, noop) = inputs
        previous = alpha[i - 1]
        row = (
            push * (positions == i)
            + pop * (_pop_weights(previous) @ alpha)
            + noop * previous
        )
        return alpha.at[i].set(row), None

    alpha = jnp.zeros((length, length), actions.dtype).at[0, 0].set(1.0)
    alpha, _ = jax.lax.scan(step, alpha, (positions[1:], actions[1:]))
    return alpha


def _weights_fwd(actions):
    alpha = _weights(actions)
    return alpha, (actions, alpha)


def _weights_bwd(residuals, cotangent):
    actions, alpha = residuals
    length = alpha.shape[0]
    # pulled[k, j] = o_k u_k(j): how much row k took from row j through its pop.
    pulled = jnp.pad(jax.vmap(_pop_weights)(alpha[:-1]), ((1, 0), (0, 0)))
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
            [lam_i[i], _pop_weights(previous) @ through_pop, previous @ lam_i]
        )
        from_i = noop * lam_i + pop * _pop_weights_transpose(through_pop)
        return (lam.at[i].set(lam_i), from_i), gradient

    rows = (jnp.arange(1, length), actions[1:], pulled[1:], cotangent[1:])
    start = (jnp.zeros_like(alpha), jnp.zeros_like(alpha[0]))
    _, gradient = jax.lax.scan(step, start, rows, reverse=True)
    return (jnp.pad(gradient, ((1, 0), (0, 0))),)


_weights.defvjp(_weights_fwd, _weights_bwd)
