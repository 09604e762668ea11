"""Each positional encoding against a direct formula, inside attention."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stackformer.nn.attention import MultiHeadAttention
from stackformer.nn.positions import (
    POSITIONS,
    alibi_bias,
    alibi_slopes,
    relative_shift,
    rotate,
    sinusoids,
)

HEADS, FEATURES, LENGTH = 4, 16, 7
HEAD = FEATURES // HEADS


def plain_sinusoid(position, features):
    half = features // 2
    angles = [position / 10_000 ** (k / half) for k in range(half)]
    return np.array([math.sin(a) for a in angles] + [math.cos(a) for a in angles])


def test_sinusoids_are_vaswanis_for_positions_of_both_signs():
    for position in (-5, 0, 3, 1000):
        got = sinusoids(jnp.array([position]), 6)[0]
        np.testing.assert_allclose(got, plain_sinusoid(position, 6), atol=1e-4)


def test_rotary_is_a_complex_multiplication():
    x = np.asarray(jax.random.normal(jax.random.key(0), (2, 5, 6)))
    positions = np.array([0, 1, 2, 40, 500])
    z = x[..., :3] + 1j * x[..., 3:]
    theta = 10_000.0 ** (-np.arange(3) / 3)
    expected = z * np.exp(1j * positions[:, None] * theta)
    got = rotate(jnp.asarray(x), jnp.asarray(positions))
    np.testing.assert_allclose(got[..., :3], expected.real, atol=1e-3)
    np.testing.assert_allclose(got[..., 3:], expected.imag, atol=1e-3)


def test_alibi_slopes_of_eight_and_of_six_heads():
    np.testing.assert_allclose(alibi_slopes(8), [2.0**-n for n in range(1, 9)])
    np.testing.assert_allclose(
        alibi_slopes(6), [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
    )


@pytest.mark.parametrize("causal", [False, True])
def test_alibi_is_linear_in_the_distance_and_tells_left_from_right(causal):
    at = jnp.arange(6)
    bias = np.asarray(alibi_bias(at, at, HEADS, causal=causal))
    for n, slope in enumerate(alibi_slopes(HEADS)):
        for i in range(6):
            for j in range(6):
                side = 0.5 if j < i and not causal else 0.0
                assert bias[n, i, j] == pytest.approx(slope * (side - abs(i - j)))
    if not causal:
        assert np.all(bias[:, 3, 2] != bias[:, 3, 4])


@pytest.mark.parametrize("columns", [5, 9])
def test_relative_shift_is_an_index_by_distance(columns):
    x = np.arange(5 * columns).reshape(5, columns)
    got = np.asarray(relative_shift(jnp.asarray(x), 5))
    for i in range(5):
        for j in range(5 if columns == 9 else i + 1):
            assert got[i, j] == x[i, 4 - i + j]


def plain_weights(attention, h, causal, positions):
    """Attention weights from the definitions, one entry at a time."""
    qkv = np.asarray(h @ attention.qkv.kernel[...]).reshape(LENGTH, 3, HEADS, HEAD)
    q, k, _ = qkv.transpose(1, 2, 0, 3)
    weights = np.zeros((HEADS, LENGTH, LENGTH))
    for n in range(HEADS):
        for i in range(LENGTH):
            logits = np.full(LENGTH, -np.inf)
            for j in range(i + 1 if causal else LENGTH):
                if positions == "relative":
                    relative = attention.positions
                    u = np.asarray(relative.content_bias[...])[n]
                    v = np.asarray(relative.position_bias[...])[n]
                    encoding = plain_sinusoid(i - j, FEATURES)
                    key = encoding @ np.asarray(relative.projection.kernel[...])
                    key = key.reshape(HEADS, HEAD)[n]
                    logit = (q[n, i] + u) @ k[n, j] + (q[n, i] + v) @ key
                elif positions == "rotary":
                    half = HEAD // 2
                    z_q = q[n, i, :half] + 1j * q[n, i, half:]
                    z_k = k[n, j, :half] + 1j * k[n, j, half:]
                    theta = 10_000.0 ** (-np.arange(half) / half)
                    turn = np.exp(1j * (i - j) * theta)
                    logit = np.sum(z_q * turn * z_k.conj()).real
                else:
                    logit = q[n, i] @ k[n, j]
                logits[j] = logit / math.sqrt(HEAD)
                if positions == "alibi":
                    side = 0.5 if j < i and not causal else 0.0
                    logits[j] += alibi_slopes(HEADS)[n] * (side - abs(i - j))
            weights[n, i] = np.exp(logits - logits.max())
            weights[n, i] /= weights[n, i].sum()
    return weights


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("positions", POSITIONS)
def test_attention_weights_against_the_definition(positions, causal):
    attention = MultiHeadAttention(
        FEATURES, HEADS, causal=causal, positions=positions, rngs=nnx.Rngs(0)
    )
    h = jax.random.normal(jax.random.key(1), (1, LENGTH, FEATURES))
    out, weights = attention(h, return_weights=True)
    expected = plain_weights(attention, h[0], causal, positions)
    np.testing.assert_allclose(weights[0], expected, atol=1e-5)
    values = np.asarray(h[0] @ attention.qkv.kernel[...])[:, 2 * FEATURES :]
    mixed = np.einsum(
        "nts,snh->tnh", expected, values.reshape(LENGTH, HEADS, HEAD)
    ).reshape(LENGTH, FEATURES)
    np.testing.assert_allclose(
        out[0], mixed @ np.asarray(attention.out.kernel[...]), atol=1e-5
    )


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match=r"`num_heads` should divide .*16.* got 3"):
        MultiHeadAttention(16, 3, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="`positions` should be one of"):
        MultiHeadAttention(16, 4, positions="learned", rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="even"):
        sinusoids(jnp.arange(2), 3)
