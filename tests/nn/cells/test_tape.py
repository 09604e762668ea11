"""The tape memory against a tape that is really rolled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stackformer.nn.cells.controllers import RNNCell
from stackformer.nn.cells.tape import TapeAction, TapeMemory, head_moves, permute

LENGTH, HIDDEN, TAPES, CELL = 8, 6, 2, 3


def make(tape_size=None):
    rngs = nnx.Rngs(0)
    return TapeMemory(
        RNNCell(HIDDEN, rngs=rngs),
        num_tapes=TAPES,
        cell_size=CELL,
        tape_size=tape_size,
        write_layers=(7,),
        rngs=rngs,
    )


def rolled(memory, z, input_length, ring):
    """One string with `numpy.roll`; the head stands at cell 0 of the tape."""

    def linear(layer, x):
        out = x @ np.asarray(layer.kernel[...], np.float64)
        return out if layer.bias is None else out + np.asarray(layer.bias[...])

    distance = {
        TapeAction.STAY: 0,
        TapeAction.LEFT: -1,
        TapeAction.RIGHT: 1,
        TapeAction.JUMP_LEFT: -input_length,
        TapeAction.JUMP_RIGHT: input_length,
    }
    hidden = np.zeros((len(z), HIDDEN))
    h = np.zeros(HIDDEN)
    tapes = np.zeros((TAPES, ring, CELL))
    first, last = memory.write_layers
    for t in range(len(z)):
        gates = z[t] + linear(memory.read, tapes[:, 0].reshape(-1))
        gates += linear(memory.controller.recurrent, h)
        h = hidden[t] = np.maximum(gates, 0)
        scores = np.exp(linear(memory.action_head, h)).reshape(TAPES, 5)
        scores /= scores.sum(-1, keepdims=True)
        value = linear(last, np.maximum(linear(first, h), 0))
        tapes[:, 0] = value.reshape(TAPES, CELL)
        tapes = np.stack(
            [
                sum(
                    scores[s, m] * np.roll(tapes[s], -distance[m], axis=0)
                    for m in TapeAction
                )
                for s in range(TAPES)
            ]
        )
    return hidden


@pytest.mark.parametrize("tape_size", [None, 3, 12])
def test_equals_rolled_tapes(tape_size):
    # Strings of different lengths in one batch, each with its own ring and jump.
    lengths, jumps = [8, 5], [3, 2]
    rng = np.random.default_rng(0)
    z = rng.normal(size=(LENGTH, 2, HIDDEN)).astype(np.float32)
    mask = np.arange(LENGTH)[:, None] < np.array(lengths)[None]
    memory = make(tape_size)
    hidden, actions = memory(z, mask=mask, input_lengths=jnp.array(jumps))
    assert actions.shape == (LENGTH, 2, TAPES, 5)
    for b, (length, jump) in enumerate(zip(lengths, jumps, strict=True)):
        expected = rolled(memory, z[:length, b], jump, tape_size or length)
        np.testing.assert_allclose(hidden[:length, b], expected, atol=1e-5)


def test_head_moves_are_inverse_permutations():
    ring, size = jnp.array([1, 4, 6]), 6
    for distance in ([1, 1, 1], [3, 9, 0]):
        there = head_moves(jnp.array(distance), ring, size)
        back = head_moves(-jnp.array(distance), ring, size)
        together = jnp.take_along_axis(there, back, axis=1)
        np.testing.assert_array_equal(together, np.tile(np.arange(size), (3, 1)))


def test_gradient_of_permute_is_that_of_a_gather():
    ring = jnp.array([4, 6])
    there, back = (head_moves(d * jnp.array([1, 2]), ring, 6) for d in (1, -1))
    tape, weight = jax.random.normal(jax.random.key(0), (2, 2, TAPES, 6, CELL))

    def gather(tape):
        return jnp.take_along_axis(tape, there[:, None, :, None], axis=2)

    got = jax.grad(lambda x: jnp.sum(weight * permute(x, there, back) ** 2))(tape)
    expected = jax.grad(lambda x: jnp.sum(weight * gather(x) ** 2))(tape)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
