"""The bias of softmax attention: every shape that broadcasts, every precision."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stackformer.ops.softmax_attention import attention_weights, softmax_attention

BATCH, HEADS, QUERIES, KEYS, FEATURES = 2, 3, 5, 7, 4
SHAPES = (
    (),
    (KEYS,),
    (QUERIES, KEYS),
    (QUERIES, 1),
    (HEADS, 1, 1),
    (1, HEADS, QUERIES, KEYS),
    (BATCH, 1, 1, KEYS),
    (BATCH, HEADS, QUERIES, KEYS),
)


def inputs(bias_shape, dtype=jnp.float32):
    def normal(seed, *shape):
        return jax.random.normal(jax.random.key(seed), shape, dtype)

    q = normal(0, BATCH, HEADS, QUERIES, FEATURES)
    k, v = (normal(seed, BATCH, HEADS, KEYS, FEATURES) for seed in (1, 2))
    return q, k, v, normal(3, *bias_shape)


def plain(q, k, v, bias):
    """The definition; the bias is repeated by hand."""
    q, k, v, bias = (x.astype(jnp.float32) for x in (q, k, v, bias))
    logits = jnp.einsum("bnth,bnsh->bnts", q, k) / math.sqrt(FEATURES)
    weights = jax.nn.softmax(logits + jnp.broadcast_to(bias, logits.shape))
    return jnp.einsum("bnts,bnsh->bnth", weights, v)


def gradients(function, arguments):
    def loss(*arguments):
        out = function(*arguments)
        return jnp.sin(3.0 * out.astype(jnp.float32)).sum(), out

    return jax.jit(jax.grad(loss, (0, 1, 2, 3), has_aux=True))(*arguments)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradient_of_a_bias_of_any_shape(shape):
    arguments = inputs(shape)
    got = gradients(softmax_attention, arguments)
    assert got[0][3].shape == shape
    chex.assert_trees_all_close(got, gradients(plain, arguments), atol=2e-5)
    weights = attention_weights(*arguments[:2], arguments[3])
    np.testing.assert_allclose(weights @ arguments[2], plain(*arguments), atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("shape", [(QUERIES, KEYS), (1, HEADS, QUERIES, KEYS)], ids=str)
def test_gradient_of_a_bias_in_low_precision(shape, dtype):
    arguments = inputs(shape, dtype)
    got = gradients(softmax_attention, arguments)
    expected = gradients(plain, arguments)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(got))
    # Inside, weights and their gradients are rounded once more than by `plain`.
    unit = float(jnp.finfo(dtype).eps)
    for found, wanted in zip(*map(jax.tree.leaves, (got, expected)), strict=True):
        found, wanted = (np.asarray(x, np.float32) for x in (found, wanted))
        scale = max(1.0, np.abs(wanted).max())
        np.testing.assert_allclose(found, wanted, rtol=0, atol=4 * unit * scale)


def test_a_float32_bias_beside_bfloat16_keeps_its_dtype():
    q, k, v, bias = inputs((QUERIES, KEYS))
    low = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    (*_, d_bias), out = gradients(softmax_attention, (*low, bias))
    assert out.dtype == jnp.bfloat16 and d_bias.dtype == jnp.float32
