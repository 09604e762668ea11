"""RoBERTa with stack attention: a masked language model.

Legend: B batch, T positions, D features, V token ids.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer.models.lm_config import LanguageModelConfig, check_tokens
from stackformer.models.lm_layers import (
    LanguageModelBlock,
    embedding,
    layer_norm,
    linear,
    run_blocks,
    tied_logits,
)
from stackformer.models.outputs import Aux
from stackformer.nn.dropout import dropout, dropout_key

ROBERTA_SIZES = {
    "tiny": dict(num_layers=2, d_model=32, num_heads=4),
    "small": dict(num_layers=4, d_model=128, num_heads=4),
    "base": dict(num_layers=12, d_model=768, num_heads=12),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RobertaConfig(LanguageModelConfig):
    """A `LanguageModelConfig` with roberta-base's numbers as defaults.

    Attributes:
      pad_id: the padding token. RoBERTa numbers real positions from pad_id + 1 and
        gives padding the position pad_id, so the table of positions has
        max_length + pad_id + 1 rows.
      token_types: rows of the token-type table; RoBERTa reads only row 0.

    Example:
      >>> RobertaConfig().max_length + RobertaConfig().pad_id + 1
      514
    """

    vocab_size: int = 50265
    max_length: int = 512
    pad_id: int = 1
    token_types: int = 1

    @classmethod
    def of_size(cls, size: str, **overrides) -> "RobertaConfig":
        """The configuration called "tiny", "small" or "base", with changes."""
        if size not in ROBERTA_SIZES:
            raise ValueError(
                f"`size` should be one of {tuple(ROBERTA_SIZES)}, but got {size!r}."
            )
        return cls(**{**ROBERTA_SIZES[size], **overrides})


class Roberta(nnx.Module):
    """RoBERTa (Liu et al., 2019) with a stack in every block, or in chosen ones.

    Post-norm blocks, learned positions counted from the padding id, exact GELU; the
    head is dense, GELU, layer norm and a decoder tied to the token embedding, with a
    bias of its own. The first token, <s>, is the bottom of the stacks.

    Args:
      config: shape and options.
      rngs: the "params" stream initialises the parameters.

    Example:
      >>> config = RobertaConfig.of_size("tiny", vocab_size=300)
      >>> model = Roberta(config, rngs=nnx.Rngs(0))
      >>> model(jnp.full((2, 16), 7)).shape
      (2, 16, 300)
    """

    def __init__(self, config: RobertaConfig, *, rngs: nnx.Rngs):
        self.config = config
        rows = config.max_length + config.pad_id + 1
        self.token_embedding = embedding(config, config.vocab_size, rngs)
        self.position_embedding = embedding(config, rows, rngs)
        self.type_embedding = embedding(config, config.token_types, rngs)
        self.embedding_norm = layer_norm(config, rngs)
        self.blocks = nnx.List(
            LanguageModelBlock(
                config,
                layer,
                causal=False,
                pre_norm=False,
                activation=_gelu,
                rngs=rngs,
            )
            for layer in range(config.num_layers)
        )
        self.head_dense = linear(config, config.d_model, config.d_model, rngs)
        self.head_norm = layer_norm(config, rngs)
        self.head_bias = nnx.Param(jnp.zeros((config.vocab_size,), jnp.float32))

    def __call__(
        self,
        tokens: jax.Array,
        *,
        mask: jax.Array | None = None,
        rngs: nnx.Rngs | None = None,
        return_aux: bool = False,
    ) -> jax.Array | tuple[jax.Array, Aux]:
        """Scores every position's own token from both sides.

        Args:
          tokens: ids, (B, T) with T <= max_length.
          mask: True at real tokens, (B, T), padding at the right end; where None,
            every token that is not `pad_id` is real.
          rngs: dropout happens if and only if it is given (stream "dropout").
          return_aux: return what every layer did too.

        Returns:
          Logits (B, T, V) in float32.
        """
        check_tokens(tokens, self.config)
        config = self.config
        real = tokens != config.pad_id
        mask = real if mask is None else mask
        positions = config.pad_id + jnp.cumsum(real, axis=1, dtype=jnp.int32) * real
        key = dropout_key(rngs, config.dropout)
        embed_key = None if key is None else jax.random.fold_in(key, len(self.blocks))
        h = self.token_embedding(tokens) + self.position_embedding(positions)
        h = h + self.type_embedding(jnp.zeros((1, 1), jnp.int32))
        h, aux = run_blocks(
            self.blocks,
            dropout(self.embedding_norm(h), config.dropout, embed_key),
            mask=mask,
            key=key,
            remat=config.remat,
            return_weights=return_aux,
        )
        h = self.head_norm(_gelu(self.head_dense(h)))
        logits = tied_logits(h, self.token_embedding)
        logits = logits + self.head_bias[...][None, None]
        return (logits, aux) if return_aux else logits


def _gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)
