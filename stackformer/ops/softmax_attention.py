"""Softmax attention as a pure function with a gradient that keeps no T x S matrix.

Legend: B batch, N heads, T queries, S keys, H features of a head.
"""

import math

import jax
import jax.numpy as jnp

# Added to the logit of a forbidden key: exp of it is zero, and a row in which every key
# is forbidden stays finite.
FORBIDDEN = -1e30


def attention_weights(
    q: jax.Array, k: jax.Array, bias: jax.Array | None = None
) -> jax.Array:
    """softmax over keys of q . k / sqrt(H) + bias.

    Args:
      q: queries, shape (..., T, H).
      k: keys, shape (..., S, H).
      bias: additions to the logits, any shape that broadcasts to (..., T, S), any
        floating dtype; `FORBIDDEN` where a key is masked.

    Returns:
      Shape (..., T, S), float32.

    Example:
      >>> q = k = jnp.ones((1, 1, 2, 4))
      >>> bias = jnp.array([[[[0.0, FORBIDDEN]]]])
      >>> print(attention_weights(q, k, bias)[0, 0])
      [[1. 0.]
       [1. 0.]]
    """
    bias = _full_rank(bias, q.ndim)
    return jax.nn.softmax(_logits(q * _scale(q), k, bias), axis=-1)


@jax.custom_vjp
def softmax_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array | None = None
) -> jax.Array:
    """attention_weights(q, k, bias) @ v.

    The backward pass computes the weights again, laid out as (S, T), so that all but
    one of its products run along rows. With P the weights and delta_t = dout_t . out_t,

        dV = P^T dout,   dS = P (dout V^T - delta),   dQ = dS K,   dK = dS^T Q

    Args:
      q: queries, shape (B, N, T, H).
      k: keys, shape (B, N, S, H).
      v: values, shape (B, N, S, H).
      bias: as in `attention_weights`; it is differentiated too, and its gradient has
        its own shape and dtype.

    Returns:
      Shape (B, N, T, H), the dtype of v.

    Example:
      >>> q = k = v = jnp.ones((1, 1, 3, 4))
      >>> softmax_attention(q, k, v).shape
      (1, 1, 3, 4)
    """
    logits = _logits(q * _scale(q), k, _full_rank(bias, q.ndim))
    weights = jnp.exp(logits - logits.max(-1, keepdims=True))
    out = jnp.einsum(
        "bnts,bnsh->bnth",
        weights.astype(v.dtype),
        v,
        preferred_element_type=jnp.float32,
    )
    return (out / weights.sum(-1, keepdims=True)).astype(v.dtype)


def _forward(q, k, v, bias):
    out = softmax_attention(q, k, v, bias)
    return out, (q, k, v, bias, out)


def _backward(residuals, d_out):
    q, k, v, bias, out = residuals
    # The scale is on the keys here and on the queries above: with equal products XLA
    # would keep the logits of the forward pass, which is what this avoids.
    scaled_k = k * _scale(k)
    full = _full_rank(bias, q.ndim)
    transposed = None if full is None else full.swapaxes(-1, -2)
    weights = jax.nn.softmax(_logits(scaled_k, q, transposed), axis=-2)
    delta = jnp.einsum(
        "bnth,bnth->bnt", d_out, out, preferred_element_type=jnp.float32
    )[:, :, None, :]
    d_weights = jnp.einsum(
        "bnsh,bnth->bnst", v, d_out, preferred_element_type=jnp.float32
    )
    d_logits = weights * (d_weights - delta)
    d_bias = None if bias is None else _sum_to(d_logits.swapaxes(-1, -2), bias)
    weights, d_logits = weights.astype(v.dtype), d_logits.astype(q.dtype)
    d_v = jnp.einsum("bnst,bnth->bnsh", weights, d_out)
    d_k = jnp.einsum("bnst,bnth->bnsh", d_logits, q * _scale(q))
    d_q = jnp.einsum("bnst,bnsh->bnth", d_logits, scaled_k)
    return d_q, d_k, d_v, d_bias


softmax_attention.defvjp(_forward, _backward)


def _scale(x):
    return jnp.asarray(1.0 / math.sqrt(x.shape[-1]), x.dtype)


def _logits(rows, columns, bias):
    logits = jnp.einsum(
        "...th,...sh->...ts", rows, columns, preferred_element_type=jnp.float32
    )
    return logits if bias is None else logits + bias


def _full_rank(bias, ndim):
    """Writes the leading axes of size one down, for example (T, S) as (1, 1, T, S)."""
    if bias is None:
        return None
    return bias.reshape((1,) * (ndim - bias.ndim) + bias.shape)


def _sum_to(x, bias):
    """The gradient of the bias: sums over the axes along which it was repeated."""
    shape = (1,) * (x.ndim - bias.ndim) + bias.shape
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1 < x.shape[axis])
    return x.sum(axes, keepdims=True).reshape(bias.shape).astype(bias.dtype)
