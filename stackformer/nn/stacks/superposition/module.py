"""Stack attention as a Flax module: the stack of the paper."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer import ops
from stackformer.checks import check_features
from stackformer.nn.stacks.base import StackOutput, check_hidden, check_no_alpha
from stackformer.nn.stacks.sampling import Sampling, choose_actions
from stackformer.nn.stacks.superposition.config import (
    SuperpositionConfig,
)
from stackformer.nn.stacks.superposition.decoding import DecodingStack
from stackformer.ops.stack_attention.certain import attend_certain


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SharedActions:
    """Given actions with their alpha, from `StackAttention.share_actions`."""

    actions: jax.Array
    weights: jax.Array


class StackAttention(DecodingStack):
    """A differentiable stack over the positions of a sequence: S(H) of the paper.

      a_i    = softmax(W_A h_i + b_A)              actions: push, pop, no-op
      alpha  = stack attention of a                 see `stackformer.ops`
      S(H)_i = sum_n alpha_i(n) h_n                 what lies on top

    Position 0 is the bottom of the stack: put a BOS token there. With `project` vectors
    of their own lie on the stack, S(H)_i = W_O sum_n alpha_i(n) (W_V h_n + b_V) + b_O.

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
      project: push W_V h + b_V and read through W_O; False is the paper's module.
      value_features: numbers of W_V h; D where None.
      dtype: the dtype of the linear layers' products; the input's where None.
      param_dtype: the dtype of the parameters.
      kernel_init: initializer of W_A, W_V and W_O, lecun_normal() where None; biases
        start at zero.
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
        project: bool = False,
        value_features: int | None = None,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = jnp.float32,
        kernel_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        self.config = SuperpositionConfig(
            num_stacks=num_stacks,
            sampling=sampling,
            implementation=implementation,
            chunk_size=chunk_size,
            max_depth=max_depth,
            max_pops=max_pops,
            project=project,
            value_features=value_features,
        )
        check_features(features, 1 if value_features else num_stacks)
        if value_features and value_features % num_stacks:
            raise ValueError(
                f"`value_features` should be a multiple of `num_stacks` ({num_stacks}),"
                f" but got {value_features}."
            )
        self.features = features
        self.width = value_features or features
        self.num_stacks = num_stacks
        self.num_actions = max_pops + 2
        linear: dict[str, Any] = dict(
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init or nnx.initializers.lecun_normal(),
            rngs=rngs,
        )
        actions = num_stacks * self.num_actions
        self.action_head = nnx.Linear(features, actions, **linear)
        self.value_head = nnx.data(
            nnx.Linear(features, self.width, **linear) if project else None
        )
        self.output = nnx.data(
            nnx.Linear(self.width, features, **linear) if project else None
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
            or (..., S, H + 1, D / S), with `value_features` for D where there are some;
            see `stackformer.stack_attention`.

        Returns:
          `StackOutput`, with an axis S before T where there are several stacks.
        """
        check_hidden(self.features, h, mask, segment_ids)
        stateful = return_state or initial_state is not None
        check_no_alpha(stateful, return_weights or weights is not None)
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
                self._values(h),
                initial_state=initial_state,
                return_state=True,
                **options,
            )
            top = self._output(top, h.dtype)
        elif logits is None or return_weights:
            # With alpha at hand the backward pass of the values is one product.
            weights = ops.stack_attention_weights(actions, **options)
            top = self._read(weights, h)
        else:
            attend = ops.stack_attention
            if hard is not False and segment_ids is None:
                attend = functools.partial(attend_certain, hard)
            top = self._output(attend(actions, self._values(h), **options), h.dtype)
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
