"""A controller with a tape whose head can also jump: the Tape-RNN."""

import enum
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from stackformer.nn.cells.controllers import (
    Controller,
    count_in_strings,
    fan_in_init,
    keep_where,
    reading_layer,
    restart_where,
)
from stackformer.nn.stacks.sampling import choose_actions


class TapeAction(enum.IntEnum):
    """Where the head goes after writing; the last axis of the action arrays."""

    STAY = 0
    LEFT = 1
    RIGHT = 2
    JUMP_LEFT = 3
    JUMP_RIGHT = 4


class TapeMemory(nnx.Module):
    """The Tape-RNN of Delétang et al. (2023), after the Baby-NTM of Suzgun et al.

    A tape is a ring of cells. At each step the controller reads the cell under the
    head of every tape, writes a new value there, and then moves the head: it stays,
    goes one cell to either side, or jumps to either side by the length of the input.
    The result is the average of the five tapes, weighted by the probabilities of the
    moves:

      h    = controller(state, z_t + R tape[head])
      a    = softmax(W_A h + b_A)                five moves; one for each tape
      tape[head] <- MLP(h)
      tape <- sum_m a(m) move_m(tape)            tapes are stored relative to the head

    Memory for a backward pass: about 6 T B S M C floats, M the cells of a tape.

    Args:
      controller: an `RNNCell` or `LSTMCell`; part of this module from now on.
      num_tapes: S.
      cell_size: C, features of one cell.
      tape_size: M, cells of the ring. None: as many as the string has real tokens, so
        that a head that goes one way never comes round to what it wrote, at any
        length, and padding changes nothing.
      write_layers: hidden sizes of the MLP that makes the values.
      num_inputs: features that the model projects to z, for the scale of R.
      rngs: the "params" stream initialises the parameters.

    Example:
      >>> from stackformer.nn.cells.controllers import RNNCell
      >>> rngs = nnx.Rngs(0)
      >>> memory = TapeMemory(RNNCell(16, rngs=rngs), cell_size=4, rngs=rngs)
      >>> z, mask = jnp.ones((7, 2, 16)), jnp.ones((7, 2), bool)
      >>> hidden, logits = memory(z, mask=mask, input_lengths=jnp.array([3, 3]))
      >>> hidden.shape, logits.shape
      ((7, 2, 16), (7, 2, 1, 5))
    """

    def __init__(
        self,
        controller: Controller,
        *,
        num_tapes: int = 1,
        cell_size: int = 8,
        tape_size: int | None = None,
        write_layers: Sequence[int] = (64, 64),
        num_inputs: int = 0,
        rngs: nnx.Rngs,
    ):
        self.controller = controller
        self.num_tapes = num_tapes
        self.cell_size = cell_size
        self.tape_size = tape_size
        self.reading_size = num_tapes * cell_size
        hidden = controller.hidden_size
        self.read = reading_layer(controller, self.reading_size, num_inputs, rngs=rngs)
        sizes = (hidden, *write_layers, self.reading_size)
        self.write_layers = nnx.List(
            nnx.Linear(before, after, kernel_init=fan_in_init(before), rngs=rngs)
            for before, after in itertools.pairwise(sizes)
        )
        self.action_head = nnx.Linear(
            hidden,
            num_tapes * len(TapeAction),
            kernel_init=fan_in_init(hidden),
            rngs=rngs,
        )

    def __call__(
        self,
        z: jax.Array,
        *,
        mask: jax.Array,
        input_lengths: jax.Array,
        starts: jax.Array | None = None,
        hard: bool | jax.Array = False,
    ) -> tuple[jax.Array, jax.Array]:
        """Runs over all positions; see `stackformer.nn.cells.controllers.Memory`."""
        length, batch, _ = z.shape
        size = self.tape_size or length
        ring = jnp.maximum(count_in_strings(mask, starts), 1)
        if self.tape_size:
            ring = jnp.full_like(ring, size)

        def heads(ring, jump):
            """Where the head can go: left, right, and the jumps."""
            one = jnp.ones_like(ring)
            return [head_moves(d, ring, size) for d in (-one, one, -jump, jump)]

        # With several strings in a row they change from position to position.
        fixed = heads(ring, input_lengths) if starts is None else None
        changing = None if starts is None else (ring, input_lengths)

        def move(tape, a, left, right, jump_left, jump_right):
            """sum_m a(m) move_m(tape); tape (B, S, M, C), a (B, S, 5)."""
            moved = {
                TapeAction.STAY: tape,
                TapeAction.LEFT: permute(tape, left, right),
                TapeAction.RIGHT: permute(tape, right, left),
                TapeAction.JUMP_LEFT: permute(tape, jump_left, jump_right),
                TapeAction.JUMP_RIGHT: permute(tape, jump_right, jump_left),
            }
            return sum(a[..., m, None, None] * moved[m] for m in TapeAction)

        def step(carry, inputs):
            z_t, keep, begins, sizes = inputs
            carry = state, tape = restart_where(begins, first, carry)
            reading = self.read(tape[:, :, 0].reshape(batch, self.reading_size))
            new_state, h = self.controller(state, z_t + reading)
            logits = self.action_head(h).reshape(batch, self.num_tapes, -1)
            actions = choose_actions(logits, hard=hard)
            written = jnp.concatenate([self._value(h), tape[:, :, 1:]], axis=2)
            moves = fixed or heads(*sizes)
            new_carry = (new_state, move(written, actions, *moves))
            return keep_where(keep, new_carry, carry), (h, logits)

        tape = jnp.zeros((batch, self.num_tapes, size, self.cell_size))
        first = (self.controller.init_state(batch), tape)
        inputs = (z, mask, starts, changing)
        _, (hidden, logits) = jax.lax.scan(step, first, inputs)
        return hidden, logits

    def _value(self, h):
        *inner, last = self.write_layers
        for layer in inner:
            h = jax.nn.relu(layer(h))
        return last(h).reshape(h.shape[0], self.num_tapes, 1, self.cell_size)


def head_moves(distance: jax.Array, ring: jax.Array, size: int) -> jax.Array:
    """Which old cell each cell comes from when the head moves.

    Args:
      distance: cells that the head goes to the right, shape (B,).
      ring: cells of each string's ring, shape (B,); cells beyond it stay.
      size: M, cells of the array.

    Returns:
      Indices, shape (B, M).

    Example:
      >>> print(head_moves(jnp.array([1]), jnp.array([3]), 4))
      [[1 2 0 3]]
    """
    cells = np.arange(size)[None, :]
    moved = (cells + distance[:, None]) % ring[:, None]
    return jnp.where(cells < ring[:, None], moved, cells)


@jax.custom_vjp
def permute(tape: jax.Array, index: jax.Array, inverse: jax.Array) -> jax.Array:
    """Cells of each string's tapes in the order `index`.

    The gradient is the permutation `inverse`: a gather, where autodiff would write a
    scatter, which is slow on every backend.
    """
    del inverse
    return jnp.take_along_axis(tape, index[:, None, :, None], axis=2)


def _permute_fwd(tape, index, inverse):
    return permute(tape, index, inverse), (index, inverse)


def _permute_bwd(residuals, cotangent):
    index, inverse = residuals
    return permute(cotangent, inverse, index), None, None


permute.defvjp(_permute_fwd, _permute_bwd)
