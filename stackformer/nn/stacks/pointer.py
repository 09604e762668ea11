"""A stack with one pointer, linear in the length, as a Flax module."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer.checks import check_choice, check_features, check_types
from stackformer.nn.feed_forward import linear_init
from stackformer.nn.stacks.base import Stack, StackConfig, StackOutput, check_hidden
from stackformer.nn.stacks.sampling import (
    SAMPLINGS,
    Sampling,
    choose_actions,
    noop_outside,
)
from stackformer.ops.pointer import (
    PointerState,
    init_pointer_state,
    pointer_stack,
    pointer_step,
)
from stackformer.ops.stack_attention.api import StackAction

Array = jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointerConfig(StackConfig):
    """Options of `PointerStack`.

    Attributes:
      max_depth: elements that the stack holds; a push onto a full one overwrites its
        top. None: as many as there can be, and time is then quadratic in the length.
      sampling: of the actions, see `choose_actions`.

    Example:
      >>> PointerConfig(max_depth=32).make(16, rngs=nnx.Rngs(0)).config.max_depth
      32
    """

    name: ClassVar[str] = "pointer"

    max_depth: int | None = None
    sampling: Sampling = "soft"

    def __post_init__(self):
        check_types(self)
        check_choice("sampling", self.sampling, SAMPLINGS)
        if self.max_depth is not None and self.max_depth < 1:
            raise ValueError(
                f"`max_depth` should be at least 1, but got {self.max_depth}."
            )

    def make(
        self,
        features: int,
        *,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = "float32",
        kernel_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs,
    ) -> "PointerStack":
        """The module for hidden states of `features` numbers."""
        return PointerStack(
            features,
            config=self,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init,
            rngs=rngs,
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decoding:
    """The state of decoding: memory and pointer, and whether actions are made hard."""

    stack: PointerState
    hard: bool = dataclasses.field(metadata={"static": True})


class PointerStack(Stack):
    """A memory with a row for each depth, and a pointer into it.

      a_i = softmax(W_A h_i + b_A)                 actions: push, pop, no-op
      d_i = d_{i-1} + push - pop                   between empty and full
      a push overwrites what lies at d_i with h_i, by the delta rule
      S(H)_i = what lies at d_i

    With certain actions it is an ordinary stack, as `StackAttention` is; a mixture of
    actions is a pointer between two depths in place of a mixture of stacks. See
    `stackformer/ops/pointer/README.md`.

    Args:
      features: the size D of the hidden states.
      config: `PointerConfig`, the default one where None.
      dtype: the dtype of the action head's product; the input's where None.
      param_dtype: the dtype of the parameters.
      kernel_init: initializer of W_A.
      rngs: the "params" stream initialises the parameters.

    Example:
      >>> stack = PointerStack(16, rngs=nnx.Rngs(0))
      >>> h = jax.random.normal(jax.random.key(0), (2, 5, 16))
      >>> out = stack(h, return_weights=True)
      >>> out.top.shape, out.weights.shape, out.actions.shape
      ((2, 5, 16), (2, 5, 5), (2, 5, 3))
    """

    def __init__(
        self,
        features: int,
        *,
        config: PointerConfig | None = None,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = jnp.float32,
        kernel_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        check_features(features)
        self.config = config or PointerConfig()
        self.features = features
        self.action_head = nnx.Linear(
            features,
            len(StackAction),
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init or linear_init(),
            rngs=rngs,
        )

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
        """Reads what lies at the pointer, at every position; see `Stack`."""
        check_hidden(self.features, h, mask, segment_ids)
        logits = None
        if actions is None:
            logits = self._logits(h)
            actions = self._choose(logits, rngs, hard)
        else:
            actions = jax.lax.stop_gradient(actions)
        if mask is not None:
            actions = noop_outside(mask, actions)

        def read(values: Array) -> Array:
            return pointer_stack(
                actions,
                values,
                max_depth=self.config.max_depth,
                segment_ids=segment_ids,
            )

        weights = None
        if return_weights:
            eye = jnp.eye(h.shape[-2], dtype=jnp.float32)
            weights = read(jnp.broadcast_to(eye, (*h.shape[:-1], h.shape[-2])))
        return StackOutput(top=read(h), weights=weights, actions=actions, logits=logits)

    def init_state(
        self, batch_shape: tuple[int, ...], max_length: int, *, hard: bool = False
    ) -> Decoding:
        """The empty memory; with `hard`, or where actions are sampled, the steps take
        the most probable action."""
        depth = max(max_length - 1, 1)
        most = self.config.max_depth
        stack = init_pointer_state(
            batch_shape,
            depth if most is None else min(most, depth),
            self.features,
            dtype=jnp.promote_types(self.action_head.kernel.dtype, jnp.float32),
        )
        return Decoding(stack, hard)

    def step(self, state: Decoding, h: Array, index: Array) -> tuple[Decoding, Array]:
        """Reads position `index`, h (..., D); see `Stack`."""
        actions = self._choose(self._logits(h), None, state.hard)
        stack, reading = pointer_step(state.stack, actions, h, index)
        return Decoding(stack, state.hard), reading.astype(h.dtype)

    def _logits(self, h: Array) -> Array:
        logits = self.action_head(h)
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))

    def _choose(self, logits: Array, rngs: nnx.Rngs | None, hard: bool | Array):
        return choose_actions(
            logits, sampling=self.config.sampling, rngs=rngs, hard=hard
        )
