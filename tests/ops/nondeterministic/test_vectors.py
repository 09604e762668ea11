"""The stack with vectors: every form against the runs of the automaton, one by one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stackformer.ops.nondeterministic import (
    Transitions,
    init_ndstack_state,
    nondeterministic_stack,
    nondeterministic_step,
)


def draw(lead, states, symbols, features, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    count = Transitions.count(states, symbols)
    transitions = scale * rng.normal(size=(*lead, count)).astype(np.float32)
    return transitions, rng.normal(size=(*lead, features)).astype(np.float32)


def enumerate_runs(transitions, values, states, symbols):
    """Readings from every single run: stacks are tuples of (symbol, vector)."""
    length, features = values.shape
    total = np.zeros(length)
    reading = np.zeros((length, states, symbols, features))
    split = Transitions.split(np.exp(transitions.astype(np.float64)), states, symbols)

    def follow(t, state, stack, weight):
        symbol, vector = stack[-1]
        total[t] += weight
        reading[t, state, symbol] += weight * vector
        if t + 1 == length:
            return
        t = t + 1
        push, replace = split.push[t, state, symbol], split.replace[t, state, symbol]
        for r in range(states):
            if len(stack) > 1:
                follow(t, r, stack[:-1], weight * split.pop[t, state, symbol, r])
            for y in range(symbols):
                pushed, replaced = (y, values[t]), (y, vector)
                follow(t, r, (*stack, pushed), weight * push[r, y])
                follow(t, r, (*stack[:-1], replaced), weight * replace[r, y])

    follow(0, 0, ((0, values[0]),), 1.0)
    return reading / total[:, None, None, None]


@pytest.mark.parametrize("form", ["reference", "scan"])
@pytest.mark.parametrize("states, symbols, length", [(2, 2, 5), (1, 3, 6)])
def test_equals_the_sum_over_all_runs(states, symbols, length, form):
    transitions, values = draw((length,), states, symbols, 3)
    run = jax.jit(
        functools.partial(
            nondeterministic_stack,
            num_states=states,
            num_symbols=symbols,
            implementation=form,
        )
    )
    expected = enumerate_runs(transitions, values, states, symbols)
    np.testing.assert_allclose(run(transitions, values), expected, atol=2e-6)


def test_scan_equals_the_reference_in_values_and_gradients():
    transitions, values = draw((2, 7), 2, 3, 5)
    mask = np.array([[1, 1, 0, 1, 1, 1, 1], [1, 0, 1, 1, 1, 0, 1]], bool)
    ids = np.array([[0, 0, 0, 0, 0, 0, 0], [4, 4, 4, 1, 1, 1, 1]])
    shape = (2, 7, 2, 3, 5)
    upstream = np.random.default_rng(9).normal(size=shape).astype(np.float32)

    def run(form):
        def loss(transitions, values):
            top = nondeterministic_stack(
                transitions,
                values,
                num_states=2,
                num_symbols=3,
                mask=mask,
                segment_ids=ids,
                implementation=form,
            )
            return jnp.sum(top * upstream), top

        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)

    (_, got), gradients = jax.jit(run("scan"))(transitions, values)
    (_, expected), exact = run("reference")(transitions, values)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    for gradient, other in zip(gradients, exact, strict=True):
        assert np.abs(other).max() > 0.1
        np.testing.assert_allclose(gradient, other, atol=2e-5)
    # The second string of a row is a string, and a hole in one changes nothing.
    alone = nondeterministic_stack(
        transitions[1, np.array([3, 4, 6])],
        values[1, np.array([3, 4, 6])],
        num_states=2,
        num_symbols=3,
    )
    np.testing.assert_allclose(got[1, np.array([3, 4, 6])], alone, atol=1e-5)


def test_steps_equal_the_scan():
    transitions, values = draw((2, 6), 2, 2, 3)
    whole = nondeterministic_stack(transitions, values, num_states=2, num_symbols=2)
    step = jax.jit(nondeterministic_step)
    state = init_ndstack_state(2, 6, 2, 2, 3)
    for t in range(6):
        state, top = step(state, transitions[:, t], values[:, t], jnp.int32(t))
        np.testing.assert_allclose(top, whole[:, t], atol=1e-6)


def test_float32_is_enough_for_long_strings():
    # The weight of all runs is around exp(-2000); float32 ends at exp(-103).
    length = 121
    transitions, values = draw((1, length), 2, 2, 2, scale=6.0)
    transitions -= 25.0
    values[..., 0] = 1.0

    @jax.jit
    def run(transitions, values):
        def loss(transitions):
            top = nondeterministic_stack(
                transitions, values, num_states=2, num_symbols=2
            )
            return jnp.sum(top[..., 1] ** 2), top

        (_, top), gradient = jax.value_and_grad(loss, has_aux=True)(transitions)
        return top, gradient

    top, gradient = run(transitions, values)
    # A vector of ones reads the probabilities of states and symbols.
    np.testing.assert_allclose(top[..., 0].sum(axis=(-2, -1)), 1.0, atol=1e-4)
    with jax.enable_x64(True):
        wide = run(transitions.astype(np.float64), values.astype(np.float64))
    assert wide[0].dtype == np.float64
    np.testing.assert_allclose(top, wide[0], atol=1e-3)
    np.testing.assert_allclose(gradient, wide[1], atol=1e-2)
    assert np.abs(wide[1]).max() > 0.1


def test_wrong_shapes_are_named():
    transitions, values = draw((4,), 2, 2, 3)
    with pytest.raises(ValueError, match=r"`transitions` shape should be \(4, 90\)"):
        nondeterministic_stack(transitions, values, num_states=3, num_symbols=2)
    with pytest.raises(ValueError, match=r"`mask` shape should be \(4,\)"):
        nondeterministic_stack(
            transitions, values, num_states=2, num_symbols=2, mask=jnp.ones((3,), bool)
        )
