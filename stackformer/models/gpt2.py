"""GPT-2 with stack attention: an autoregressive language model.

Legend: B batch, T positions, D features, V token ids.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer.models.lm_config import LanguageModelConfig, check_tokens
from stackformer.models.lm_layers import (
    LanguageModelBlock,
    embedding,
    layer_norm,
    run_blocks,
    tied_logits,
    weight_init,
)
from stackformer.models.outputs import Aux
from stackformer.nn.blocks import BlockCache
from stackformer.nn.dropout import dropout, dropout_key

GPT2_SIZES = {
    "tiny": dict(num_layers=2, d_model=32, num_heads=4),
    "small": dict(num_layers=4, d_model=128, num_heads=4),
    "base": dict(num_layers=12, d_model=768, num_heads=12),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPT2Config(LanguageModelConfig):
    """A `LanguageModelConfig` with GPT-2's numbers as defaults (124M parameters).

    Example:
      >>> GPT2Config.of_size("small", vocab_size=4096).d_model
      128
    """

    vocab_size: int = 50257
    max_length: int = 1024

    @classmethod
    def of_size(cls, size: str, **overrides) -> "GPT2Config":
        """The configuration called "tiny", "small" or "base", with changes."""
        if size not in GPT2_SIZES:
            raise ValueError(
                f"`size` should be one of {tuple(GPT2_SIZES)}, but got {size!r}."
            )
        return cls(**{**GPT2_SIZES[size], **overrides})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GPT2Cache:
    """Decoding state: one cache per block and the number of tokens read."""

    blocks: tuple[BlockCache, ...]
    index: jax.Array


class GPT2(nnx.Module):
    """GPT-2 (Radford et al., 2019) with a stack in every block, or in chosen ones.

    Pre-norm blocks, learned positions, the tanh form of GELU, the head tied to the
    token embedding. The first token is the bottom of the stacks.

    Args:
      config: shape and options.
      rngs: the "params" stream initialises the parameters.

    Example:
      >>> model = GPT2(GPT2Config.of_size("tiny", vocab_size=300), rngs=nnx.Rngs(0))
      >>> model(jnp.zeros((2, 16), jnp.int32)).shape
      (2, 16, 300)
    """

    def __init__(self, config: GPT2Config, *, rngs: nnx.Rngs):
        self.config = config
        self.token_embedding = embedding(config, config.vocab_size, rngs)
        self.position_embedding = embedding(config, config.max_length, rngs)
        self.blocks = nnx.List(
            LanguageModelBlock(
                config,
                layer,
                causal=True,
                pre_norm=True,
                activation=_gelu_tanh,
                rngs=rngs,
            )
            for layer in range(config.num_layers)
        )
        self.final_norm = layer_norm(config, rngs)
        # Each block adds twice to the residual stream; its variance stays bounded.
        residual_init = weight_init(0.02 / math.sqrt(2 * config.num_layers))
        for block in self.blocks:
            for layer in (block.attention.out, block.feed_forward.down):
                kernel = layer.kernel[...]
                layer.kernel[...] = residual_init(
                    rngs.params(), kernel.shape, kernel.dtype
                )

    def __call__(
        self,
        tokens: jax.Array,
        *,
        mask: jax.Array | None = None,
        rngs: nnx.Rngs | None = None,
        return_aux: bool = False,
    ) -> jax.Array | tuple[jax.Array, Aux]:
        """Scores the next token at every position.

        Args:
          tokens: ids, (B, T) with T <= max_length.
          mask: True at real tokens, (B, T); padding is at the right end, where a
            causal model's real positions never see it.
          rngs: dropout happens if and only if it is given (stream "dropout").
          return_aux: return what every layer did too.

        Returns:
          Logits (B, T, V) in float32; position t scores token t + 1.
        """
        check_tokens(tokens, self.config)
        key = dropout_key(rngs, self.config.dropout)
        embed_key = None if key is None else jax.random.fold_in(key, len(self.blocks))
        h = self.token_embedding(tokens)
        h = h + self.position_embedding(jnp.arange(tokens.shape[1]))[None]
        h, aux = run_blocks(
            self.blocks,
            dropout(h, self.config.dropout, embed_key),
            mask=mask,
            key=key,
            remat=self.config.remat,
            return_weights=return_aux,
        )
        logits = tied_logits(self.final_norm(h), self.token_embedding)
        return (logits, aux) if return_aux else logits

    def init_cache(self, batch_size: int, max_length: int) -> GPT2Cache:
        """An empty decoding state for at most `max_length` tokens."""
        if max_length > self.config.max_length:
            raise ValueError(
                f"`max_length` should be at most {self.config.max_length}, the number "
                f"of learned positions, but got {max_length}; ask for fewer tokens."
            )
        blocks = tuple(
            block.init_cache(batch_size, max_length) for block in self.blocks
        )
        return GPT2Cache(blocks, jnp.zeros((), jnp.int32))

    def decode_step(
        self, cache: GPT2Cache, tokens: jax.Array
    ) -> tuple[GPT2Cache, jax.Array]:
        """Reads one token per row, (B,), and scores the next: logits (B, V)."""
        h = self.token_embedding(tokens)
        h = h + self.position_embedding(cache.index[None])
        blocks = []
        for block, state in zip(self.blocks, cache.blocks, strict=True):
            state, h = block.step(state, h, cache.index)
            blocks.append(state)
        logits = tied_logits(self.final_norm(h), self.token_embedding)
        return GPT2Cache(tuple(blocks), cache.index + 1), logits


def _gelu_tanh(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=True)
