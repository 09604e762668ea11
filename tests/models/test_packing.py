"""Several strings in a row of a model equal the strings one by one."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stackformer import models
from stackformer.models import StackTransformer, TransformerConfig
from stackformer.models.build import MODELS
from stackformer.models.language.gpt2 import GPT2, GPT2Config
from stackformer.models.language.roberta import Roberta, RobertaConfig
from stackformer.nn.positions import POSITIONS
from stackformer.nn.stacks import (
    FramesConfig,
    NondeterministicConfig,
    PointerConfig,
    SuperpositionConfig,
)

LENGTH = 11
SMALL = {"vocab_size": 20, "num_layers": 1, "d_model": 16, "num_heads": 4}


def transformer(**options):
    config = TransformerConfig(**SMALL, output_size=20, **options)
    return StackTransformer(config, rngs=nnx.Rngs(0))


def gpt2():
    return GPT2(GPT2Config(**SMALL, max_length=16), rngs=nnx.Rngs(0))


def roberta():
    return Roberta(RobertaConfig(**SMALL, max_length=16, pad_id=0), rngs=nnx.Rngs(0))


def recurrent(name, **options):
    sizes = type("Sizes", (), {"vocab_size": 20, "output_size": 20})
    options = {"hidden_size": 8, **options}
    return models.build(name, sizes, options, rngs=nnx.Rngs(0))


FRAMES = FramesConfig(items=2, item_features=4, hidden=8)
CASES = {
    "gpt2": gpt2,
    "roberta": roberta,
    "frames": lambda: transformer(stack=FRAMES, causal=True),
    "nondeterministic": lambda: transformer(stack=NondeterministicConfig(symbols=2)),
    "pointer": lambda: transformer(stack=PointerConfig(max_depth=3)),
    **{
        name: functools.partial(recurrent, name)
        for name in MODELS
        if name.endswith(("rnn", "lstm"))
    },
    "a small tape": lambda: recurrent("tape_rnn", tape_size=3, num_tapes=2),
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


@functools.cache
def program(name):
    """Parameters, and a compiled function for logits and gradient."""
    graph, params = nnx.split(CASES[name]())

    @jax.jit
    def run(params, tokens, counted, options):
        def loss(params):
            logits = nnx.merge(graph, params)(tokens, **options)
            weights = jnp.sin(jnp.arange(20.0))[None, None]
            return jnp.sum(jnp.sin(logits) * weights * counted[..., None]), logits

        (_, logits), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        return logits, gradient

    return params, run


def strings(cuts):
    """The strings a row each, (T, T) with their mask, and one behind the other."""
    edges = np.array([0, *sorted(cuts), LENGTH])
    sizes = np.pad(np.diff(edges), (0, LENGTH - len(cuts) - 1))
    inside = np.arange(LENGTH)[None] < sizes[:, None]
    tokens = np.random.default_rng(0).integers(4, 20, inside.shape)
    tokens[:, 0] = 1
    # An id may come back: neighbours of one number are a string.
    ids = np.repeat(np.arange(LENGTH) % 2, sizes)[None]
    return np.where(inside, tokens, 0), inside, tokens[inside][None], ids


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=6)
@given(cuts=st.sets(st.integers(1, LENGTH - 1), max_size=LENGTH - 1))
@example(cuts=set(range(1, LENGTH)))  # nothing but strings of length 1
@example(cuts={4, 5})
def test_packed_strings_equal_the_strings_one_by_one(name, cuts):
    params, run = program(name)
    rows, inside, packed, ids = strings(cuts)
    apart, expected = run(params, rows, inside, {"mask": inside})
    ones = np.ones_like(packed, bool)
    together, got = run(params, packed, ones, {"segment_ids": ids})
    np.testing.assert_allclose(together[0], apart[inside], atol=1e-4)
    chex.assert_trees_all_close(got, expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("hard", [False, True])
def test_weights_of_a_packed_stack_rnn_are_those_of_the_strings(hard):
    model = recurrent("stack_rnn", num_stacks=2)
    rows, inside, packed, ids = strings({4, 5})
    run = jax.jit(lambda tokens, **o: model(tokens, hard=hard, return_aux=True, **o)[1])
    apart = run(rows, mask=inside)
    together = run(packed, segment_ids=ids)
    at = 0
    for row, size in enumerate(inside.sum(1)[:3]):
        found, wanted = together.stack_weights[0][0], apart.stack_weights[0][row]
        inner = slice(at, at + size)
        np.testing.assert_allclose(
            found[:, inner, inner], wanted[:, :size, :size], atol=1e-5
        )
        outside = found.at[:, inner, inner].set(0.0)[:, inner]
        np.testing.assert_allclose(outside, 0.0, atol=1e-6)
        at += size


def test_given_actions_are_packed_too():
    model = transformer(causal=True)
    rows, inside, packed, ids = strings({4, 5})
    logits = jax.random.normal(jax.random.key(1), (*rows.shape, 3))
    given = jax.nn.softmax(logits)
    apart = model(jnp.asarray(rows), mask=jnp.asarray(inside), actions=given)[inside]
    together = model(
        jnp.asarray(packed), segment_ids=jnp.asarray(ids), actions=given[inside][None]
    )
    np.testing.assert_allclose(together[0], apart, atol=1e-4)
