"""The layer of every transformer here: attention, feed-forward, stack."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from stackformer.nn.attention import AttentionCache, MultiHeadAttention
from stackformer.nn.dropout import dropout
from stackformer.nn.feed_forward import FeedForward, layer_norm, linear_init
from stackformer.nn.stacks import StackConfig, StackOutput

# Folded into a layer's key to draw the actions of a sampling stack.
_ACTIONS = 3


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockOutput:
    """What one layer did; see `stackformer.models.Aux`."""

    attention_weights: jax.Array | None = None
    stack: StackOutput | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockCache:
    """The decoding state of one layer: keys and values, and the stack's own state."""

    attention: AttentionCache | None
    stack: Any


class TransformerBlock(nnx.Module):
    """One layer of the paper's stack transformer (sections 2.2 and 3.3).

        H_mha   = LN(MHA(H) + H)
        H_ffn   = LN(FFN(H_mha) + H_mha)
        H_stack = Stack(H_ffn) + H_ffn            [no layer norm]

    Dropout acts on what attention and feed-forward return, before the residual sum.
    Beyond the paper, off by default: `pre_norm` moves the norms to the inputs of the
    sub-layers, H + MHA(LN(H)) and so on (GPT-2); `stack_norm` gives the stack a norm of
    its own, LN(Stack(H) + H), or H + Stack(LN(H)) with `pre_norm`; `gate` weighs what
    the stack adds, H + g Stack(H), with a learned scalar.

    Why a gate for pretrained weights: the paper's S(H) is an average of hidden states,
    so no choice of actions makes it vanish, and H + S(H) shifts every later layer's
    input. With g = 0 the sub-layer is the identity and its gradient is not zero: g
    moves first, then the action head.

    Args:
      features: D.
      num_heads: N; 0 is a layer without attention.
      hidden: features inside the feed-forward; 0 is a layer without one.
      stack: the configuration of the stack, or None for a layer without one.
      stack_first: the stack reads the layer's input, before attention.
      causal, positions, max_wavelength, use_bias: see `MultiHeadAttention`.
      activation: of the feed-forward.
      dropout: rate on what attention and feed-forward return.
      weight_dropout: rate on the attention weights.
      pre_norm, stack_norm: see above.
      gate: the first value of g, or None for the plain sum.
      layer_norm_eps: of all norms.
      dtype: dtype of the products; the residual stream follows it. None: the input's.
      kernel_init: of all linear layers.
      rngs: the "params" stream initialises the parameters.

    Example:
      >>> from stackformer.nn.stacks import SuperpositionConfig
      >>> stack = SuperpositionConfig()
      >>> block = TransformerBlock(16, 4, hidden=64, stack=stack, rngs=nnx.Rngs(0))
      >>> block(jnp.ones((2, 5, 16)))[0].shape
      (2, 5, 16)
    """

    def __init__(
        self,
        features: int,
        num_heads: int,
        *,
        hidden: int,
        stack: StackConfig | None = None,
        stack_first: bool = False,
        causal: bool = False,
        positions: str = "none",
        max_wavelength: float = 10_000.0,
        use_bias: bool = False,
        activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
        dropout: float = 0.0,
        weight_dropout: float = 0.0,
        pre_norm: bool = False,
        stack_norm: bool = False,
        gate: float | None = None,
        layer_norm_eps: float = 1e-5,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = jnp.float32,
        kernel_init: initializers.Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        kernel_init = kernel_init or linear_init()
        options: dict[str, Any] = dict(dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        linear: dict[str, Any] = dict(kernel_init=kernel_init, **options)

        def norm(wanted: bool = True) -> nnx.LayerNorm | None:
            if not wanted:
                return None
            return layer_norm(features, epsilon=layer_norm_eps, **options)

        self.features = features
        self.dropout = dropout
        self.weight_dropout = weight_dropout
        self.pre_norm = pre_norm
        self.stack_first = stack_first
        self.attention = nnx.data(
            MultiHeadAttention(
                features,
                num_heads,
                causal=causal,
                positions=positions,
                max_wavelength=max_wavelength,
                use_bias=use_bias,
                **linear,
            )
            if num_heads
            else None
        )
        self.attention_norm = nnx.data(norm(num_heads > 0))
        self.feed_forward = nnx.data(
            FeedForward(features, hidden, activation=activation, **linear)
            if hidden
            else None
        )
        self.feed_forward_norm = nnx.data(norm(hidden > 0))
        self.stack = nnx.data(stack.make(features, **linear) if stack else None)
        self.stack_norm = nnx.data(norm(stack is not None and stack_norm))
        has_gate = stack is not None and gate is not None
        self.gate = nnx.data(nnx.Param(jnp.float32(gate)) if has_gate else None)

    def __call__(
        self,
        h: jax.Array,
        *,
        mask: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        actions: Any = None,
        key: jax.Array | None = None,
        hard: bool | jax.Array = False,
        return_weights: bool = False,
        at: jax.Array | None = None,
    ) -> tuple[jax.Array, BlockOutput]:
        """Runs the layer.

        Args:
          h: shape (B, T, D).
          mask: True at real positions, shape (B, T).
          segment_ids: shape (B, T), see `Stack`.
          actions: given actions for the stack instead of the predicted ones.
          key: dropout, and the noise of sampled actions, happen if and only if there is
            a key.
          hard: the stack takes the most probable action; may be traced.
          return_weights: return attention weights and the stack's weights too.
          at: the positions wanted, shape (B, M); None: all.

        Returns:
          h, shape (B, T, D) or (B, M, D), and what the layer did.
        """
        drops = self.weight_dropout > 0.0
        keys = [None] * 3 if key is None else list(jax.random.split(key, 2 + drops))
        weight_key = keys.pop(0) if drops else None
        attended, read = None, None
        # Nothing after the stack looks at other positions: it can leave them out.
        alone = self.stack_first and self.attention is None
        reads_at = self.stack is not None and self.stack.reads_at
        early = at is not None and alone and reads_at

        def attend(x):
            nonlocal attended
            assert self.attention is not None
            out, attended = self.attention(
                x,
                mask=mask,
                segment_ids=segment_ids,
                weight_dropout=self.weight_dropout,
                key=weight_key,
                return_weights=return_weights,
            )
            return dropout(out, self.dropout, keys[0])

        def feed(x):
            assert self.feed_forward is not None
            return dropout(self.feed_forward(x), self.dropout, keys[1])

        def stack(x):
            nonlocal read
            assert self.stack is not None
            options: dict[str, Any] = {"at": at} if early else {}
            read = self.stack(
                x,
                mask=mask,
                segment_ids=segment_ids,
                actions=actions,
                rngs=None if key is None else _action_rngs(key),
                hard=hard,
                return_weights=return_weights,
                **options,
            )
            return self._gated(read.top)

        h = self._run(h, attend, feed, stack, at if early else None)
        if at is not None and not early:
            h = take_positions(h, at)
        return h, BlockOutput(attention_weights=attended, stack=read)

    def init_cache(
        self, batch_size: int, max_length: int, *, hard: bool = False
    ) -> BlockCache:
        """An empty decoding state for at most `max_length` positions."""
        attention = stack = None
        if self.attention is not None:
            attention = self.attention.init_cache(batch_size, max_length)
        if self.stack is not None:
            stack = self.stack.init_state((batch_size,), max_length, hard=hard)
        return BlockCache(attention, stack)

    def prefill(
        self, cache: BlockCache, h: jax.Array, length: int | jax.Array
    ) -> tuple[BlockCache, jax.Array]:
        """A prompt, h (B, T, D), of which the first `length` positions count."""

        def attend(attention, state, x):
            return attention.prefill(state, x)

        def read(stack, state, x):
            return stack.prefill(state, x, length)

        return self._decode(cache, h, attend, read)

    def step(
        self, cache: BlockCache, h: jax.Array, index: jax.Array
    ) -> tuple[BlockCache, jax.Array]:
        """One position, h (B, D), at the scalar position `index`."""

        def step(module, state, x):
            return module.step(state, x, index)

        return self._decode(cache, h, step, step)

    def _decode(self, cache, h, attend_with, read_with):
        """Runs the layer without dropout, attention and stack with their states."""
        attention, state = cache.attention, cache.stack

        def attend(x):
            nonlocal attention
            attention, out = attend_with(self.attention, attention, x)
            return out

        def stack(x):
            nonlocal state
            state, top = read_with(self.stack, state, x)
            return self._gated(top)

        h = self._run(h, attend, self.feed_forward, stack)
        return BlockCache(attention, state), h

    def _run(self, h, attend, feed, stack, at=None):
        """The sub-layers that there are, in order; from the stack on only `at`."""
        layers = [
            (attend, self.attention, self.attention_norm),
            (feed, self.feed_forward, self.feed_forward_norm),
        ]
        third = (stack, self.stack, self.stack_norm)
        layers.insert(0 if self.stack_first else 2, third)
        for run, module, norm in layers:
            if module is None:
                continue
            new = run(norm(h) if norm is not None and self.pre_norm else h)
            if run is stack and at is not None:
                h = take_positions(h, at)
            h = h + new
            if norm is not None and not self.pre_norm:
                h = norm(h)
        return h

    def _gated(self, top):
        if self.gate is None:
            return top
        return self.gate[...].astype(top.dtype) * top


def take_positions(h: jax.Array, at: jax.Array) -> jax.Array:
    """h (B, T, D) at the positions (B, M): (B, M, D)."""
    return jnp.take_along_axis(h, at[:, :, None], axis=1)


def _action_rngs(key):
    return nnx.Rngs(actions=jax.random.fold_in(key, _ACTIONS))
