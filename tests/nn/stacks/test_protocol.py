"""The protocol: a stack that no model has heard of lives in all of them."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from stackformer import models
from stackformer.models import GPT2, GPT2Config, StackTransformer, TransformerConfig
from stackformer.nn import stacks
from stackformer.nn.stacks import Stack, StackConfig, StackOutput


class Counter(Stack):
    """What was seen before, weighed by a learned gate: a stack that never pops."""

    def __init__(self, features, *, rngs, **_):
        self.gate = nnx.Linear(features, 1, rngs=rngs)

    def __call__(self, h, *, mask=None, return_weights=False, **_):
        weight = jax.nn.sigmoid(self.gate(h))
        if mask is not None:
            weight = weight * mask[..., None]
        return StackOutput(top=jnp.cumsum(weight * h, axis=-2))

    def init_state(self, batch_shape, max_length, *, hard=False):
        return jnp.zeros((*batch_shape, self.gate.kernel.shape[0]))

    def step(self, state, h, index):
        state = state + jax.nn.sigmoid(self.gate(h)) * h
        return state, state


@dataclasses.dataclass(frozen=True, kw_only=True)
class CounterConfig(StackConfig):
    name: ClassVar[str] = "counter"

    def make(self, features, **options):
        return Counter(features, rngs=options["rngs"])


def of_ours(**options):
    config = TransformerConfig(
        vocab_size=7,
        output_size=7,
        num_layers=2,
        d_model=16,
        num_heads=2,
        causal=True,
        **options,
    )
    return StackTransformer(config, rngs=nnx.Rngs(0))


def of_gpt2(**options):
    config = GPT2Config(
        vocab_size=7, num_layers=2, d_model=16, num_heads=2, max_length=12, **options
    )
    return GPT2(config, rngs=nnx.Rngs(0))


KINDS = {
    "counter": CounterConfig(),
    "frames": stacks.FramesConfig(items=3, item_features=8, hidden=16),
    "nondeterministic": stacks.NondeterministicConfig(states=1, symbols=2),
    "pointer": stacks.PointerConfig(),
    "projected": stacks.SuperpositionConfig(project=True, value_features=6),
    "superposition": stacks.SuperpositionConfig(),
}


@pytest.mark.parametrize("make", [of_ours, of_gpt2])
@pytest.mark.parametrize("kind", KINDS)
def test_trains_and_decodes_in_every_transformer(make, kind):
    model = make(stack=KINDS[kind], dropout=0.0)
    tokens = jnp.array([[1, 4, 5, 6, 4, 5], [1, 6, 6, 4, 5, 4]])
    graph, params = nnx.split(model)
    optimizer = optax.adam(1e-2)

    def loss(params):
        logits = nnx.merge(graph, params)(tokens)
        return optax.softmax_cross_entropy_with_integer_labels(
            logits[:, :-1], tokens[:, 1:]
        ).mean()

    @jax.jit
    def step(params, state):
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value, grads

    state, first = optimizer.init(params), None
    for _ in range(12):
        params, state, value, grads = step(params, state)
        first = value if first is None else first
    assert value < 0.8 * first
    moved = jax.tree.leaves(nnx.to_pure_dict(grads)[_layers(make)][0]["stack"])
    assert all(np.isfinite(leaf).all() for leaf in moved)
    assert any(np.any(leaf != 0.0) for leaf in moved)

    trained = nnx.merge(graph, params)
    whole = trained(tokens)
    cache = trained.init_cache(2, 6)
    for i in range(6):
        cache, logits = trained.decode_step(cache, tokens[:, i])
        np.testing.assert_allclose(logits, whole[:, i], atol=2e-4)


def _layers(make):
    return "layers" if make is of_ours else "blocks"


def test_the_registry_makes_a_name(monkeypatch):
    monkeypatch.setitem(stacks.STACKS, "counter", CounterConfig)
    assert stacks.stack_config("counter") == CounterConfig()
    model = models.build(
        "stack_transformer",
        type("Sizes", (), {"vocab_size": 7, "output_size": 2}),
        {"num_layers": 1, "d_model": 16, "num_heads": 2},
        stack="counter",
        rngs=nnx.Rngs(0),
    )
    assert isinstance(model.layers[0].stack, Counter)


def test_one_string_is_not_another():
    with pytest.raises(ValueError, match="`stack` should be one of superposition"):
        stacks.stack_config("heap")
