"""The recurrent baselines: RNN and LSTM, alone or with stacks, tapes or an ND stack."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer import ops
from stackformer.checks import check_arrays, check_choice, check_positive, check_types
from stackformer.models.layers import ReturnAux
from stackformer.models.outputs import Aux
from stackformer.nn.cells.controllers import (
    CONTROLLER_NAMES,
    ControllerName,
    Memory,
    NoMemory,
    fan_in_init,
    make_controller,
)
from stackformer.nn.cells.nondeterministic import NDStackMemory
from stackformer.nn.cells.stack import StackMemory
from stackformer.nn.cells.tape import TapeMemory
from stackformer.nn.stacks.sampling import choose_actions


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """An RNN or LSTM without a memory; sizes as in the benchmark.

    Attributes:
      vocab_size: number of token ids.
      output_size: number of output classes.
      controller: "rnn" or "lstm".
      hidden_size: features of the hidden state.
    """

    vocab_size: int
    output_size: int
    controller: ControllerName = "rnn"
    hidden_size: int = 256

    def __post_init__(self):
        check_types(self)
        check_choice("controller", self.controller, CONTROLLER_NAMES)
        check_positive(self, "vocab_size", "output_size", "hidden_size")

    def make_memory(self, rngs: nnx.Rngs) -> Memory:
        """The controller with its memory."""
        return NoMemory(self._make_controller(rngs))

    def _make_controller(self, rngs):
        return make_controller(self.controller, self.hidden_size, rngs=rngs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackRecurrentConfig(RecurrentConfig):
    """A Stack-RNN or Stack-LSTM.

    Attributes:
      num_stacks: stacks, each with actions of its own.
      stack_cell_size: features of one element.
      stack_size: elements that a stack remembers; None for as many as the string can
        need. (The benchmark's 30 forgets what lies deeper, which costs accuracy on
        strings longer than that.)
    """

    num_stacks: int = 1
    stack_cell_size: int = 8
    stack_size: int | None = None

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "num_stacks", "stack_cell_size", "stack_size")

    def make_memory(self, rngs: nnx.Rngs) -> Memory:
        """The controller with its stacks."""
        return StackMemory(
            self._make_controller(rngs),
            num_stacks=self.num_stacks,
            cell_size=self.stack_cell_size,
            stack_size=self.stack_size,
            num_inputs=self.vocab_size,
            rngs=rngs,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TapeRecurrentConfig(RecurrentConfig):
    """A Tape-RNN.

    Attributes:
      num_tapes: tapes, each with a head of its own.
      tape_cell_size: features of one cell.
      tape_size: cells of the ring; None for as many as the string has tokens.
      write_layers: hidden sizes of the network that makes the values to write.
      num_special_tokens: token ids below this one are no input symbols (PAD, BOS,
        MASK, SEP). The head jumps by the number of input symbols in the string.
    """

    num_tapes: int = 1
    tape_cell_size: int = 8
    tape_size: int | None = None
    write_layers: tuple[int, ...] = (64, 64)
    num_special_tokens: int = 4

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "write_layers", tuple(self.write_layers))
        check_positive(self, "num_tapes", "tape_cell_size", "tape_size")

    def make_memory(self, rngs: nnx.Rngs) -> Memory:
        """The controller with its tapes."""
        return TapeMemory(
            self._make_controller(rngs),
            num_tapes=self.num_tapes,
            cell_size=self.tape_cell_size,
            tape_size=self.tape_size,
            write_layers=self.write_layers,
            num_inputs=self.vocab_size,
            rngs=rngs,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NDStackRecurrentConfig(RecurrentConfig):
    """A nondeterministic stack RNN.

    Attributes:
      num_states: states of the pushdown automaton.
      num_symbols: symbols of its stack, the bottom symbol among them.
      read_states: read the automaton's state too, not the symbol on top alone.
    """

    num_states: int = 2
    num_symbols: int = 3
    read_states: bool = True

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "num_states", "num_symbols")

    def make_memory(self, rngs: nnx.Rngs) -> Memory:
        """The controller with its nondeterministic stack."""
        return NDStackMemory(
            self._make_controller(rngs),
            num_states=self.num_states,
            num_symbols=self.num_symbols,
            read_states=self.read_states,
            num_inputs=self.vocab_size,
            rngs=rngs,
        )


class RecurrentModel(nnx.Module):
    """Reads tokens from left to right and gives logits at every position.

      z_t    = W one_hot(token_t) + b            all positions in one product
      h_t    = controller and memory             one scan over the positions
      logits = W_O relu(h_t) + b_O               all positions in one product

    For the masked framing of the tasks, BOS x MASK ... MASK: the outputs are read at
    the MASK tokens, which the network uses as time to compute.

    Args:
      config: which controller, which memory, and their sizes.
      rngs: the "params" stream initialises the parameters.

    Example:
      >>> config = StackRecurrentConfig(vocab_size=6, output_size=2, hidden_size=16)
      >>> model = RecurrentModel(config, rngs=nnx.Rngs(0))
      >>> tokens = jnp.array([[1, 4, 5, 2, 2], [1, 5, 2, 0, 0]])
      >>> logits, aux = model(tokens, mask=tokens > 0, return_aux=True)
      >>> logits.shape, aux.stack_actions[0].shape
      ((2, 5, 2), (2, 5, 3))
    """

    def __init__(self, config: RecurrentConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.memory = config.make_memory(rngs)
        controller = self.memory.controller
        num_inputs = config.vocab_size + self.memory.reading_size
        self.input = nnx.Linear(
            config.vocab_size,
            controller.gate_size,
            kernel_init=controller.input_init(num_inputs),
            rngs=rngs,
        )
        self.output = nnx.Linear(
            config.hidden_size,
            config.output_size,
            kernel_init=fan_in_init(config.hidden_size),
            rngs=rngs,
        )

    def __call__(
        self,
        tokens: jax.Array,
        *,
        mask: jax.Array | None = None,
        rngs: nnx.Rngs | None = None,
        hard: bool | jax.Array = False,
        return_aux: ReturnAux = False,
    ) -> Any:
        """Logits at every position.

        Args:
          tokens: token ids, shape (B, T).
          mask: True at real tokens, shape (B, T); None where all are. A padded position
            changes neither the hidden state nor the memory.
          rngs: taken as all models do; there is no dropout here.
          hard: the memory takes the most probable action; may be traced. The
            nondeterministic stack has no hard actions.
          return_aux: return what the memory did too; "actions" leaves out
            `stack_weights`, which cost extra. `stack_actions` holds the action
            probabilities, (B, T, A), or (B, S, T, A) with several stacks or tapes:
            push, pop, no-op of a stack; `TapeAction` of a tape; all pushes, all pops,
            all replaces of the nondeterministic stack. For a stack, `stack_weights`
            (B, T, T) is the probability that the top after a position was pushed at
            another: a row sums to one less the probability that the stack is empty.

        Returns:
          Logits, shape (B, T, output_size); with `return_aux` also an `Aux`.
        """
        del rngs
        tokens, mask = _check_inputs(tokens, mask)
        hidden, actions = self.memory(
            self.input(jax.nn.one_hot(tokens.T, self.config.vocab_size)),
            mask=mask.T,
            input_lengths=self._input_lengths(tokens, mask),
            hard=hard,
        )
        logits = jnp.swapaxes(self.output(jax.nn.relu(hidden)), 0, 1)
        if not return_aux:
            return logits
        return logits, self._aux(actions, mask, hard, return_aux is True)

    def _input_lengths(self, tokens, mask):
        first = getattr(self.config, "num_special_tokens", 0)
        return jnp.sum(mask & (tokens >= first), axis=-1)

    def _aux(self, logits, mask, hard, return_weights):
        """From action logits (T, B, S, A), or None."""
        weights = actions = None
        if logits is not None:
            logits = jnp.moveaxis(logits, 0, 2)  # (B, S, T, A)
            actions = choose_actions(logits, hard=hard)
            if isinstance(self.memory, StackMemory) and return_weights:
                weights = _stack_weights(actions, mask)
            if logits.shape[1] == 1:
                weights, actions, logits = jax.tree.map(
                    lambda leaf: leaf[:, 0], (weights, actions, logits)
                )
        return Aux(
            stack_weights=(weights,),
            stack_actions=(actions,),
            action_logits=(logits,),
            attention_weights=(None,),
            bottom_first=False,
        )


def _stack_weights(actions, mask):
    """Which position lies on top, (B, S, T, T); the bottom stands before the first."""
    noop = jax.nn.one_hot(ops.StackAction.NOOP, actions.shape[-1])[None, None, None]
    moves = jnp.where(mask[:, None, :, None], actions, noop)
    bottom = jnp.broadcast_to(noop, (*moves.shape[:2], 1, moves.shape[-1]))
    moves = jnp.concatenate([bottom, moves], axis=2)
    return ops.stack_attention_weights(moves)[..., 1:, 1:]


def _check_inputs(tokens, mask):
    check_arrays(tokens=tokens, mask=mask)
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ValueError(
            "`tokens` should be integers of shape (batch, positions), but got "
            f"{tokens.dtype} of shape {tokens.shape}."
        )
    if mask is None:
        return tokens, jnp.ones(tokens.shape, bool)
    if mask.shape != tokens.shape:
        raise ValueError(
            f"`mask` shape should be that of `tokens`, {tokens.shape}, but got "
            f"{mask.shape}."
        )
    return tokens, mask.astype(bool)
