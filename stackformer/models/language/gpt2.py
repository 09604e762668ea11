"""GPT-2 with stack attention: an autoregressive language model.

Legend: B batch, T positions, D features, V token ids.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
from flax import nnx

from stackformer.models.language.config import LanguageModelConfig, check_text
from stackformer.models.language.layers import (
    blocks,
    embedding,
    layer_norm,
    tied_logits,
    weight_init,
)
from stackformer.models.layers import (
    DecodeCache,
    ReturnAux,
    init_caches,
    prefill_layers,
    run_layers,
    step_layers,
)
from stackformer.nn.dropout import dropout, forward_key
from stackformer.nn.positions import string_positions


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPT2Config(LanguageModelConfig):
    """A `LanguageModelConfig` with GPT-2's numbers as defaults (124M parameters).

    Example:
      >>> GPT2Config.of_size("small", vocab_size=4096).d_model
      128
    """

    model_type: ClassVar[str] = "gpt2"

    vocab_size: int = 50257
    max_length: int = 1024


class GPT2(nnx.Module):
    """GPT-2 (Radford et al., 2019) with a stack in every block, or in chosen ones.

    Pre-norm blocks, learned positions, the tanh form of GELU, the head tied to the
    token embedding. The first token is the bottom of the stacks.

    Args:
      config: shape and options.
      rngs: the "params" stream initialises the parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> model = GPT2(GPT2Config.of_size("tiny", vocab_size=300), rngs=nnx.Rngs(0))
      >>> model(jnp.zeros((2, 16), jnp.int32)).shape
      (2, 16, 300)
    """

    def __init__(self, config: GPT2Config, *, rngs: nnx.Rngs):
        self.config = config
        self.token_embedding = embedding(config, config.vocab_size, rngs)
        self.position_embedding = embedding(config, config.max_length, rngs)
        self.blocks = blocks(
            config, causal=True, pre_norm=True, activation=_gelu_tanh, rngs=rngs
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
        segment_ids: jax.Array | None = None,
        rngs: nnx.Rngs | None = None,
        actions: jax.Array | Sequence[jax.Array | None] | None = None,
        hard: bool | jax.Array = False,
        return_aux: ReturnAux = False,
    ) -> Any:
        """Scores the next token at every position.

        Args:
          tokens: ids, (B, T) with T <= max_length.
          mask: True at real tokens, (B, T); padding is at the right end, where a
            causal model's real positions never see it.
          segment_ids: several texts in a row, see `StackTransformer`.
          rngs: dropout happens if and only if it is given (stream "dropout").
          actions, hard: see `StackTransformer`.
          return_aux: return what every layer did too; "actions" costs nothing.

        Returns:
          Logits (B, T, V) in float32, position t scores token t + 1; or the pair
          (logits, `Aux`) with `return_aux`.
        """
        check_text(tokens, self.config, ("mask", mask), ("segment_ids", segment_ids))
        key = forward_key(rngs)
        embed_key = None if key is None else jax.random.fold_in(key, len(self.blocks))
        h = self.token_embedding(tokens)
        h = h + self.position_embedding(string_positions(tokens.shape[1], segment_ids))
        h, aux = run_layers(
            self.blocks,
            dropout(h, self.config.embedding_rate, embed_key),
            mask=mask,
            segment_ids=segment_ids,
            actions=actions,
            key=key,
            hard=hard,
            remat=self.config.remat,
            scan=self.config.scan_layers,
            return_aux=return_aux,
        )
        logits = tied_logits(self.final_norm(h), self.token_embedding)
        return (logits, aux) if return_aux else logits

    def init_cache(
        self, batch_size: int, max_length: int, *, hard: bool = False
    ) -> DecodeCache:
        """An empty decoding state for at most `max_length` tokens."""
        if max_length > self.config.max_length:
            raise ValueError(
                f"`max_length` should be at most {self.config.max_length}, the number "
                f"of learned positions, but got {max_length}; ask for fewer tokens."
            )
        return init_caches(self.blocks, batch_size, max_length, hard=hard)

    def prefill(
        self, cache: DecodeCache, tokens: jax.Array, length: int | jax.Array
    ) -> tuple[DecodeCache, jax.Array]:
        """Reads a prompt at once: `decode_step` for the first `length` tokens.

        Args:
          cache: from `init_cache`.
          tokens: shape (B, P), BOS first; P is at most the cache's `max_length`.
          length: how many of them are read, a number or a traced scalar, from 1 to P.

        Returns:
          The cache after them and the logits at the last of them, (B, V).
        """
        h = self.token_embedding(tokens)
        h = h + self.position_embedding(string_positions(tokens.shape[1]))
        cache, h = prefill_layers(self.blocks, cache, h, length)
        return cache, tied_logits(self.final_norm(h), self.token_embedding)

    def decode_step(
        self, cache: DecodeCache, tokens: jax.Array
    ) -> tuple[DecodeCache, jax.Array]:
        """Reads one token per row, (B,), and scores the next: logits (B, V)."""
        h = self.token_embedding(tokens)
        h = h + self.position_embedding(cache.index[None])
        cache, h = step_layers(self.blocks, cache, h)
        return cache, tied_logits(self.final_norm(h), self.token_embedding)


def _gelu_tanh(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=True)
