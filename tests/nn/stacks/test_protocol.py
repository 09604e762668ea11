"""The protocol: a stack that no model has heard of lives in all of them."""

import dataclasses
from typing import ClassVar

import chex
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

    @jax.jit
    def decode(params, cache, token):
        return nnx.merge(graph, params).decode_step(cache, token)

    whole = jax.jit(lambda params: nnx.merge(graph, params)(tokens))(params)
    cache = nnx.merge(graph, params).init_cache(2, 6)
    for i in range(6):
        cache, logits = decode(params, cache, tokens[:, i])
        np.testing.assert_allclose(logits, whole[:, i], atol=2e-4)


def _layers(make):
    return "layers" if make is of_ours else "blocks"


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(
    "kind", [*KINDS, "frames, soft", "frames from strings", "a shallow pointer"]
)
def test_a_prompt_read_at_once_equals_its_steps(kind, hard):
    config = {
        **KINDS,
        "frames, soft": dataclasses.replace(KINDS["frames"], sampling="soft"),
        "frames from strings": dataclasses.replace(
            KINDS["frames"], actions_from="strings"
        ),
        "a shallow pointer": stacks.PointerConfig(max_depth=2),
    }[kind]
    init = nnx.initializers.normal(2.0)
    stack = config.make(8, kernel_init=init, rngs=nnx.Rngs(0))
    h = jax.random.normal(jax.random.key(1), (3, 12, 8))

    @jax.jit
    def at_once(h, length):
        """What stands behind the first `length` positions is not read."""
        state = stack.init_state((3,), 12, hard=hard)
        state, first = stack.prefill(state, h[:, :9], length)

        def step(index, carry):
            state, tops = carry
            h_t = jax.lax.dynamic_index_in_dim(h, index, axis=1, keepdims=False)
            state, top = stack.step(state, h_t, index)
            return state, tops.at[:, index].set(top)

        tops = jnp.pad(first, ((0, 0), (0, 3), (0, 0)))
        return jax.lax.fori_loop(length, 12, step, (state, tops))[1]

    @jax.jit
    def by_steps(h):
        return Stack.prefill(stack, stack.init_state((3,), 12, hard=hard), h, 12)[1]

    expected = by_steps(h)
    for length in (1, 4, 9):
        np.testing.assert_allclose(at_once(h, length), expected, atol=2e-4)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("kind", ["superposition", "projected", "pointer", "frames"])
def test_pieces_of_a_string_equal_the_whole(kind, hard):
    init = nnx.initializers.normal(1.0)
    stack = KINDS[kind].make(8, kernel_init=init, rngs=nnx.Rngs(0))
    graph, params = nnx.split(stack)
    h = jax.random.normal(jax.random.key(1), (2, 9, 8))
    ids = jnp.array([[0] * 9, [0, 0, 0, 1, 1, 1, 1, 2, 2]])

    def run(read):
        def loss(params, h):
            top = read(nnx.merge(graph, params), h)
            return jnp.sum(jnp.sin(3.0 * top)), top

        return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(params, h)

    def pieces(stack, h):
        tops, state = [], None
        for part in (slice(0, 1), slice(1, 6), slice(6, 9)):
            out = stack(
                h[:, part],
                segment_ids=ids[:, part],
                hard=hard,
                initial_state=state,
                return_state=True,
            )
            tops, state = [*tops, out.top], out.state
        return jnp.concatenate(tops, axis=1)

    gradients, tops = run(pieces)
    expected, wanted = run(lambda stack, h: stack(h, segment_ids=ids, hard=hard).top)
    np.testing.assert_allclose(tops, wanted, atol=1e-4)
    if (kind, hard) == ("pointer", True):
        return  # a certain pointer lies on the kinks of its hats
    chex.assert_trees_all_close(gradients, expected, atol=1e-3, rtol=1e-3)
    with pytest.raises(ValueError, match="alpha is of one whole string"):
        stack(h, return_state=True, return_weights=True)


def test_frames_after_padding_are_no_state():
    stack = KINDS["frames"].make(8, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="`mask` should be None with `return_state`"):
        stack(jnp.ones((1, 3, 8)), mask=jnp.ones((1, 3), bool), return_state=True)


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
