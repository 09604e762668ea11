"""Numbers that were wrong once: precision of logits and norms, programs, depths."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stackformer.models import StackTransformer, TransformerConfig, generate
from stackformer.nn.feed_forward import layer_norm
from stackformer.nn.stacks import SuperpositionConfig
from stackformer.ops.stack_attention.recurrent import reachable_depth


def build(**options):
    config = TransformerConfig(
        vocab_size=6, output_size=3, num_layers=1, d_model=16, num_heads=2, **options
    )
    return StackTransformer(config, rngs=nnx.Rngs(0))


def test_logits_in_bfloat16_are_computed_in_float32():
    logits = build(dtype="bfloat16")(jnp.array([[1, 4, 5, 3, 2]]))
    assert logits.dtype == jnp.float32
    rounded = logits.astype(jnp.bfloat16).astype(jnp.float32)
    assert np.any(np.asarray(rounded) != np.asarray(logits))


@pytest.mark.parametrize("ratio", [100.0, 3_000.0])
def test_layer_norm_where_the_mean_is_much_larger_than_the_deviation(ratio):
    x = np.random.default_rng(0).normal(size=(4, 64)) + ratio
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1) + 1e-5)[:, None]
    found = layer_norm(64, rngs=nnx.Rngs(0))(jnp.asarray(x, jnp.float32))
    # What is left is the rounding of x itself, ratio * 2^-24.
    np.testing.assert_allclose(found, expected, atol=1e-6 * ratio + 1e-5)


def test_every_temperature_shares_a_program(caplog):
    model = build(causal=True)
    prompts, lengths = jnp.array([[1, 4, 5, 3]]), jnp.array([4])
    key = jax.random.key(0)
    generate(model, prompts, lengths, 2, key=key, temperature=0.7)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        generate(model, prompts, lengths, 2, key=key, temperature=0.9)
    assert not [r for r in caplog.records if "_generate" in r.getMessage()]


@pytest.mark.parametrize("max_depth", [None, 2])
def test_decoding_keeps_what_it_can_need_and_no_more(max_depth):
    stack = SuperpositionConfig(max_depth=max_depth).make(8, rngs=nnx.Rngs(0))
    h = jax.random.normal(jax.random.key(1), (1, 9, 8))
    state = stack.init_state((1,), 9)
    depth = reachable_depth(9, max_depth=max_depth)
    assert state.shape == (1, depth + 1, 8) and depth == (2 if max_depth else 5)
    whole = stack(h).top
    for i in range(9):
        state, top = stack.step(state, h[:, i], jnp.int32(i))
        np.testing.assert_allclose(top, whole[:, i], atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"implementation": "scan", "chunk_size": 8},
        {"implementation": "scan", "max_depth": 4},
        {"implementation": "quick"},
    ],
)
def test_unused_options_are_errors(options):
    with pytest.raises(ValueError, match="should be"):
        SuperpositionConfig(**options)
