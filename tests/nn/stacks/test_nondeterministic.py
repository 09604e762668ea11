"""The module around the automaton."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stackformer.nn.stacks import (
    NondeterministicConfig,
    NondeterministicStack,
    stack_config,
)
from stackformer.ops.nondeterministic import nondeterministic_stack

CONFIG = NondeterministicConfig(states=2, symbols=2, value_features=3)


@pytest.fixture(scope="module")
def stack():
    return CONFIG.make(6, kernel_init=nnx.initializers.normal(1.0), rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def h():
    return jax.random.normal(jax.random.key(1), (2, 7, 6))


def test_is_the_papers_equation(stack, h):
    out = stack(h, return_weights=True)
    logits = jax.nn.log_softmax(stack.action_head(h))
    values = jax.nn.sigmoid(stack.value_head(h))
    reading = nondeterministic_stack(logits, values, num_states=2, num_symbols=2)
    expected = stack.output(reading.reshape(2, 7, -1))
    np.testing.assert_allclose(out.top, expected, atol=1e-5)
    # Which position's vector is on top, whatever the state and the symbol.
    np.testing.assert_allclose(out.weights.sum(-1), 1.0, atol=1e-5)
    assert np.all(np.triu(out.weights[0], 1) == 0.0)
    np.testing.assert_allclose(
        out.weights @ values, reading.sum(axis=(-3, -2)), atol=1e-5
    )
    np.testing.assert_allclose(out.actions.sum(-1), 1.0, atol=1e-5)
    push = jnp.exp(logits[..., :16]).sum(-1)
    np.testing.assert_allclose(out.actions[..., 0], push, atol=1e-6)
    np.testing.assert_allclose(jnp.exp(out.logits), out.actions, atol=1e-6)


def best_run(logits, values):
    """The reading of the most probable run up to the last position, by enumeration."""
    length = len(values)
    table = np.asarray(logits, np.float64)
    push, pop, replace = np.split(table, (16, 24), axis=-1)
    push, replace = (x.reshape(-1, 2, 2, 2, 2) for x in (push, replace))
    pop = pop.reshape(-1, 2, 2, 2)
    runs = [(0.0, 0, ((0, 0),))]
    for t in range(1, length):
        new = []
        for weight, q, kept in runs:
            (x, at), rest = kept[-1], kept[:-1]
            for r in range(2):
                if rest:
                    new.append((weight + pop[t, q, x, r], r, rest))
                for y in range(2):
                    new.append((weight + push[t, q, x, r, y], r, (*kept, (y, t))))
                    new.append((weight + replace[t, q, x, r, y], r, (*rest, (y, at))))
        runs = new
    _, state, kept = max(runs, key=lambda run: run[0])
    reading = np.zeros((2, 2, values.shape[-1]))
    reading[state, kept[-1][0]] = values[kept[-1][1]]
    return reading


def test_hard_is_the_most_probable_run(stack, h):
    h = h[:, :5]
    logits = jax.nn.log_softmax(stack.action_head(h))
    values = jax.nn.sigmoid(stack.value_head(h))
    run = jax.jit(lambda hard: stack(h, hard=hard).top)
    np.testing.assert_allclose(run(False), stack(h).top, atol=1e-5)
    for string in range(2):
        reading = best_run(logits[string], values[string])
        expected = stack.output(jnp.asarray(reading.reshape(-1), jnp.float32))
        np.testing.assert_allclose(run(True)[string, -1], expected, atol=1e-3)


@pytest.mark.parametrize("hard", [False, True])
def test_steps_equal_the_whole_sequence(stack, h, hard):
    whole = stack(h, hard=hard).top
    state = stack.init_state((2,), 7, hard=hard)
    step = jax.jit(lambda *inputs: stack.step(*inputs))
    for t in range(7):
        state, top = step(state, h[:, t], jnp.int32(t))
        np.testing.assert_allclose(top, whole[:, t], atol=1e-4)


def test_a_padded_position_changes_nothing_and_half_precision_stays(stack, h):
    mask = jnp.ones((2, 7), bool).at[:, jnp.array([2, 5])].set(False)
    kept = jnp.array([0, 1, 3, 4, 6])
    with_gaps = stack(h, mask=mask).top[:, kept]
    np.testing.assert_allclose(with_gaps, stack(h[:, kept]).top, atol=1e-5)
    half = stack(h.astype(jnp.bfloat16)).top
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), stack(h).top, atol=0.2)


def test_wrong_use_is_named(stack, h):
    with pytest.raises(ValueError, match="`actions` should be None"):
        stack(h, actions=jnp.ones((2, 7, 3)))
    with pytest.raises(ValueError, match=r"`h` shape should be \(..., T, 6\)"):
        stack(h[..., :5])
    with pytest.raises(ValueError, match="`states` should be an integer of at least 1"):
        NondeterministicConfig(states=0)
    assert stack_config("nondeterministic") == NondeterministicConfig()
    assert isinstance(stack, NondeterministicStack)
