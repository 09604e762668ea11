"""Layers as a loop: the same values, gradients and maps as one after another."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from stackformer.models import StackTransformer, TransformerConfig
from stackformer.models.language.gpt2 import GPT2, GPT2Config
from stackformer.models.language.roberta import Roberta, RobertaConfig

TOKENS = jnp.array([[1, 4, 5, 2, 2, 0], [1, 5, 2, 0, 0, 0], [1, 4, 4, 5, 5, 2]])
SMALL = dict(num_layers=3, d_model=16, num_heads=2)
GIVEN = jax.nn.one_hot(jnp.array([[2, 0, 0, 1, 2, 2]] * 3), 3)


def both(model, **options):
    """Logits, maps and gradients, with the layers apart and as a loop."""
    results = []
    for scan in (False, True):
        model.config = dataclasses.replace(model.config, scan_layers=scan)
        graph, state = nnx.split(model)

        def loss(state, graph=graph):
            model = nnx.merge(graph, state)
            logits, aux = model(
                TOKENS,
                mask=TOKENS != 0,
                rngs=nnx.Rngs(dropout=3),
                return_aux=True,
                **options,
            )
            return jnp.sin(logits).mean(), (logits, aux)

        results.append(jax.jit(jax.value_and_grad(loss, has_aux=True))(state))
    return results


def stack_transformer(**options):
    config = TransformerConfig(vocab_size=6, output_size=2, **SMALL, **options)
    return StackTransformer(config, rngs=nnx.Rngs(0))


CASES = {
    "one column": ({"dropout": 0.5, "stack_layers": (1, 2)}, {}),
    "remat": ({"causal": True, "positions": "rotary", "remat": True}, {}),
    "loops, hard": ({"stack_gate": 0.5, "num_loops": 2}, {"hard": True}),
    "shared actions": ({}, {"actions": GIVEN}),
    "some actions": ({}, {"actions": [GIVEN, GIVEN[:, ::-1], None]}),
    "bfloat16": ({"dtype": "bfloat16"}, {}),
}


@pytest.mark.parametrize(("options", "call"), CASES.values(), ids=CASES)
def test_a_loop_equals_layers_one_by_one(options, call):
    apart, loop = both(stack_transformer(**options), **call)
    tolerance = 5e-2 if options.get("dtype") == "bfloat16" else 1e-5
    chex.assert_trees_all_close(apart, loop, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", [(GPT2, GPT2Config), (Roberta, RobertaConfig)])
def test_language_models_too(kind):
    model_type, config_type = kind
    config = config_type(vocab_size=9, max_length=12, dropout=0.2, **SMALL)
    apart, loop = both(model_type(config, rngs=nnx.Rngs(0)))
    chex.assert_trees_all_close(apart, loop, atol=1e-5)


def test_the_program_does_not_grow_with_depth():
    def operations(layers):
        small = SMALL | {"num_layers": layers}
        config = TransformerConfig(
            vocab_size=6, output_size=2, scan_layers=True, dropout=0.1, **small
        )
        graph, state = nnx.split(StackTransformer(config, rngs=nnx.Rngs(0)))

        def forward(state):
            return nnx.merge(graph, state)(TOKENS, rngs=nnx.Rngs(dropout=3))

        text = str(jax.make_jaxpr(forward)(state))
        return [text.count(name) for name in ("dot_general", "random_fold_in")]

    assert operations(2) == operations(6)


def test_how_it_runs_is_not_what_it_is():
    config = TransformerConfig(vocab_size=6, output_size=2, scan_layers=True)
    assert "scan_layers" not in config.to_json()
