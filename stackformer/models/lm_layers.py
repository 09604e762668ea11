"""What GPT-2 and RoBERTa share: the block with its stack sub-layer, and its parts.

Legend: B batch, T positions, D features, L layers, V token ids.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer.models.lm_config import LanguageModelConfig
from stackformer.models.outputs import Aux
from stackformer.nn.attention import MultiHeadAttention
from stackformer.nn.blocks import BlockAux, BlockCache, FeedForward
from stackformer.nn.dropout import dropout
from stackformer.nn.stack import StackAttention


def weight_init(stddev: float = 0.02) -> nnx.Initializer:
    """How GPT-2 and RoBERTa draw every matrix."""
    return nnx.initializers.normal(stddev)


def linear(
    config: LanguageModelConfig, inputs: int, outputs: int, rngs: nnx.Rngs
) -> nnx.Linear:
    """A dense layer with a bias that starts at zero."""
    return nnx.Linear(
        inputs,
        outputs,
        dtype=config.compute_dtype,
        kernel_init=weight_init(),
        rngs=rngs,
    )


def layer_norm(config: LanguageModelConfig, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Layer norm over the features, statistics in float32."""
    return nnx.LayerNorm(
        config.d_model,
        epsilon=config.layer_norm_eps,
        dtype=config.compute_dtype,
        rngs=rngs,
    )


def embedding(config: LanguageModelConfig, rows: int, rngs: nnx.Rngs) -> nnx.Embed:
    """A table of `rows` vectors."""
    return nnx.Embed(
        rows,
        config.d_model,
        dtype=config.compute_dtype,
        embedding_init=weight_init(),
        rngs=rngs,
    )


def tied_logits(x: jax.Array, embed: nnx.Embed) -> jax.Array:
    """x @ E^T with float32 sums, (..., D) -> (..., V)."""
    table = embed.embedding[...].astype(x.dtype)
    return jnp.einsum("...d,vd->...v", x, table, preferred_element_type=jnp.float32)


class StackSublayer(nnx.Module):
    """H + S(H), the paper's third sub-layer, or H + g * S(H) with a learned gate g.

    Why a gate for pretrained weights: S(H) is an average of hidden states, so no
    choice of actions makes it vanish, and H + S(H) shifts every later layer's input.
    With g = 0 the sub-layer is the identity and its gradient is not zero: g moves
    first, then the action head.
    """

    def __init__(self, config: LanguageModelConfig, *, rngs: nnx.Rngs):
        self.stack = StackAttention(
            config.d_model,
            num_stacks=config.num_stacks,
            implementation=config.stack_implementation,
            dtype=config.compute_dtype,
            kernel_init=weight_init(),
            rngs=rngs,
        )
        start = config.stack_gate
        self.gate = nnx.data(None if start is None else nnx.Param(jnp.float32(start)))

    def __call__(
        self, h: jax.Array, *, mask: jax.Array | None, return_weights: bool
    ) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
        """(B, T, D) -> the same, with alpha and the actions if asked for."""
        if return_weights:
            top, weights, actions = self.stack(h, mask=mask, return_weights=True)
        else:
            top, weights, actions = self.stack(h, mask=mask), None, None
        return self._add(h, top), weights, actions

    def init_state(self, batch_size: int, depth: int) -> jax.Array:
        """An empty stack; the first step puts the bottom into it."""
        return self.stack.init_state(
            jnp.zeros((batch_size, self.stack.features)), depth
        )

    def step(
        self, state: jax.Array, h: jax.Array, index: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """One position: h (B, D) at position `index`; 0 is the stack's bottom."""
        stepped, top = self.stack.step(state, h)
        first = index == 0
        bottom = self.stack.init_state(h, 1)[..., :1, :]
        state = jnp.where(first, bottom, stepped)
        return state, self._add(h, jnp.where(first, h, top))

    def _add(self, h: jax.Array, top: jax.Array) -> jax.Array:
        if self.gate is None:
            return h + top
        return h + self.gate[...].astype(h.dtype) * top


class LanguageModelBlock(nnx.Module):
    """One layer: attention, feed-forward and, where chosen, the stack sub-layer.

        pre-norm (GPT-2):     H + MHA(LN(H)),   H + FFN(LN(H)),   H + S(H)
        post-norm (RoBERTa):  LN(H + MHA(H)),   LN(H + FFN(H)),   H + S(H)

    Args:
      config: the model's.
      layer: the number of the block, from 0.
      causal: mask the future.
      pre_norm: see above.
      activation: of the feed-forward.
      rngs: the "params" stream initialises the parameters.
    """

    def __init__(
        self,
        config: LanguageModelConfig,
        layer: int,
        *,
        causal: bool,
        pre_norm: bool,
        activation: Callable[[jax.Array], jax.Array],
        rngs: nnx.Rngs,
    ):
        options = dict(dtype=config.compute_dtype, kernel_init=weight_init(), rngs=rngs)
        self.rate = config.dropout
        self.pre_norm = pre_norm
        self.attention = MultiHeadAttention(
            config.d_model, config.num_heads, causal=causal, use_bias=True, **options
        )
        self.attention_norm = layer_norm(config, rngs)
        self.feed_forward = FeedForward(
            config.d_model, config.d_ff, activation=activation, **options
        )
        self.feed_forward_norm = layer_norm(config, rngs)
        self.stack = nnx.data(
            StackSublayer(config, rngs=rngs) if config.has_stack(layer) else None
        )

    def __call__(
        self,
        h: jax.Array,
        *,
        mask: jax.Array | None = None,
        key: jax.Array | None = None,
        return_weights: bool = False,
    ) -> tuple[jax.Array, BlockAux]:
        """(B, T, D) -> the same, and what the layer did if asked for.

        Args:
          h: hidden states.
          mask: True at real positions, (B, T).
          key: dropout happens if and only if there is a key.
          return_weights: fill in the second result.
        """
        keys = (None,) * 3 if key is None else jax.random.split(key, 3)
        aux = {}

        def attend(x):
            out = self.attention(
                x,
                mask=mask,
                weight_dropout=self.rate,
                key=keys[0],
                return_weights=return_weights,
            )
            if return_weights:
                out, aux["attention_weights"] = out
            return dropout(out, self.rate, keys[1])

        def feed(x):
            return dropout(self.feed_forward(x), self.rate, keys[2])

        h = self._residual(h, attend, self.attention_norm)
        h = self._residual(h, feed, self.feed_forward_norm)
        if self.stack is not None:
            h, weights, actions = self.stack(
                h, mask=mask, return_weights=return_weights
            )
            aux.update(
                stack_weights=weights, stack_actions=actions, predicted_actions=actions
            )
        return h, BlockAux(**aux)

    def init_cache(self, batch_size: int, max_length: int) -> BlockCache:
        """An empty decoding state for at most `max_length` positions."""
        stack = None
        if self.stack is not None:
            stack = self.stack.init_state(batch_size, max_length)
        return BlockCache(self.attention.init_cache(batch_size, max_length), stack)

    def step(
        self, cache: BlockCache, h: jax.Array, index: jax.Array
    ) -> tuple[BlockCache, jax.Array]:
        """One position, h (B, D), at the scalar position `index`."""
        attention_cache, state = cache.attention, cache.stack

        def attend(x):
            nonlocal attention_cache
            attention_cache, out = self.attention.step(attention_cache, x, index)
            return out

        h = self._residual(h, attend, self.attention_norm)
        h = self._residual(h, self.feed_forward, self.feed_forward_norm)
        if self.stack is not None:
            state, h = self.stack.step(state, h, index)
        return BlockCache(attention_cache, state), h

    def _residual(self, h, sublayer, norm):
        if self.pre_norm:
            return h + sublayer(norm(h))
        return norm(h + sublayer(h))


def run_blocks(
    blocks: nnx.List,
    h: jax.Array,
    *,
    mask: jax.Array | None,
    key: jax.Array | None,
    remat: bool,
    return_weights: bool,
) -> tuple[jax.Array, Aux]:
    """All layers in turn, each recomputed in the backward pass with `remat`."""
    collected = []
    for layer, block in enumerate(blocks):
        block_key = None if key is None else jax.random.fold_in(key, layer)
        graphdef, state = nnx.split(block)

        def run(state, h, block_key, graphdef=graphdef):
            return nnx.merge(graphdef, state)(
                h, mask=mask, key=block_key, return_weights=return_weights
            )

        h, aux = (jax.checkpoint(run) if remat else run)(state, h, block_key)
        collected.append(aux)
    fields = (field.name for field in dataclasses.fields(Aux))
    return h, Aux(**{f: tuple(getattr(aux, f) for aux in collected) for f in fields})
