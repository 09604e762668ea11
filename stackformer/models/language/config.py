"""The configuration that GPT-2 and RoBERTa share."""

import dataclasses
from typing import Any, ClassVar, Self

import jax

from stackformer.checks import check_choice, check_positive, check_rate
from stackformer.models.config import BlocksConfig, check_tokens

SIZES: dict[str, dict[str, int]] = {
    "tiny": dict(num_layers=2, d_model=32, num_heads=4),
    "small": dict(num_layers=4, d_model=128, num_heads=4),
    "base": dict(num_layers=12, d_model=768, num_heads=12),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(BlocksConfig):
    """The shape of a language model and of the stacks in it.

    Attributes, beside those of `BlocksConfig`:
      vocab_size: number of token ids.
      max_length: the longest sequence that the learned positions cover.
      embedding_dropout, attention_dropout: rates on embeddings and on attention
        weights; `dropout`, the rate on sub-layer outputs, where None.
      layer_norm_eps: as in the pretrained models.
    """

    # The name of the architecture in a Hugging Face config.json.
    model_type: ClassVar[str]

    vocab_size: int
    max_length: int = 128
    num_layers: int = 12
    d_model: int = 768
    num_heads: int = 12
    embedding_dropout: float | None = None
    attention_dropout: float | None = None
    layer_norm_eps: float = 1e-5

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "vocab_size", "max_length")
        check_rate("embedding_dropout", self.embedding_dropout)
        check_rate("attention_dropout", self.attention_dropout)

    @classmethod
    def of_size(cls, size: str, **overrides: Any) -> Self:
        """The configuration called "tiny", "small" or "base", with changes."""
        check_choice("size", size, SIZES)
        return cls(**{**SIZES[size], **overrides})

    @property
    def embedding_rate(self) -> float:
        """The rate of dropout on embeddings."""
        return (
            self.dropout if self.embedding_dropout is None else self.embedding_dropout
        )

    @property
    def attention_rate(self) -> float:
        """The rate of dropout on attention weights."""
        return (
            self.dropout if self.attention_dropout is None else self.attention_dropout
        )


def check_text(
    tokens: jax.Array,
    config: LanguageModelConfig,
    *others: tuple[str, jax.Array | None],
) -> None:
    """Raises ValueError unless tokens are integers (B, T) that the model can read."""
    check_tokens(tokens, *others)
    if tokens.shape[1] > config.max_length:
        raise ValueError(
            f"`tokens` should have at most max_length={config.max_length} positions, "
            f"the number of learned positions, but got {tokens.shape[1]}; cut the "
            "text or build the model with a larger `max_length`."
        )
