"""A controller with superposition stacks: the Stack-RNN and the Stack-LSTM."""

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer import ops
from stackformer.nn.cells.controllers import (
    Controller,
    fan_in_init,
    keep_where,
    reading_layer,
    restart_where,
)
from stackformer.nn.stacks.sampling import choose_actions
from stackformer.ops.stack_attention.recurrent import reachable_depth

_NUM_ACTIONS = 3


class StackMemory(nnx.Module):
    """The stack-augmented recurrent network of Joulin and Mikolov (2015).

    At each step the controller reads the top of every stack, and its new hidden
    state h moves the stacks:

      h       = controller(state, z_t + R top)
      a       = softmax(W_A h + b_A)          push, pop, no-op; one for each stack
      v       = tanh(W_V h + b_V)             what a push would push
      Y[0]   <- a(push) v      + a(pop) Y[1]   + a(no-op) Y[0]
      Y[k]   <- a(push) Y[k-1] + a(pop) Y[k+1] + a(no-op) Y[k]

    The last two lines are `stackformer.ops.stack_step`, the decoding step of stack
    attention, resting on a bottom of zeros. The benchmark's code pushes W_V h + b_V
    without the tanh; with one stack the rest is the same.

    Memory for a backward pass: T B S H C floats, H the stack size.

    Args:
      controller: an `RNNCell` or `LSTMCell`; part of this module from now on.
      num_stacks: S.
      cell_size: C, features of one element.
      stack_size: elements that each stack remembers; deeper ones read as zeros. None:
        T // 2 + 1 for a batch of T positions, which loses nothing, since what lies
        deeper cannot come back to the top in the steps that remain.
      num_inputs: features that the model projects to z, for the scale of R.
      rngs: the "params" stream initialises the parameters.

    Example:
      >>> from stackformer.nn.cells.controllers import RNNCell
      >>> rngs = nnx.Rngs(0)
      >>> memory = StackMemory(RNNCell(16, rngs=rngs), cell_size=4, rngs=rngs)
      >>> z, mask = jnp.ones((7, 2, 16)), jnp.ones((7, 2), bool)
      >>> hidden, logits = memory(z, mask=mask)
      >>> hidden.shape, logits.shape
      ((7, 2, 16), (7, 2, 1, 3))
    """

    def __init__(
        self,
        controller: Controller,
        *,
        num_stacks: int = 1,
        cell_size: int = 8,
        stack_size: int | None = None,
        num_inputs: int = 0,
        rngs: nnx.Rngs,
    ):
        self.controller = controller
        self.num_stacks = num_stacks
        self.cell_size = cell_size
        self.stack_size = stack_size
        self.reading_size = num_stacks * cell_size
        hidden = controller.hidden_size
        self.read = reading_layer(controller, self.reading_size, num_inputs, rngs=rngs)
        init = fan_in_init(hidden)
        self.push_head = nnx.Linear(
            hidden, self.reading_size, kernel_init=init, rngs=rngs
        )
        self.action_head = nnx.Linear(
            hidden, num_stacks * _NUM_ACTIONS, kernel_init=init, rngs=rngs
        )

    def __call__(
        self,
        z: jax.Array,
        *,
        mask: jax.Array,
        input_lengths: jax.Array | None = None,
        starts: jax.Array | None = None,
        hard: bool | jax.Array = False,
    ) -> tuple[jax.Array, jax.Array]:
        """Runs over all positions; see `stackformer.nn.cells.controllers.Memory`."""
        del input_lengths
        length, batch, _ = z.shape
        noop = jax.nn.one_hot(ops.StackAction.NOOP, _NUM_ACTIONS)[None, None]

        def step(carry, inputs):
            z_t, keep, begins = inputs
            state, stack, top = restart_where(begins, first, carry)
            new_state, h = self.controller(state, z_t + self.read(self._flat(top)))
            logits = self._split(self.action_head(h))
            actions = choose_actions(logits, hard=hard)
            value = jnp.tanh(self._split(self.push_head(h)))
            moves = jnp.where(keep[:, None, None], actions, noop)
            stack, top = ops.stack_step(stack, moves, value)
            return (keep_where(keep, new_state, state), stack, top), (h, logits)

        bottom = jnp.zeros((batch, self.num_stacks, self.cell_size))
        depth = self.stack_size or reachable_depth(length + 1)
        first = (
            self.controller.init_state(batch),
            ops.init_stack_state(bottom, depth),
            bottom,
        )
        _, (hidden, logits) = jax.lax.scan(step, first, (z, mask, starts))
        return hidden, logits

    def _split(self, x):
        return x.reshape(x.shape[0], self.num_stacks, -1)

    def _flat(self, x):
        return x.reshape(x.shape[0], self.reading_size)
