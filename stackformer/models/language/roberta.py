"""RoBERTa with stack attention: a masked language model.

Legend: B batch, T positions, D features, V token ids.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer.models.language.config import LanguageModelConfig, check_text
from stackformer.models.language.layers import (
    blocks,
    embedding,
    layer_norm,
    linear,
    tied_logits,
)
from stackformer.models.layers import ReturnAux, run_layers
from stackformer.nn.dropout import dropout, forward_key


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

    model_type: ClassVar[str] = "roberta"

    vocab_size: int = 50265
    max_length: int = 512
    pad_id: int = 1
    token_types: int = 1


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
        self.blocks = blocks(
            config, causal=False, pre_norm=False, activation=_gelu, rngs=rngs
        )
        self.head_dense = linear(config, config.d_model, config.d_model, rngs)
        self.head_norm = layer_norm(config, rngs)
        self.head_bias = nnx.Param(jnp.zeros((config.vocab_size,), jnp.float32))

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
        """Scores every position's own token from both sides.

        Args:
          tokens: ids, (B, T) with T <= max_length.
          mask: True at real tokens, (B, T), padding at the right end; where None,
            every token that is not `pad_id` is real.
          segment_ids: several texts in a row, see `StackTransformer`.
          rngs: dropout happens if and only if it is given (stream "dropout").
          actions, hard: see `StackTransformer`.
          return_aux: return what every layer did too; "actions" costs nothing.

        Returns:
          Logits (B, T, V) in float32, or the pair (logits, `Aux`) with `return_aux`.
        """
        check_text(tokens, self.config, ("mask", mask), ("segment_ids", segment_ids))
        config = self.config
        real = tokens != config.pad_id
        mask = real if mask is None else mask
        counted = jnp.cumsum(real, axis=1, dtype=jnp.int32)
        if segment_ids is not None:
            counted = counted - _before_segment(counted, real, segment_ids)
        positions = config.pad_id + counted * real
        key = forward_key(rngs)
        embed_key = None if key is None else jax.random.fold_in(key, len(self.blocks))
        h = self.token_embedding(tokens) + self.position_embedding(positions)
        h = h + self.type_embedding(jnp.zeros((1, 1), jnp.int32))
        h, aux = run_layers(
            self.blocks,
            dropout(self.embedding_norm(h), config.embedding_rate, embed_key),
            mask=mask,
            segment_ids=segment_ids,
            actions=actions,
            key=key,
            hard=hard,
            remat=config.remat,
            scan=config.scan_layers,
            return_aux=return_aux,
        )
        h = self.head_norm(_gelu(self.head_dense(h)))
        logits = tied_logits(h, self.token_embedding)
        logits = logits + self.head_bias[...][None, None]
        return (logits, aux) if return_aux else logits


def _before_segment(counted, real, segment_ids):
    """How many real tokens lie before the segment of each position, (B, T)."""
    starts = jnp.pad(segment_ids[:, 1:] != segment_ids[:, :-1], ((0, 0), (1, 0)))
    return jax.lax.cummax(jnp.where(starts, counted - real, 0), axis=1)


def _gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)
