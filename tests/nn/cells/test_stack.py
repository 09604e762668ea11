"""The stack memory against Joulin and Mikolov's equations in plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from stackformer.nn.cells.controllers import RNNCell
from stackformer.nn.cells.stack import StackMemory

LENGTH, BATCH, HIDDEN, STACKS, CELL = 9, 2, 6, 2, 3


def make(stack_size=None):
    rngs = nnx.Rngs(0)
    return StackMemory(
        RNNCell(HIDDEN, rngs=rngs),
        num_stacks=STACKS,
        cell_size=CELL,
        stack_size=stack_size,
        rngs=rngs,
    )


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return 2 * rng.normal(size=(LENGTH, BATCH, HIDDEN)).astype(np.float32)


ALL = jnp.ones((LENGTH, BATCH), bool)


def loops(memory, z, size):
    """The network on lists of vectors: `size` elements over a bottom of zeros."""

    def linear(layer, x):
        out = x @ np.asarray(layer.kernel[...], np.float64)
        return out if layer.bias is None else out + np.asarray(layer.bias[...])

    hidden = np.zeros((LENGTH, HIDDEN))
    h = np.zeros(HIDDEN)
    stacks = [[np.zeros(CELL)] * (size + 1) for _ in range(STACKS)]
    for t in range(LENGTH):
        reading = np.concatenate([stack[0] for stack in stacks])
        gates = z[t] + linear(memory.read, reading)
        gates += linear(memory.controller.recurrent, h)
        h = hidden[t] = np.maximum(gates, 0)
        scores = np.exp(linear(memory.action_head, h)).reshape(STACKS, 3)
        values = np.tanh(linear(memory.push_head, h)).reshape(STACKS, CELL)
        for s in range(STACKS):
            push, pop, noop = scores[s] / scores[s].sum()
            old = [values[s], *stacks[s]]
            stacks[s] = [
                push * old[k] + noop * old[k + 1] + pop * old[k + 2]
                for k in range(size)
            ] + [np.zeros(CELL)]
    return hidden


def test_equals_plain_loops_and_default_size_loses_nothing():
    z = inputs()
    hidden, logits = make()(z, mask=ALL)
    expected = np.stack([loops(make(), z[:, b], LENGTH) for b in range(BATCH)], axis=1)
    np.testing.assert_allclose(hidden, expected, atol=1e-5)
    assert logits.shape == (LENGTH, BATCH, STACKS, 3)


def test_stack_size_is_what_the_stack_remembers():
    z = inputs()
    shallow, _ = make(stack_size=1)(z, mask=ALL)
    expected = np.stack([loops(make(), z[:, b], 1) for b in range(BATCH)], axis=1)
    np.testing.assert_allclose(shallow, expected, atol=1e-5)
    deep, _ = make()(z, mask=ALL)
    assert np.abs(shallow - deep).max() > 1e-3


def test_half_the_positions_suffice_for_hard_actions():
    # Push for the first half, then pop: the deepest use that any string can make.
    memory = make()
    half = LENGTH // 2
    kernel = np.zeros((HIDDEN, STACKS * 3))
    kernel[0, ::3] = kernel[1, 1::3] = 200.0
    memory.action_head.kernel[...] = jnp.asarray(kernel, jnp.float32)
    memory.controller.recurrent.kernel[...] = jnp.zeros((HIDDEN, HIDDEN))
    z = np.abs(inputs()) + 1.0
    z[:half, :, 1] = z[half:, :, 0] = -1e4  # unit 0 says push, unit 1 says pop
    z[:half, :, 0] = z[half:, :, 1] = 10.0
    results = []
    for size in (None, LENGTH):
        memory.stack_size = size
        hidden, logits = memory(z, mask=ALL)
        results.append(hidden)
    actions = jax.nn.softmax(logits)
    assert jnp.all(actions[:half, ..., 0] == 1) and jnp.all(actions[half:, ..., 1] == 1)
    np.testing.assert_allclose(results[0], results[1], atol=1e-6)


def test_masked_positions_leave_the_stack_alone():
    z = inputs()
    mask = np.ones((LENGTH, BATCH), bool)
    mask[[0, 4, 5]] = False
    memory = make()
    with_gaps, _ = jax.jit(lambda z: memory(z, mask=mask))(z)
    keep = mask[:, 0]
    without, _ = memory(z[keep], mask=ALL[keep])
    np.testing.assert_allclose(with_gaps[keep], without, atol=1e-6)
