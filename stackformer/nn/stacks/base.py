"""The protocol of a stack: all that a block, or a model of your own, knows of one.

A stack is a sub-layer with the shape of its input. Legend: T positions, D features,
A actions, S stacks side by side in one module.
"""

import abc
import dataclasses
from functools import partial
from typing import Any, ClassVar, Required, TypedDict, Unpack

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer.checks import check_arrays

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class StackOutput:
    """What a stack returns.

    Attributes:
      top: what is read at every position, the shape and dtype of the input.
      weights: which positions a reading comes from, (..., T, T), or (..., S, T, T)
        with several stacks; None unless asked for, since it may cost extra.
      actions: the action probabilities that moved the stack, (..., T, A), or
        (..., S, T, A); None where a stack has no actions.
      logits: what the action head said, float32, of the same shape, for losses on the
        actions; None where a stack has no action head or actions were given.
      state: the stack after the last position, where a stack was asked for it
        (`return_state`): the `initial_state` of the next piece of the string.
    """

    top: Array
    weights: Array | None = None
    actions: Array | None = None
    logits: Array | None = None
    state: Any = None


class Stack(nnx.Module):
    """A differentiable stack over the positions of a sequence.

    Position 0, and the first position of every segment, is the bottom: put a BOS token
    there. A subclass is one file here, one in `ops/`, and a line in the registry
    (`stackformer.nn.stacks.STACKS`). All here but the nondeterministic one also read
    long strings in pieces: `initial_state`, `return_state`.

    Attributes:
      reads_at: whether a call takes `at`, (..., M): the positions to read, where only
        their readings, (..., M, D), are wanted.
    """

    reads_at: ClassVar[bool] = False

    def __call__(
        self,
        h: Array,
        *,
        mask: Array | None = None,
        segment_ids: Array | None = None,
        actions: Any = None,
        rngs: nnx.Rngs | None = None,
        hard: bool | Array = False,
        return_weights: bool = False,
    ) -> StackOutput:
        """Reads the stack at every position of a whole sequence.

        Args:
          h: hidden states, shape (..., T, D).
          mask: True at real positions, shape (..., T); a padded position moves nothing.
          segment_ids: integers, shape (..., T): neighbours of one number are a string
            of their own, with an empty stack at its first position.
          actions: given ones in place of the predicted, or what `share_actions` made of
            them. They are data: no gradient flows into them.
          rngs: makes the actions of a sampling stack random (stream "actions").
          hard: take the most probable action instead of the mixture; may be traced.
          return_weights: fill in `StackOutput.weights`.
        """
        raise NotImplementedError

    def share_actions(
        self,
        actions: Array,
        *,
        mask: Array | None = None,
        segment_ids: Array | None = None,
    ) -> Any:
        """Given actions, prepared once for several stacks of this kind."""
        return actions

    def init_state(
        self, batch_shape: tuple[int, ...], max_length: int, *, hard: bool = False
    ) -> Any:
        """The state before position 0, for a string of at most `max_length` positions.

        With `hard` the steps take the most probable action.
        """
        raise NotImplementedError

    def step(self, state: Any, h: Array, index: Array) -> tuple[Any, Array]:
        """Reads position `index`, h (..., D); equal to the whole call.

        Returns:
          The new state, and what is read, (..., D).
        """
        raise NotImplementedError

    def prefill(self, state: Any, h: Array, length: int | Array) -> tuple[Any, Array]:
        """Reads a prompt, positions 0..T-1 of which the first `length` count.

        Equal to that many steps, which is what it does unless a stack knows better.

        Args:
          state: from `init_state`.
          h: shape (..., T, D).
          length: a number, or a traced scalar, from 1 to T.

        Returns:
          The state after `length` positions, and what is read, (..., T, D), of meaning
          at the first `length` positions.
        """

        def step(state: Any, inputs: tuple[Array, Array]) -> tuple[Any, Array]:
            index, h_t = inputs
            new, top = self.step(state, h_t, index)
            return jax.tree.map(partial(jnp.where, index < length), new, state), top

        inputs = (jnp.arange(h.shape[-2]), jnp.moveaxis(h, -2, 0))
        state, tops = jax.lax.scan(step, state, inputs)
        return state, jnp.moveaxis(tops, 0, -2)


def check_hidden(
    features: int, h: Array, mask: Array | None, segment_ids: Array | None
) -> None:
    """Raises ValueError unless h is (..., T, features) and the others (..., T)."""
    check_arrays(h=h, mask=mask, segment_ids=segment_ids)
    if h.ndim < 2 or h.shape[-1] != features:
        raise ValueError(
            f"`h` shape should be (..., T, {features}), but got {h.shape}."
        )
    for name, array in (("mask", mask), ("segment_ids", segment_ids)):
        if array is not None and array.shape != h.shape[:-1]:
            raise ValueError(
                f"`{name}` shape should be {h.shape[:-1]}, that of `h` without its "
                f"last axis, but got {array.shape}."
            )


def check_no_alpha(stateful: bool, alpha: bool) -> None:
    """Raises ValueError where alpha is given or wanted of a piece of a string."""
    if stateful and alpha:
        raise ValueError(
            "`initial_state` and `return_state` should be left out where alpha is "
            "given or asked for: alpha is of one whole string."
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decoding:
    """The state of decoding: the memory, and whether actions are made hard."""

    memory: Any
    hard: bool = dataclasses.field(metadata={"static": True})


class LayerOptions(TypedDict, total=False):
    """What the model decides for its layers, a stack among them.

    Attributes:
      dtype: of the products; the input's where None or left out.
      param_dtype: of the parameters; float32 where left out.
      kernel_init: of the linear layers; the stack's own where None or left out.
      rngs: the "params" stream initialises the parameters.
    """

    dtype: jax.typing.DTypeLike | None
    param_dtype: jax.typing.DTypeLike
    kernel_init: nnx.Initializer | None
    rngs: Required[nnx.Rngs]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackConfig(abc.ABC):
    """The options of a kind of stack, as JSON can hold them.

    Attributes:
      name: what the command line and saved files call this kind of stack.
      reads_at: that of the stack, see `Stack`.
    """

    name: ClassVar[str]
    reads_at: ClassVar[bool] = False

    @abc.abstractmethod
    def make(self, features: int, **options: Unpack[LayerOptions]) -> Stack:
        """The module for hidden states of `features` numbers."""

    def to_json(self) -> dict[str, Any]:
        """All options and the name, to be read by `stack_config`."""
        return {"name": self.name, **dataclasses.asdict(self)}
