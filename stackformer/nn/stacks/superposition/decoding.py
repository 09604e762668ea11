"""Stack attention one position after the other, and the slices of several stacks."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer import ops
from stackformer.nn.stacks.base import Stack
from stackformer.nn.stacks.sampling import noop_outside
from stackformer.nn.stacks.superposition.config import SuperpositionConfig
from stackformer.ops.stack_attention.hard import (
    HardStackState,
    hard_stack_read,
    hard_stack_step,
    init_hard_state,
)
from stackformer.ops.stack_attention.recurrent import reachable_depth


class DecodingStack(Stack):
    """What `StackAttention` does one position at a time; it has the parameters."""

    config: SuperpositionConfig
    features: int
    width: int
    num_stacks: int
    action_head: nnx.Linear
    value_head: nnx.Linear | None
    output: nnx.Linear | None

    def predict_actions(self, h: jax.Array) -> jax.Array:
        """The action head: probabilities (..., T, A), or (..., S, T, A)."""
        raise NotImplementedError

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
        features = self.width // self.num_stacks
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
        value = self._values(h[..., None, :])[..., 0, :]
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
        return state, self._output(top[..., None, :], h.dtype)[..., 0, :]

    def prefill(
        self, state: Any, h: jax.Array, length: int | jax.Array
    ) -> tuple[Any, jax.Array]:
        """Reads a prompt in parallel; see `Stack`."""
        actions = self.predict_actions(h)
        values = self._values(h)
        inside = jnp.broadcast_to(jnp.arange(h.shape[-2]) < length, h.shape[:-1])
        actions = self._mask_actions(actions, inside)
        if isinstance(state, HardStackState):
            chosen = jnp.argmax(actions, axis=-1).astype(jnp.int32)
            state, top = hard_stack_read(state, chosen, values)
            return state, self._output(top, h.dtype)
        # Whatever form was asked for: not every one has a state.
        options: dict[str, Any] = self._options | {"implementation": None}
        top, new = ops.stack_attention(actions, values, return_state=True, **options)
        depth = state.shape[-2] - 1
        new = ops.resize_stack_state(new, depth).astype(state.dtype)
        return new, self._output(top, h.dtype)

    @property
    def _options(self) -> dict[str, Any]:
        return {
            "implementation": self.config.implementation,
            "chunk_size": self.config.chunk_size,
            "max_depth": self.config.max_depth,
            "max_pops": self.config.max_pops,
        }

    def _read(self, weights, h):
        """What alpha reads of h, accumulated in float32 or wider."""
        values = self._values(h)
        wide = jnp.promote_types(
            jnp.promote_types(weights.dtype, values.dtype), jnp.float32
        )
        top = weights.astype(wide) @ values.astype(wide)
        return self._output(top.astype(values.dtype), h.dtype)

    def _values(self, h):
        """What is pushed, (..., T, D), or (..., S, T, D / S)."""
        values = h if self.value_head is None else self.value_head(h)
        if self.num_stacks == 1:
            return values
        slices = values.reshape(*values.shape[:-1], self.num_stacks, -1)
        return jnp.moveaxis(slices, -2, -3)

    def _output(self, top, dtype):
        """From what lies on top of the stacks, as `_values`, to (..., T, D)."""
        if self.num_stacks > 1:
            top = jnp.moveaxis(top, -3, -2)
            top = top.reshape(*top.shape[:-2], self.width)
        if self.output is not None:
            top = self.output(top)
        return top.astype(dtype)

    def _per_stack(self, ids):
        """(..., T) to (..., S, T)."""
        if self.num_stacks == 1:
            return ids
        shape = (*ids.shape[:-1], self.num_stacks, ids.shape[-1])
        return jnp.broadcast_to(ids[..., None, :], shape)

    def _mask_actions(self, actions, mask):
        return noop_outside(self._per_stack(mask), actions)
