"""A controller with a nondeterministic stack: the NDStack-RNN."""

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer.nn.cells.controllers import (
    Controller,
    fan_in_init,
    keep_where,
    reading_layer,
    restart_where,
)
from stackformer.ops.history_scan import history_scan
from stackformer.ops.nondeterministic.recurrent import (
    Transitions,
    init_ndstack,
    ndstack_step,
)


class NDStackMemory(nnx.Module):
    """The nondeterministic stack RNN of DuSell and Chiang (2020, 2022).

    At each step the controller reads the distribution of the top of the stack over all
    runs of a weighted pushdown automaton, and its new hidden state h gives the weights
    of the automaton's transitions in this step (see `ops.nondeterministic`):

      h       = controller(state, z_t + R reading)
      weights = softmax(W_A h + b_A)           over all pushes, pops and replaces
      reading = alpha_t / sum alpha_t          over states and symbols, or symbols

    A common factor of all weights of a step cancels in the reading, so the softmax (the
    benchmark's choice) gives the same readings as the unnormalised weights of DuSell
    and Chiang (2022). The cell of the benchmark's code is another one: there the
    probability mass of the top gets lost from step to step, here it sums to one.

    Memory: B (T + 1)^2 (Q S)^2 floats forward, about three times that for a backward
    pass. With Q = 2 and S = 3 that is 0.92 MiB a string at T = 81 and 5.6 MiB at
    T = 201, forward. Time: O(B T^3 Q^3 S^2).

    Args:
      controller: an `RNNCell` or `LSTMCell`; part of this module from now on.
      num_states: Q, states of the automaton.
      num_symbols: S, symbols of its stack, the bottom symbol among them.
      read_states: read the state of the automaton too, not the symbol alone.
      num_inputs: features that the model projects to z, for the scale of R.
      rngs: the "params" stream initialises the parameters.

    Example:
      >>> from stackformer.nn.cells.controllers import RNNCell
      >>> rngs = nnx.Rngs(0)
      >>> memory = NDStackMemory(RNNCell(16, rngs=rngs), rngs=rngs)
      >>> z, mask = jnp.ones((7, 2, 16)), jnp.ones((7, 2), bool)
      >>> hidden, logits = memory(z, mask=mask)
      >>> hidden.shape, logits.shape  # all pushes, all pops, all replaces
      ((7, 2, 16), (7, 2, 1, 3))
    """

    def __init__(
        self,
        controller: Controller,
        *,
        num_states: int = 2,
        num_symbols: int = 3,
        read_states: bool = True,
        num_inputs: int = 0,
        rngs: nnx.Rngs,
    ):
        self.controller = controller
        self.num_states = num_states
        self.num_symbols = num_symbols
        self.read_states = read_states
        self.reading_size = num_symbols * (num_states if read_states else 1)
        self.read = reading_layer(controller, self.reading_size, num_inputs, rngs=rngs)
        self.action_head = nnx.Linear(
            controller.hidden_size,
            Transitions.count(num_states, num_symbols),
            kernel_init=fan_in_init(controller.hidden_size),
            rngs=rngs,
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
        """Runs over all positions; see `stackformer.nn.cells.controllers.Memory`.

        It has no hard actions: all runs of the automaton are followed at once.
        """
        del input_lengths, hard
        length, batch, _ = z.shape
        sizes = (self.num_states, self.num_symbols)
        alpha, first = init_ndstack(batch, length + 1, *sizes)
        graph, params = nnx.split(self)

        def step(params, carry, last, node, inputs):
            memory = nnx.merge(graph, params)
            state, alpha = carry
            z_t, keep = inputs[0], inputs[1] > 0
            z_t = z_t + memory.read(memory._reading(alpha))
            new_state, h = memory.controller(state, z_t)
            flat = jax.nn.log_softmax(memory.action_head(h), axis=-1)
            transitions = Transitions.split(flat, *sizes)
            alpha, base, mix = ndstack_step(alpha, last, node, transitions.where(keep))
            carry = (keep_where(keep, new_state, state), alpha)
            if starts is not None:
                # A node stands before a position: the node of a string's last position
                # becomes the first of the next string.
                ends = inputs[2] > 0
                empty, row = init_ndstack(batch, length + 1, *sizes)
                rested = memory.controller.init_state(batch)
                carry = restart_where(ends, (rested, empty), carry)
                base, mix = restart_where(ends, (row, jnp.zeros_like(mix)), (base, mix))
            return carry, base, mix, (h, _kinds(transitions))

        inputs = (z, mask.astype(z.dtype))
        if starts is not None:
            inputs += (jnp.roll(starts, -1, axis=0).astype(z.dtype),)
        hidden, logits = history_scan(
            step,
            params,
            (self.controller.init_state(batch), alpha),
            first,
            inputs,
        )
        return hidden, logits[:, :, None]

    def _reading(self, alpha):
        """Distribution of the top from its log weights, (B, Q, S) to (B, reading)."""
        distribution = jax.nn.softmax(alpha, axis=(-2, -1))
        if self.read_states:
            return distribution.reshape(alpha.shape[0], self.reading_size)
        return distribution.sum(axis=-2)


def _kinds(transitions):
    """Log probability of all pushes, all pops and all replaces, (B, 3)."""
    kinds = (transitions.push, transitions.pop, transitions.replace)
    return jnp.stack(
        [jax.nn.logsumexp(kind, axis=tuple(range(1, kind.ndim))) for kind in kinds],
        axis=-1,
    )
