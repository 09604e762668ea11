"""The controllers against their equations, one number at a time."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stackformer.nn.cells.controllers import (
    LSTMCell,
    NoMemory,
    RNNCell,
    make_controller,
)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rnn_step(kernel, state, z):
    h = np.maximum(z + state @ kernel, 0)
    return h, h


def lstm_step(kernel, state, z):
    h, c = state
    gates = (z + h @ kernel).reshape(len(z), 4, -1)
    i, g, f, o = (gates[:, k] for k in range(4))
    c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return (h, c), h


@pytest.mark.parametrize("name, step", [("rnn", rnn_step), ("lstm", lstm_step)])
def test_controller_equals_its_equations(name, step):
    controller = make_controller(name, 5, rngs=nnx.Rngs(0))
    kernel = np.asarray(controller.recurrent.kernel[...], np.float64)
    z = np.random.default_rng(0).normal(size=(6, 3, controller.gate_size))
    hidden, actions = NoMemory(controller)(
        jnp.asarray(z, jnp.float32),
        mask=jnp.ones((6, 3), bool),
        input_lengths=jnp.zeros(3, int),
    )
    zeros = np.zeros((3, 5))
    state = zeros if name == "rnn" else (zeros, zeros)
    for t in range(6):
        state, expected = step(kernel, state, z[t])
        np.testing.assert_allclose(hidden[t], expected, atol=2e-6)
    assert actions is None


@pytest.mark.parametrize("cell", [RNNCell, LSTMCell])
def test_masked_positions_are_skipped_wherever_they_are(cell):
    memory = NoMemory(cell(5, rngs=nnx.Rngs(0)))
    z = np.random.default_rng(1).normal(size=(6, 1, memory.controller.gate_size))
    z = z.astype(np.float32)
    mask = np.array([False, True, True, False, True, False])[:, None]
    lengths = jnp.zeros(1, int)
    with_gaps, _ = memory(z, mask=mask, input_lengths=lengths)
    without, _ = memory(
        z[mask[:, 0]], mask=jnp.ones((3, 1), bool), input_lengths=lengths
    )
    np.testing.assert_allclose(with_gaps[mask[:, 0]], without, atol=1e-6)
