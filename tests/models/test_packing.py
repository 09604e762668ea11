"""Several strings in a row of a model equal the strings one by one."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stackformer.models import StackTransformer, TransformerConfig
from stackformer.models.language.gpt2 import GPT2, GPT2Config
from stackformer.models.language.roberta import Roberta, RobertaConfig
from stackformer.nn.positions import POSITIONS
from stackformer.nn.stacks import (
    FramesConfig,
    NondeterministicConfig,
    PointerConfig,
    SuperpositionConfig,
)

LENGTHS = (4, 1, 6)
# An id may come back: neighbours of one number are a string.
IDS = np.repeat([0, 1, 0], LENGTHS)[None]
SMALL = {"vocab_size": 20, "num_layers": 1, "d_model": 16, "num_heads": 4}


def transformer(**options):
    config = TransformerConfig(**SMALL, output_size=20, **options)
    return StackTransformer(config, rngs=nnx.Rngs(0))


def gpt2():
    return GPT2(GPT2Config(**SMALL, max_length=16), rngs=nnx.Rngs(0))


def roberta():
    return Roberta(RobertaConfig(**SMALL, max_length=16, pad_id=0), rngs=nnx.Rngs(0))


FRAMES = FramesConfig(items=2, item_features=4, hidden=8)
CASES = {
    "gpt2": gpt2,
    "roberta": roberta,
    "frames": lambda: transformer(stack=FRAMES, causal=True),
    "nondeterministic": lambda: transformer(stack=NondeterministicConfig(symbols=2)),
    "pointer": lambda: transformer(stack=PointerConfig(max_depth=3)),
    "two stacks": lambda: transformer(stack=SuperpositionConfig(num_stacks=2)),
    "chunks": lambda: transformer(stack=SuperpositionConfig(chunk_size=4)),
    **{
        f"{name}, {'causal' if causal else 'both sides'}": (
            lambda name=name, causal=causal: transformer(positions=name, causal=causal)
        )
        for name in POSITIONS
        for causal in (False, True)
    },
}


def strings():
    """The strings as rows (S, width) with their mask, and one behind the other."""
    tokens = np.random.default_rng(0).integers(4, 20, (len(LENGTHS), max(LENGTHS)))
    tokens[:, 0] = 1
    inside = np.arange(max(LENGTHS))[None] < np.array(LENGTHS)[:, None]
    return np.where(inside, tokens, 0), inside, tokens[inside][None]


def value_and_gradient(model, tokens, counted, **options):
    graph, params = nnx.split(model)

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        logits = nnx.merge(graph, params)(tokens, **options)
        weights = jnp.sin(jnp.arange(20.0))[None, None]
        return jnp.sum(jnp.sin(logits) * weights * counted[..., None])

    return loss(params)


@pytest.mark.parametrize("name", CASES)
def test_packed_strings_equal_the_strings_one_by_one(name):
    model = CASES[name]()
    rows, inside, packed = strings()
    apart = model(jnp.asarray(rows), mask=jnp.asarray(inside))[inside]
    together = model(jnp.asarray(packed), segment_ids=jnp.asarray(IDS))
    np.testing.assert_allclose(together[0], apart, atol=1e-4)
    expected = value_and_gradient(model, rows, inside, mask=jnp.asarray(inside))
    ones = jnp.ones_like(packed)
    got = value_and_gradient(model, packed, ones, segment_ids=jnp.asarray(IDS))
    chex.assert_trees_all_close(got, expected, atol=2e-4, rtol=1e-3)


def test_given_actions_are_packed_too():
    model = transformer(causal=True)
    rows, inside, packed = strings()
    logits = jax.random.normal(jax.random.key(1), (*rows.shape, 3))
    given = jax.nn.softmax(logits)
    apart = model(jnp.asarray(rows), mask=jnp.asarray(inside), actions=given)[inside]
    together = model(
        jnp.asarray(packed), segment_ids=jnp.asarray(IDS), actions=given[inside][None]
    )
    np.testing.assert_allclose(together[0], apart, atol=1e-4)
