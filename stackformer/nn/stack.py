"""Stack attention as a Flax module."""

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer import ops

_DEFAULT_KERNEL_INIT = nnx.initializers.lecun_normal()


class StackAttention(nnx.Module):
    """A differentiable stack over the positions of a sequence: S(H) of the paper.

      a_i    = softmax(W_A h_i + b_A)              actions: push, pop, no-op
      alpha  = stack attention of a                 see `stackformer.ops`
      S(H)_i = sum_n alpha_i(n) h_n                 what lies on top

    Position 0 is the bottom of the stack: put a BOS token there.

    Args:
      features: the size D of the hidden states.
      num_stacks: independent stacks, each with actions of its own and each holding
        its slice of D / num_stacks features. 1 is the paper's module.
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
      >>> top, alpha, actions = stack(h, return_weights=True)
      >>> top.shape, alpha.shape, actions.shape
      ((2, 5, 16), (2, 5, 5), (2, 5, 3))
    """

    def __init__(
        self,
        features: int,
        *,
        num_stacks: int = 1,
        implementation: str | None = None,
        chunk_size: int | None = None,
        max_depth: int | None = None,
        max_pops: int = 1,
        dtype: jnp.dtype | None = None,
        param_dtype: jnp.dtype = jnp.float32,
        kernel_init: nnx.Initializer = _DEFAULT_KERNEL_INIT,
        rngs: nnx.Rngs,
    ):
        if num_stacks < 1 or features % num_stacks:
            raise ValueError(
                f"`num_stacks` should divide `features` ({features}), but got "
                f"{num_stacks}."
            )
        self.features = features
        self.num_stacks = num_stacks
        self.implementation = implementation
        self.chunk_size = chunk_size
        self.max_depth = max_depth
        self.max_pops = max_pops
        self.num_actions = max_pops + 2
        self.action_head = nnx.Linear(
            features,
            num_stacks * self.num_actions,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init,
            rngs=rngs,
        )

    def __call__(
        self,
        h: jax.Array,
        *,
        actions: jax.Array | None = None,
        weights: jax.Array | None = None,
        mask: jax.Array | None = None,
        differentiate_actions: bool = False,
        return_weights: bool = False,
    ) -> jax.Array | tuple[jax.Array, jax.Array, jax.Array]:
        """Reads the top of the stack at every position.

        Args:
          h: hidden states, shape (..., T, D).
          actions: given action probabilities in place of the predicted ones, shape
            (..., T, A), or (..., S, T, A) with S > 1 stacks. They are data: the
            gradient flows through h alone.
          weights: alpha of the given actions, computed beforehand by
            `stackformer.stack_attention_weights` and shared by layers and steps;
            then nothing in this call is sequential.
          mask: True at real positions, shape (..., T). A padded position is a
            no-op: nothing is pushed there, so it receives no weight.
          differentiate_actions: let the gradient flow into the given actions.
          return_weights: return alpha and the actions too.

        Returns:
          S(H), the shape and dtype of h; with `return_weights` the triple (S(H),
          alpha (..., T, T), actions (..., T, A)), each with an axis S before T
          where there are several stacks.
        """
        self._check_hidden(h)
        given = actions is not None or weights is not None
        if actions is None:
            actions = self.predict_actions(h)
        elif not differentiate_actions:
            actions = jax.lax.stop_gradient(actions)
        if mask is not None:
            actions = self._mask_actions(actions, mask)
        values = self._split(h)
        if weights is None and (given or return_weights):
            # With alpha at hand the backward pass of the values is one product.
            weights = ops.stack_attention_weights(actions, **self._options)
        if weights is None:
            top = ops.stack_attention(actions, values, **self._options)
        else:
            top = (weights.astype(jnp.float32) @ values.astype(jnp.float32)).astype(
                h.dtype
            )
        top = self._join(top)
        return (top, weights, actions) if return_weights else top

    def predict_actions(self, h: jax.Array) -> jax.Array:
        """The action head: probabilities (..., T, A), or (..., S, T, A)."""
        return jax.nn.softmax(self.action_logits(h), axis=-1)

    def action_logits(self, h: jax.Array) -> jax.Array:
        """W_A h + b_A in float32, for a loss on the actions; shape as `actions`."""
        logits = self.action_head(h).astype(jnp.float32)
        if self.num_stacks == 1:
            return logits
        logits = logits.reshape(*h.shape[:-1], self.num_stacks, self.num_actions)
        return jnp.moveaxis(logits, -2, -3)

    def init_state(self, h_0: jax.Array, depth: int | None = None) -> jax.Array:
        """The empty stack of a string whose position 0 is h_0, for decoding.

        Args:
          h_0: the hidden state of BOS, shape (..., D). Its output is h_0 itself.
          depth: elements to remember, `max_depth` where None; with as many as there
            are positions to come, the steps equal the whole sequence exactly.

        Returns:
          The state, shape (..., depth, D), or (..., S, depth, D / S).
        """
        depth = self.max_depth if depth is None else depth
        if depth is None:
            raise ValueError("`depth` should be given, as the module has no max_depth.")
        return ops.init_stack_state(self._split_one(h_0), depth)

    def step(
        self, state: jax.Array, h_t: jax.Array, *, actions: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Reads one more position, t >= 1.

        Args:
          state: the stack, from `init_state` or the step before.
          h_t: the hidden state, shape (..., D).
          actions: given ones, shape (..., A), or (..., S, A) with S > 1 stacks.

        Returns:
          The new state, and the top of the stack, shape (..., D).
        """
        if actions is None:
            actions = self.predict_actions(h_t[..., None, :])[..., 0, :]
        state, top = ops.stack_step(
            state, actions, self._split_one(h_t), max_pops=self.max_pops
        )
        return state, top.reshape(h_t.shape).astype(h_t.dtype)

    @property
    def _options(self):
        return {
            "implementation": self.implementation,
            "chunk_size": self.chunk_size,
            "max_depth": self.max_depth,
            "max_pops": self.max_pops,
        }

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

    def _mask_actions(self, actions, mask):
        noop = jax.nn.one_hot(
            ops.StackAction.NOOP, self.num_actions, dtype=actions.dtype
        )
        mask = mask[..., None]
        if self.num_stacks > 1:
            mask = mask[..., None, :, :]
        noop = noop.reshape((1,) * (actions.ndim - 1) + noop.shape)
        return jnp.where(mask, actions, noop)

    def _check_hidden(self, h):
        if h.ndim < 2 or h.shape[-1] != self.features:
            raise ValueError(
                f"`h` shape should be (..., T, {self.features}), but got {h.shape}."
            )
