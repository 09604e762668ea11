"""The nondeterministic stack against all runs of the automaton, one by one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import logsumexp

from stackformer.nn.cells.controllers import RNNCell
from stackformer.nn.cells.nondeterministic import NDStackMemory
from stackformer.ops.history_scan import history_scan
from stackformer.ops.nondeterministic.recurrent import (
    Transitions,
    init_ndstack,
    ndstack_step,
)


@functools.partial(jax.jit, static_argnums=(1, 2))
def run(flat, states, symbols):
    """Log alpha (T, B, Q, S) and what lies below, for log weights (T, B, count)."""
    steps, batch, _ = flat.shape
    alpha, first = init_ndstack(batch, steps + 1, states, symbols)

    def step(params, alpha, last, node, flat):
        transitions = Transitions.split(flat, states, symbols)
        new_alpha, base, mix = ndstack_step(alpha, last, node, transitions)
        return new_alpha, base, mix, (new_alpha, last)

    return history_scan(step, (), alpha, first, flat)


def distribution(log_weights):
    flat = np.asarray(log_weights, np.float64).reshape(*log_weights.shape[:-2], -1)
    return np.exp(flat - logsumexp(flat, axis=-1, keepdims=True))


def tables_of(step, states, symbols):
    return jax.tree.map(lambda x: x[0], Transitions.split(step[None], states, symbols))


def enumerate_runs(flat, states, symbols):
    """The same weights from every single run: stacks are tuples, runs are a tree."""
    steps = len(flat)
    total = np.zeros((steps + 1, states, symbols))  # of node 0 too
    tables = [
        tables_of(np.exp(step.astype(np.float64)), states, symbols) for step in flat
    ]

    def follow(t, state, stack, weight):
        total[t, state, stack[-1]] += weight
        if t == steps:
            return
        table, top = tables[t], stack[-1]
        for r in range(states):
            if len(stack) > 1:
                follow(t + 1, r, stack[:-1], weight * table.pop[state, top, r])
            for y in range(symbols):
                push, replace = table.push, table.replace
                follow(t + 1, r, (*stack, y), weight * push[state, top, r, y])
                follow(t + 1, r, (*stack[:-1], y), weight * replace[state, top, r, y])

    follow(0, 0, (0,), 1.0)
    return total


def readings(flat, states, symbols):
    weights = enumerate_runs(flat, states, symbols)[1:].reshape(len(flat), -1)
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("states, symbols, steps", [(2, 2, 5), (1, 3, 5)])
def test_equals_the_sum_over_all_runs(states, symbols, steps):
    count = Transitions.count(states, symbols)
    flat = np.random.default_rng(0).normal(size=(steps, 2, count)).astype(np.float32)
    alphas, below = run(flat, states, symbols)
    for b in range(2):
        expected = readings(flat[:, b], states, symbols)
        np.testing.assert_allclose(distribution(alphas[:, b]), expected, atol=1e-6)
    # What lies below is a distribution, or nothing does.
    mass = below.sum(axis=-1)
    assert mass.min() >= 0 and 0.1 < mass.max() <= 1 + 1e-5


def test_gradient_is_that_of_the_sum_over_all_runs():
    states, symbols, steps = 2, 2, 4
    rng = np.random.default_rng(5)
    flat = rng.normal(size=(steps, Transitions.count(states, symbols)))
    weight = rng.normal(size=(steps, states * symbols))

    def loss(flat):
        alphas, _ = run(flat[:, None], states, symbols)
        reading = jax.nn.softmax(alphas.reshape(steps, -1))
        return jnp.sum(reading * weight.astype(np.float32))

    gradient = jax.grad(loss)(jnp.asarray(flat, jnp.float32))
    for _ in range(3):
        direction = rng.normal(size=flat.shape)
        ahead, back = (
            np.sum(readings(flat + sign * 1e-4 * direction, states, symbols) * weight)
            for sign in (1, -1)
        )
        np.testing.assert_allclose(
            np.sum(gradient * direction), (ahead - back) / 2e-4, atol=2e-4
        )


def lang(flat, states, symbols):
    """Lang's recurrence as published, in float64 logarithms."""
    steps = len(flat)
    nodes = steps + 2  # a ground below the first symbol, then the moments 0..steps
    pair = (states, symbols)
    gamma = np.full((nodes, nodes, *pair, *pair), -np.inf)
    gamma[0, 1, 0, 0, 0, 0] = 0.0
    alpha = np.full((nodes, *pair), -np.inf)
    alpha[:2, 0, 0] = 0.0
    with np.errstate(divide="ignore"):
        for n in range(2, nodes):
            table = tables_of(flat[n - 2].astype(np.float64), states, symbols)
            before = gamma[:, n - 1]  # [i q x s z]
            new = logsumexp(
                before[..., None, None] + table.replace[None, None, None], axis=(3, 4)
            )
            new[n - 1] = np.logaddexp(new[n - 1], table.push)
            popped = logsumexp(
                before[..., None] + table.pop[None, None, None], axis=(3, 4)
            )  # [k u y r]
            pairs = np.swapaxes(popped, 2, 3)  # [k u r y]
            terms = gamma[..., None, :] + pairs[None, :, None, None]  # [i k q x u r y]
            gamma[:, n] = np.logaddexp(new, logsumexp(terms, axis=(1, 4)))
            joined = alpha[..., None, None] + gamma[:, n]
            alpha[n] = logsumexp(joined, axis=(0, 1, 2))
    return alpha[2:]


def test_weights_far_outside_the_range_of_floats():
    # Every step's weights are around exp(-40), some exp(10) times the others: the
    # weight of all runs is below exp(-1000), the float32 limit is exp(-103).
    states, symbols, steps = 2, 2, 30
    rng = np.random.default_rng(1)
    count = Transitions.count(states, symbols)
    flat = (10 * rng.normal(size=(steps, 1, count)) - 40).astype(np.float32)
    expected = lang(flat[:, 0], states, symbols)
    assert logsumexp(expected[-1]) < -400
    alphas, _ = run(flat, states, symbols)
    np.testing.assert_allclose(
        distribution(alphas[:, 0]), distribution(expected), atol=2e-5
    )


def make(states=2, symbols=2, **kwargs):
    rngs = nnx.Rngs(0)
    return NDStackMemory(
        RNNCell(6, rngs=rngs),
        num_states=states,
        num_symbols=symbols,
        rngs=rngs,
        **kwargs,
    )


def test_network_reads_the_sum_over_all_runs():
    memory = make(read_states=False)
    z = np.random.default_rng(2).normal(size=(5, 1, 6)).astype(np.float32)
    hidden, kinds = memory(z, mask=jnp.ones((5, 1), bool))
    flat = jax.nn.log_softmax(memory.action_head(hidden))[:, 0]
    weights = enumerate_runs(np.asarray(flat), 2, 2).sum(axis=1)
    tops = weights / weights.sum(-1, keepdims=True)
    h = jnp.zeros((1, 6))
    for t in range(5):
        reading = jnp.asarray(tops[t], jnp.float32)[None]
        _, h = memory.controller(h, z[t] + memory.read(reading))
        np.testing.assert_allclose(hidden[t], h, atol=1e-5)
    np.testing.assert_allclose(jnp.exp(kinds).sum(-1), 1, atol=1e-5)


def test_masked_positions_are_skipped():
    z = np.random.default_rng(3).normal(size=(7, 1, 6)).astype(np.float32)
    mask = np.array([1, 1, 0, 0, 1, 1, 0], bool)
    memory = make()
    with_gaps, _ = memory(z, mask=mask[:, None])
    without, _ = memory(z[mask], mask=jnp.ones((4, 1), bool))
    np.testing.assert_allclose(with_gaps[mask], without, atol=1e-6)


def test_long_strings_have_finite_gradients_and_small_memory():
    length, batch = 60, 2
    memory = make()
    memory.action_head.kernel[...] *= 300.0  # hard actions
    z = np.random.default_rng(4).normal(size=(length, batch, 6)).astype(np.float32)
    graph, params = nnx.split(memory)

    def loss(params):
        hidden, _ = nnx.merge(graph, params)(z, mask=jnp.ones((length, batch), bool))
        return jnp.mean(hidden**2)

    compiled = jax.jit(jax.value_and_grad(loss)).lower(params).compile()
    value, gradient = compiled(params)
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))
    # Without the scan over its history a backward pass would keep `length` of these.
    below = batch * (length + 1) ** 2 * (2 * 2) ** 2 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < 6 * below
