"""Stack attention as a Flax module: the stack of the paper."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer import ops
from stackformer.checks import check_features
from stackformer.nn.stacks.base import (
    Stack,
    StackConfig,
    StackOutput,
    check_hidden,
)
from stackformer.nn.stacks.sampling import (
    SAMPLINGS,
    Sampling,
    choose_actions,
    noop_outside,
)
from stackformer.ops.stack_attention.forms import choose
from stackformer.ops.stack_attention.hard import (
    HardStackState,
    hard_stack_read,
    hard_stack_step,
    init_hard_state,
)
from stackformer.ops.stack_attention.recurrent import reachable_depth

_DEFAULT_KERNEL_INIT = nnx.initializers.lecun_normal()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuperpositionConfig(StackConfig):
    """Options of `StackAttention`; the defaults are the paper's stack.

    Attributes:
      num_stacks: independent stacks, each on its slice of the features.
      max_depth: elements that a stack remembers; None is all of them.
      max_pops: the largest number of elements popped in one step.
      sampling: "soft", "gumbel" or "straight_through", see `choose_actions`.
      implementation: form of the kernel, see `stackformer.stack_attention`.
      chunk_size: chunk length of the chunkwise form.

    Example:
      >>> SuperpositionConfig(num_stacks=2).make(16, rngs=nnx.Rngs(0)).num_stacks
      2
    """

    name: ClassVar[str] = "superposition"

    num_stacks: int = 1
    max_depth: int | None = None
    max_pops: int = 1
    sampling: Sampling = "soft"
    implementation: str | None = None
    chunk_size: int | None = None

    def __post_init__(self):
        for name in ("num_stacks", "max_depth", "max_pops", "chunk_size"):
            value = getattr(self, name)
            if value is None and name in ("max_depth", "chunk_size"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"`{name}` should be an integer of at least 1, but got {value!r}."
                )
        if self.sampling not in SAMPLINGS:
            raise ValueError(
                f"`sampling` should be one of {', '.join(SAMPLINGS)}, but got "
                f"{self.sampling!r}."
            )
        # Options that exclude each other are refused here, not at the first call.
        choose(
            2,
            1,
            implementation=self.implementation,
            chunk_size=self.chunk_size,
            max_depth=self.max_depth,
            max_pops=self.max_pops,
        )

    def make(
        self,
        features: int,
        *,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = "float32",
        kernel_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs,
    ) -> "StackAttention":
        """The module for hidden states of `features` numbers."""
        return StackAttention(
            features,
            **dataclasses.asdict(self),
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init or _DEFAULT_KERNEL_INIT,
            rngs=rngs,
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SharedActions:
    """Given actions with their alpha, from `StackAttention.share_actions`."""

    actions: jax.Array
    weights: jax.Array


class StackAttention(Stack):
    """A differentiable stack over the positions of a sequence: S(H) of the paper.

      a_i    = softmax(W_A h_i + b_A)              actions: push, pop, no-op
      alpha  = stack attention of a                 see `stackformer.ops`
      S(H)_i = sum_n alpha_i(n) h_n                 what lies on top

    Position 0 is the bottom of the stack: put a BOS token there.

    Args:
      features: the size D of the hidden states.
      num_stacks: independent stacks, each with actions of its own and each holding
        its slice of D / num_stacks features. 1 is the paper's module.
      sampling: "soft" mixes the three actions, as the paper does; "gumbel" samples one
        while training; "straight_through" takes the most probable one. See
        `stackformer.nn.stacks.choose_actions`.
      implementation: the form of the kernel, see `stackformer.stack_attention`.
      chunk_size: the chunk length of the chunkwise form.
      max_depth: the number of elements that a stack remembers; None is all of them.
      max_pops: the largest number of elements that one step can pop.
      dtype: the dtype of the action head's product; the input's where None.
      param_dtype: the dtype of the parameters.
      kernel_init: initializer of W_A; b_A starts at zero.
      rngs: the random streams that initialise the parameters.

    Example:
      >>> import jax, stackformer
      >>> from flax import nnx
      >>> stack = stackformer.StackAttention(16, rngs=nnx.Rngs(0))
      >>> h = jax.random.normal(jax.random.key(0), (2, 5, 16))
      >>> out = stack(h, return_weights=True)
      >>> out.top.shape, out.weights.shape, out.actions.shape
      ((2, 5, 16), (2, 5, 5), (2, 5, 3))
    """

    def __init__(
        self,
        features: int,
        *,
        num_stacks: int = 1,
        sampling: Sampling = "soft",
        implementation: str | None = None,
        chunk_size: int | None = None,
        max_depth: int | None = None,
        max_pops: int = 1,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = jnp.float32,
        kernel_init: nnx.Initializer = _DEFAULT_KERNEL_INIT,
        rngs: nnx.Rngs,
    ):
        self.config = SuperpositionConfig(
            num_stacks=num_stacks,
            sampling=sampling,
            implementation=implementation,
            chunk_size=chunk_size,
            max_depth=max_depth,
            max_pops=max_pops,
        )
        check_features(features, num_stacks)
        self.features = features
        self.num_stacks = num_stacks
        self.num_actions = max_pops + 2
        self.action_head = nnx.Linear(
            features,
            num_stacks * self.num_actions,
            dtype=dtype,  # pyright: ignore[reportArgumentType]
            param_dtype=param_dtype,  # pyright: ignore[reportArgumentType]
            kernel_init=kernel_init,
            rngs=rngs,
        )

    def __call__(
        self,
        h: jax.Array,
        *,
        mask: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        actions: jax.Array | SharedActions | None = None,
        weights: jax.Array | None = None,
        rngs: nnx.Rngs | None = None,
        hard: bool | jax.Array = False,
        differentiate_actions: bool = False,
        return_weights: bool = False,
        initial_state: jax.Array | None = None,
        return_state: bool = False,
    ) -> StackOutput:
        """Reads the top of the stack at every position.

        Args:
          h: hidden states, shape (..., T, D).
          mask: True at real positions, shape (..., T). A padded position is a
            no-op: nothing is pushed there, so it receives no weight.
          segment_ids: neighbours of one number are a string of their own, (..., T).
          actions: given action probabilities in place of the predicted ones, shape
            (..., T, A), or (..., S, T, A) with S > 1 stacks. They are data: the
            gradient flows through h alone.
          weights: alpha of given actions, computed beforehand by
            `stackformer.stack_attention_weights` and shared by layers and steps;
            then nothing in this call is sequential. It holds all that `actions`,
            `mask` and `segment_ids` say, so none of them goes with it.
          rngs: draws the noise of sampling="gumbel", stream "actions".
          hard: take the most probable predicted action; may be traced.
          differentiate_actions: let the gradient flow into the given actions.
          return_weights: return alpha too.
          initial_state: what an earlier piece of a long string left, the `state` that
            its call returned: h goes on with it, position 0 is no bottom.
          return_state: return the stack after the last position, shape (..., H + 1, D),
            or (..., S, H + 1, D / S); see `stackformer.stack_attention`.

        Returns:
          `StackOutput`, with an axis S before T where there are several stacks.
        """
        check_hidden(self.features, h, mask, segment_ids)
        stateful = return_state or initial_state is not None
        if stateful and (return_weights or weights is not None):
            raise ValueError(
                "`initial_state` and `return_state` should be left out where alpha is "
                "given or asked for: alpha is of one whole string."
            )
        if weights is not None:
            self._check_weights(h, weights, actions, mask, segment_ids)
            return StackOutput(top=self._read(weights, h), weights=weights)
        logits = None
        if actions is None:
            logits = self.action_logits(h)
            actions = choose_actions(
                logits, sampling=self.config.sampling, rngs=rngs, hard=hard
            )
        elif isinstance(actions, SharedActions):
            if stateful:
                raise ValueError(
                    "`actions` should be an array with a state, but got what "
                    "`share_actions` made, whose alpha is of one whole string."
                )
            shared = actions
            return StackOutput(
                top=self._read(shared.weights, h),
                weights=shared.weights if return_weights else None,
                actions=shared.actions,
            )
        elif not differentiate_actions:
            actions = jax.lax.stop_gradient(actions)
        if mask is not None:
            actions = self._mask_actions(actions, mask)
        options = self._options
        if segment_ids is not None:
            options["segment_ids"] = self._per_stack(segment_ids)
        state = None
        if stateful:
            top, state = ops.stack_attention(
                actions,
                self._split(h),
                initial_state=initial_state,
                return_state=True,
                **options,
            )
            top = self._join(top)
        elif logits is None or return_weights:
            # With alpha at hand the backward pass of the values is one product.
            weights = ops.stack_attention_weights(actions, **options)
            top = self._read(weights, h)
        else:
            top = self._join(ops.stack_attention(actions, self._split(h), **options))
        return StackOutput(
            top=top,
            weights=weights if return_weights else None,
            actions=actions,
            logits=logits,
            state=state if return_state else None,
        )

    def share_actions(
        self,
        actions: jax.Array,
        *,
        mask: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
    ) -> SharedActions:
        """Given actions with their alpha: for stacks that are given the same ones."""
        actions = jax.lax.stop_gradient(actions)
        if mask is not None:
            actions = self._mask_actions(actions, mask)
        options = self._options
        if segment_ids is not None:
            options["segment_ids"] = self._per_stack(segment_ids)
        weights = ops.stack_attention_weights(actions, **options)
        return SharedActions(actions, weights)

    def predict_actions(self, h: jax.Array) -> jax.Array:
        """The action head: probabilities (..., T, A), or (..., S, T, A)."""
        return jax.nn.softmax(self.action_logits(h), axis=-1)

    def action_logits(self, h: jax.Array) -> jax.Array:
        """W_A h + b_A in float32, for a loss on the actions; shape as `actions`."""
        logits = self.action_head(h)
        logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        if self.num_stacks == 1:
            return logits
        logits = logits.reshape(*h.shape[:-1], self.num_stacks, self.num_actions)
        return jnp.moveaxis(logits, -2, -3)

    def init_state(
        self, batch_shape: tuple[int, ...], max_length: int, *, hard: bool = False
    ) -> jax.Array | HardStackState:
        """The state before position 0, which fills it with the bottom.

        Args:
          batch_shape: the leading axes.
          max_length: positions that will be read, at most.
          hard: a plain stack of positions, moved by the most probable action in
            constant work; a stack with another `sampling` than "soft" is always hard.
        """
        shape = batch_shape if self.num_stacks == 1 else (*batch_shape, self.num_stacks)
        features = self.features // self.num_stacks
        dtype = self.action_head.kernel.dtype
        if hard or self.config.sampling != "soft":
            return init_hard_state(
                shape,
                max_length,
                features,
                max_depth=self.config.max_depth,
                dtype=dtype,
            )
        depth = reachable_depth(
            max_length, max_depth=self.config.max_depth, max_pops=self.config.max_pops
        )
        return ops.init_stack_state(jnp.zeros((*shape, features), dtype), depth)

    def step(
        self,
        state: Any,
        h: jax.Array,
        index: jax.Array,
        *,
        actions: jax.Array | None = None,
    ) -> tuple[Any, jax.Array]:
        """Reads position `index`.

        Args:
          state: from `init_state` or the step before.
          h: the hidden state, shape (..., D).
          index: the scalar position; 0 is the bottom, which reads itself.
          actions: given ones, shape (..., A), or (..., S, A) with S > 1 stacks.

        Returns:
          The new state, and the top of the stack, shape (..., D).
        """
        value = self._split_one(h)
        if actions is None:
            actions = self.predict_actions(h[..., None, :])[..., 0, :]
        if isinstance(state, HardStackState):
            state, top = hard_stack_step(
                state, jnp.argmax(actions, axis=-1).astype(jnp.int32), value, index
            )
        else:
            stepped, top = ops.stack_step(
                state, actions, value, max_pops=self.config.max_pops
            )
            first = index == 0
            bottom = value.astype(state.dtype)[..., None, :]
            state = jnp.where(first, bottom, stepped)
            top = jnp.where(first, value, top)
        return state, top.reshape(h.shape).astype(h.dtype)

    def prefill(
        self, state: Any, h: jax.Array, length: int | jax.Array
    ) -> tuple[Any, jax.Array]:
        """Reads a prompt in parallel; see `Stack`."""
        actions = self.predict_actions(h)
        values = self._split(h)
        inside = jnp.broadcast_to(jnp.arange(h.shape[-2]) < length, h.shape[:-1])
        actions = self._mask_actions(actions, inside)
        if isinstance(state, HardStackState):
            chosen = jnp.argmax(actions, axis=-1).astype(jnp.int32)
            state, top = hard_stack_read(state, chosen, values)
            return state, self._join(top)
        # Whatever form was asked for: not every one has a state.
        options: dict[str, Any] = self._options | {"implementation": None}
        top, new = ops.stack_attention(actions, values, return_state=True, **options)
        depth = state.shape[-2] - 1
        new = ops.resize_stack_state(new, depth).astype(state.dtype)
        return new, self._join(top)

    @property
    def _options(self) -> dict[str, Any]:
        return {
            "implementation": self.config.implementation,
            "chunk_size": self.config.chunk_size,
            "max_depth": self.config.max_depth,
            "max_pops": self.config.max_pops,
        }

    def _read(self, weights, h):
        """alpha @ h, accumulated in float32 or wider."""
        wide = jnp.promote_types(jnp.promote_types(weights.dtype, h.dtype), jnp.float32)
        top = weights.astype(wide) @ self._split(h).astype(wide)
        return self._join(top).astype(h.dtype)

    def _split(self, h):
        if self.num_stacks == 1:
            return h
        slices = h.reshape(*h.shape[:-1], self.num_stacks, -1)
        return jnp.moveaxis(slices, -2, -3)

    def _split_one(self, h_t):
        return self._split(h_t[..., None, :])[..., 0, :]

    def _join(self, top):
        if self.num_stacks == 1:
            return top
        top = jnp.moveaxis(top, -3, -2)
        return top.reshape(*top.shape[:-2], self.features)

    def _per_stack(self, ids):
        """(..., T) to (..., S, T)."""
        if self.num_stacks == 1:
            return ids
        shape = (*ids.shape[:-1], self.num_stacks, ids.shape[-1])
        return jnp.broadcast_to(ids[..., None, :], shape)

    def _mask_actions(self, actions, mask):
        return noop_outside(self._per_stack(mask), actions)

    def _check_weights(self, h, weights, actions, mask, segment_ids):
        others = dict(actions=actions, mask=mask, segment_ids=segment_ids)
        given = [name for name, value in others.items() if value is not None]
        if given:
            raise ValueError(
                f"`weights` should be given without {', '.join(given)}, since alpha "
                "holds them already; pass `actions` instead of `weights`."
            )
        length = h.shape[-2]
        stacks = () if self.num_stacks == 1 else (self.num_stacks,)
        expected = (*h.shape[:-2], *stacks, length, length)
        if weights.shape != expected:
            raise ValueError(
                f"`weights` shape should be {expected}, but got {weights.shape}."
            )
