"""Softmax attention: the fused function against plain autodiff, masks, dtypes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stackformer.nn.attention import MultiHeadAttention
from stackformer.ops.softmax_attention import (
    FORBIDDEN,
    attention_weights,
    softmax_attention,
)

SHAPE = (2, 3, 5, 4)  # B N T H


def inputs(keys=7):
    q, k, v = (
        jax.random.normal(jax.random.key(seed), (*SHAPE[:2], length, SHAPE[-1]))
        for seed, length in enumerate((SHAPE[2], keys, keys))
    )
    return q, k, v


def plain(q, k, v, bias):
    logits = jnp.einsum("bnth,bnsh->bnts", q, k) / math.sqrt(q.shape[-1])
    if bias is not None:
        logits = logits + bias
    weights = jnp.exp(logits) / jnp.exp(logits).sum(-1, keepdims=True)
    return jnp.einsum("bnts,bnsh->bnth", weights, v)


@pytest.mark.parametrize("bias_shape", [None, (1, 3, 5, 7), (2, 1, 1, 7), (2, 3, 5, 7)])
def test_output_and_every_gradient_equal_plain_autodiff(bias_shape):
    arguments = list(inputs())
    if bias_shape is not None:
        bias = jax.random.normal(jax.random.key(9), bias_shape)
        arguments.append(bias.at[..., 2].set(FORBIDDEN))

    def outcome(function):
        def loss(*arguments):
            out = function(*(arguments if bias_shape else (*arguments, None)))
            return jnp.sum(jnp.sin(out)), out

        numbers = tuple(range(len(arguments)))
        return jax.grad(loss, argnums=numbers, has_aux=True)(*arguments)

    gradients, out = outcome(softmax_attention)
    expected_gradients, expected = outcome(plain)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    for got, wanted in zip(gradients, expected_gradients, strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, atol=2e-5)


def test_huge_logits_and_rows_without_keys_stay_finite():
    q, k, v = inputs()
    bias = jnp.full((1, 1, 5, 7), FORBIDDEN).at[:, :, 1:].set(0.0)

    def loss(q, k, v):
        return jnp.sum(softmax_attention(q * 1e4, k, v, bias))

    for gradient in jax.grad(loss, argnums=(0, 1, 2))(q, k, v):
        assert np.all(np.isfinite(gradient))
    weights = attention_weights(q, k, bias)
    np.testing.assert_allclose(weights[:, :, 0], 1 / 7, atol=1e-6)


def test_bfloat16_products_accumulate_in_float32():
    q, k, v = inputs()
    low = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    out = softmax_attention(*low, None)
    assert out.dtype == jnp.bfloat16
    assert attention_weights(low[0], low[1]).dtype == jnp.float32
    np.testing.assert_allclose(out.astype(jnp.float32), plain(q, k, v, None), atol=0.03)
    gradient = jax.grad(lambda q: softmax_attention(q, *low[1:], None).sum())(low[0])
    assert gradient.dtype == jnp.bfloat16


@pytest.mark.parametrize("causal", [False, True])
def test_returning_the_weights_changes_no_output(causal):
    attention = MultiHeadAttention(16, 4, causal=causal, rngs=nnx.Rngs(0))
    h = jax.random.normal(jax.random.key(1), (2, 6, 16))
    mask = jnp.arange(6)[None] < jnp.array([[6], [4]])
    out, weights = attention(h, mask=mask, return_weights=True)
    without, none = attention(h, mask=mask)
    assert none is None
    np.testing.assert_allclose(without, out, atol=1e-5)
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)
    if causal:
        assert np.all(np.triu(weights, 1) == 0.0)
        assert np.all(np.diagonal(weights, axis1=-2, axis2=-1) > 0.0)
    else:
        assert np.all(weights[1, :, :, 4:] == 0.0)


def test_decoding_needs_causal_attention():
    with pytest.raises(ValueError, match="build the model with causal=True"):
        MultiHeadAttention(16, 4, rngs=nnx.Rngs(0)).init_cache(1, 4)
