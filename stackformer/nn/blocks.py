"""The layer of a (stack) transformer: attention, feed-forward, stack."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from stackformer.nn.attention import AttentionCache, MultiHeadAttention, linear_init
from stackformer.nn.dropout import dropout
from stackformer.nn.positions import Positions
from stackformer.nn.stack import StackAttention


class FeedForward(nnx.Module):
    """Two linear layers with an activation between: FFN of the paper's section 2.2.

    Example:
      >>> FeedForward(8, 32, rngs=nnx.Rngs(0))(jnp.ones((2, 8))).shape
      (2, 8)
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        *,
        activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = jnp.float32,
        kernel_init: initializers.Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        options = dict(
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init or linear_init(),
            rngs=rngs,
        )
        self.activation = activation
        self.up = nnx.Linear(features, hidden, **options)
        self.down = nnx.Linear(hidden, features, **options)

    def __call__(self, h: jax.Array) -> jax.Array:
        """Shape (..., D) to (..., D)."""
        return self.down(self.activation(self.up(h)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockAux:
    """What one layer did; see `stackformer.models.Aux`."""

    attention_weights: jax.Array | None = None
    stack_weights: jax.Array | None = None
    stack_actions: jax.Array | None = None
    predicted_actions: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockCache:
    """The decoding state of one layer: keys and values, and the stack itself."""

    attention: AttentionCache
    stack: jax.Array | None


class TransformerBlock(nnx.Module):
    """One layer of the paper's stack transformer (sections 2.2 and 3.3).

        H_mha   = LN(MHA(H) + H)
        H_ffn   = LN(FFN(H_mha) + H_mha)
        H_stack = Stack(H_ffn) + H_ffn            [no layer norm]

    Dropout acts on what attention and feed-forward return, before the residual sum, as
    in the benchmark. Beyond the paper, both off by default: `pre_norm` moves the norms
    to the inputs of the sub-layers, H + MHA(LN(H)) and so on; `stack_norm` gives the
    stack a norm of its own, LN(Stack(H) + H), or H + Stack(LN(H)) with `pre_norm`.

    Args:
      features: D.
      num_heads: N.
      hidden: features inside the feed-forward.
      stack: options of `StackAttention` (num_stacks, max_depth, ...), or None for a
        layer without a stack.
      causal, positions, max_wavelength: see `MultiHeadAttention`.
      dropout: rate.
      pre_norm, stack_norm: see above.
      dtype: dtype of the products; the residual stream follows it. None: the input's.
      rngs: the "params" stream initialises the parameters.

    Example:
      >>> block = TransformerBlock(16, 4, hidden=64, stack={}, rngs=nnx.Rngs(0))
      >>> block(jnp.ones((2, 5, 16)))[0].shape
      (2, 5, 16)
    """

    def __init__(
        self,
        features: int,
        num_heads: int,
        *,
        hidden: int,
        stack: dict | None = None,
        causal: bool = False,
        positions: Positions = "none",
        max_wavelength: float = 10_000.0,
        dropout: float = 0.0,
        pre_norm: bool = False,
        stack_norm: bool = False,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        options = dict(dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.rate = dropout
        self.pre_norm = pre_norm
        self.attention = MultiHeadAttention(
            features,
            num_heads,
            causal=causal,
            positions=positions,
            max_wavelength=max_wavelength,
            **options,
        )
        self.attention_norm = layer_norm(features, **options)
        self.feed_forward = FeedForward(features, hidden, **options)
        self.feed_forward_norm = layer_norm(features, **options)
        self.stack = (
            None
            if stack is None
            else StackAttention(features, kernel_init=linear_init(), **stack, **options)
        )
        has_norm = stack is not None and stack_norm
        self.stack_norm = layer_norm(features, **options) if has_norm else None

    def __call__(
        self,
        h: jax.Array,
        *,
        mask: jax.Array | None = None,
        actions: jax.Array | None = None,
        weights: jax.Array | None = None,
        key: jax.Array | None = None,
        return_weights: bool = False,
        return_actions: bool = False,
    ) -> tuple[jax.Array, BlockAux]:
        """Runs the layer.

        Args:
          h: shape (B, T, D).
          mask: True at real positions, shape (B, T).
          actions: given actions for the stack instead of the predicted ones.
          weights: alpha of the given actions, if it is known already.
          key: dropout happens if and only if there is a key.
          return_weights: fill in everything in the second result.
          return_actions: fill in the actions, which costs nothing.

        Returns:
          h, shape (B, T, D), and what the layer did (None where not asked for).
        """
        keys = (None, None) if key is None else jax.random.split(key)
        aux = {}

        out = self.attention(
            self._before(self.attention_norm, h),
            mask=mask,
            return_weights=return_weights,
        )
        if return_weights:
            out, aux["attention_weights"] = out
        h = self._after(self.attention_norm, h + dropout(out, self.rate, keys[0]))

        out = self.feed_forward(self._before(self.feed_forward_norm, h))
        h = self._after(self.feed_forward_norm, h + dropout(out, self.rate, keys[1]))

        if self.stack is not None:
            inputs = self._before(self.stack_norm, h)
            out = self.stack(
                inputs, actions=actions, weights=weights, return_weights=return_weights
            )
            if return_weights:
                out, aux["stack_weights"], _ = out
            if return_weights or return_actions:
                predicted = self.stack.predict_actions(inputs)
                aux["predicted_actions"] = predicted
                aux["stack_actions"] = predicted if actions is None else actions
            h = self._after(self.stack_norm, h + out)
        return h, BlockAux(**aux)

    def init_cache(self, batch_size: int, max_length: int, depth: int) -> BlockCache:
        """An empty decoding state for at most `max_length` positions.

        `depth` is the number of elements that the stack remembers.
        """
        attention = self.attention.init_cache(batch_size, max_length)
        stack = None
        if self.stack is not None:
            dtype = self.attention.qkv.kernel.dtype
            bottom = jnp.zeros((batch_size, self.attention.features), dtype)
            stack = self.stack.init_state(bottom, depth)
        return BlockCache(attention, stack)

    def step(
        self, cache: BlockCache, h: jax.Array, index: jax.Array
    ) -> tuple[BlockCache, jax.Array]:
        """One position, h (B, D), at the scalar position `index`."""
        attention, out = self.attention.step(
            cache.attention, self._before(self.attention_norm, h), index
        )
        h = self._after(self.attention_norm, h + out)

        out = self.feed_forward(self._before(self.feed_forward_norm, h))
        h = self._after(self.feed_forward_norm, h + out)

        stack = cache.stack
        if self.stack is not None:
            inputs = self._before(self.stack_norm, h)
            stepped, top = self.stack.step(stack, inputs)
            # The first position is the bottom: it fills the stack and reads itself.
            bottom = self.stack.init_state(inputs, stack.shape[-2] - 1)
            stack = jnp.where(index == 0, bottom, stepped)
            out = jnp.where(index == 0, inputs, top)
            h = self._after(self.stack_norm, h + out)
        return BlockCache(attention, stack), h

    def _before(self, norm, h):
        return norm(h) if self.pre_norm and norm is not None else h

    def _after(self, norm, h):
        return norm(h) if not self.pre_norm and norm is not None else h


def layer_norm(features: int, **options) -> nnx.LayerNorm:
    """Layer norm with learned scale and bias, epsilon 1e-5."""
    return nnx.LayerNorm(features, epsilon=1e-5, **options)
