"""The controllers of the recurrent models: a plain RNN cell and an LSTM cell.

A controller gets the input already projected to its gates, because the model projects
the tokens of all positions in one product; only the recurrent product is sequential.

Dimension legend, for the recurrent cells:
  T positions
  B strings in a batch
  H features of the hidden state
  G gate features that the controller takes as input: H (RNN) or 4 H (LSTM)
  C features of one memory cell
"""

from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

ControllerName = Literal["rnn", "lstm"]


def fan_in_init(fan_in: int) -> jax.nn.initializers.Initializer:
    """Normal, standard deviation 1 / sqrt(fan_in), cut at two of them.

    The benchmark's initializer. `fan_in` is given because one linear map of
    concatenated inputs is stored here as several kernels.
    """
    return jax.nn.initializers.truncated_normal(fan_in**-0.5)


class RNNCell(nnx.Module):
    """h_t = relu(z_t + W h_{t-1}), with z_t the projected input and its bias.

    Args:
      hidden_size: H.
      rngs: the "params" stream initialises W.

    Example:
      >>> cell = RNNCell(4, rngs=nnx.Rngs(0))
      >>> state, h = cell(cell.init_state(2), jnp.ones((2, cell.gate_size)))
      >>> h.shape
      (2, 4)
    """

    def __init__(self, hidden_size: int, *, rngs: nnx.Rngs):
        self.hidden_size = hidden_size
        self.gate_size = hidden_size
        self.recurrent = nnx.Linear(
            hidden_size,
            hidden_size,
            use_bias=False,
            kernel_init=fan_in_init(hidden_size),
            rngs=rngs,
        )

    def input_init(self, num_inputs: int) -> jax.nn.initializers.Initializer:
        """Initializer of kernels that map `num_inputs` features in all to z."""
        return fan_in_init(num_inputs)

    def init_state(self, batch_size: int) -> jax.Array:
        """h_0 = 0, shape (B, H)."""
        return jnp.zeros((batch_size, self.hidden_size))

    def __call__(self, state: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One step: state (B, H) and z (B, G) to the new state and h_t (B, H)."""
        h = jax.nn.relu(z + self.recurrent(state))
        return h, h


class LSTMCell(nnx.Module):
    """The LSTM without peepholes, one added to the forget gate's bias.

      (i, g, f, o) = z_t + W h_{t-1}
      c_t = sigmoid(f + 1) c_{t-1} + sigmoid(i) tanh(g)
      h_t = sigmoid(o) tanh(c_t)

    Args:
      hidden_size: H.
      rngs: the "params" stream initialises W.

    Example:
      >>> cell = LSTMCell(4, rngs=nnx.Rngs(0))
      >>> state, h = cell(cell.init_state(2), jnp.ones((2, cell.gate_size)))
      >>> cell.gate_size, h.shape
      (16, (2, 4))
    """

    def __init__(self, hidden_size: int, *, rngs: nnx.Rngs):
        self.hidden_size = hidden_size
        self.gate_size = 4 * hidden_size
        self.recurrent = nnx.Linear(
            hidden_size,
            4 * hidden_size,
            use_bias=False,
            kernel_init=fan_in_init(hidden_size),
            rngs=rngs,
        )

    def input_init(self, num_inputs: int) -> jax.nn.initializers.Initializer:
        """Initializer of kernels that map `num_inputs` features in all to z."""
        return fan_in_init(num_inputs + self.hidden_size)

    def init_state(self, batch_size: int) -> tuple[jax.Array, jax.Array]:
        """h_0 = c_0 = 0, each of shape (B, H)."""
        zeros = jnp.zeros((batch_size, self.hidden_size))
        return zeros, zeros

    def __call__(
        self, state: tuple[jax.Array, jax.Array], z: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        """One step: state (h, c) and z (B, G) to the new state and h_t (B, H)."""
        h, c = state
        i, g, f, o = jnp.split(z + self.recurrent(h), 4, axis=-1)
        c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h


Controller = RNNCell | LSTMCell
_CONTROLLERS: dict[str, type[Controller]] = {"rnn": RNNCell, "lstm": LSTMCell}
CONTROLLER_NAMES = tuple(_CONTROLLERS)


def make_controller(
    name: ControllerName, hidden_size: int, *, rngs: nnx.Rngs
) -> Controller:
    """The controller of that name, "rnn" or "lstm"."""
    return _CONTROLLERS[name](hidden_size, rngs=rngs)


class Memory(Protocol):
    """A controller with (or without) an external memory, run over whole strings."""

    controller: Controller
    reading_size: int

    def __call__(
        self,
        z: jax.Array,
        *,
        mask: jax.Array,
        input_lengths: jax.Array,
        starts: jax.Array | None = None,
        hard: bool | jax.Array = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Runs over all positions; time is the leading axis.

        Args:
          z: the projected inputs, shape (T, B, G).
          mask: True at real positions, shape (T, B). A padded position leaves the
            hidden state and the memory as they are.
          input_lengths: symbols in each string's input, shape (B,), or (T, B) with
            `starts`.
          starts: True where a string of its own begins, shape (T, B): hidden state and
            memory are there as at position 0. None: a string a row.
          hard: take the most probable action of each step; may be traced.

        Returns:
          The hidden states, shape (T, B, H), and the logits of the actions, shape
          (T, B, memories, actions), or None where there is no memory.
        """
        ...


class NoMemory(nnx.Module):
    """A controller alone: the vanilla RNN and the LSTM. See `Memory`."""

    reading_size = 0

    def __init__(self, controller: Controller):
        self.controller = controller

    def __call__(
        self,
        z: jax.Array,
        *,
        mask: jax.Array,
        input_lengths: jax.Array,
        starts: jax.Array | None = None,
        hard: bool | jax.Array = False,
    ) -> tuple[jax.Array, None]:
        """Runs over all positions; see `Memory`."""
        del input_lengths, hard

        def step(state, inputs):
            z_t, keep, begins = inputs
            state = restart_where(begins, first, state)
            new_state, h = self.controller(state, z_t)
            return keep_where(keep, new_state, state), h

        first = self.controller.init_state(z.shape[1])
        _, hidden = jax.lax.scan(step, first, (z, mask, starts))
        return hidden, None


def reading_layer(
    controller: Controller, reading_size: int, num_inputs: int, *, rngs: nnx.Rngs
) -> nnx.Linear:
    """The linear map from what is read of a memory to the controller's gates."""
    return nnx.Linear(
        reading_size,
        controller.gate_size,
        use_bias=False,
        kernel_init=controller.input_init(num_inputs + reading_size),
        rngs=rngs,
    )


def keep_where(keep: jax.Array, new: Any, old: Any) -> Any:
    """`new` for the strings where `keep` (B,) is True, else `old`; any pytree."""

    def select(new, old):
        return jnp.where(keep.reshape(keep.shape + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(select, new, old)


def count_in_strings(counted: jax.Array, starts: jax.Array | None) -> jax.Array:
    """True positions of each string, (T, B) to (B,), or (T, B) with `starts`.

    Example:
      >>> starts = jnp.array([[False], [False], [True]])
      >>> print(count_in_strings(jnp.ones((3, 1), bool), starts)[:, 0])
      [2 2 1]
    """
    if starts is None:
        return jnp.sum(counted, axis=0)
    string = jnp.cumsum(starts, axis=0)
    same = string[:, None] == string[None, :]
    return jnp.sum(same & counted[None, :], axis=1)


def restart_where(begins: jax.Array | None, first: Any, carry: Any) -> Any:
    """`first` for the rows where a string begins, (B,); None: none does."""
    return carry if begins is None else keep_where(begins, first, carry)
