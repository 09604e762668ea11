"""The configuration of the stack transformer."""

import dataclasses

from stackformer.checks import check_choice, check_positive
from stackformer.models.config import BlocksConfig
from stackformer.nn.positions import POSITIONS


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(BlocksConfig):
    """Everything that defines a `StackTransformer`.

    The defaults are the paper's where it gives a number. It gives none for the longest
    wavelength of sinusoids, for which its authors' script has 256; here it is the usual
    10,000, which does better on longer strings: RS with sincos is at 94.5 with it and
    at 84.1 with 256 (seed 0; experiments/results/README.md has the commands).

    Attributes, beside those of `BlocksConfig`:
      vocab_size: number of token ids.
      output_size: number of output classes O.
      causal: False is the encoder for masked modelling (MLM), True the future-masked
        transformer for autoregressive modelling (ALM).
      positions: "none", "sincos", "relative", "rotary" or "alibi".
      max_wavelength: of the sinusoids in sincos, relative and rotary.

    Beyond the paper, all off by default:
      attention: False leaves attention out of every layer.
      stack_first: a layer's stack comes before its attention.
      stack_norm: layer norm after the stack's residual sum.
      pre_norm: layer norm before the sub-layers instead of after, and one at the end.
      learned_embedding: False leaves embeddings as they start, so that a head that
        has learned something of the tokens is not moved by what others learn.
      num_loops: how often the L layers run one after another with the same weights.

    Example:
      >>> TransformerConfig(vocab_size=6, output_size=2, positions="rotary").d_model
      64
    """

    vocab_size: int
    output_size: int
    num_layers: int = 5
    d_model: int = 64
    num_heads: int = 8
    causal: bool = False
    positions: str = "none"
    max_wavelength: float = 10_000.0
    attention: bool = True
    stack_first: bool = False
    stack_norm: bool = False
    pre_norm: bool = False
    learned_embedding: bool = True
    num_loops: int = 1

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "vocab_size", "output_size", "num_loops")
        check_choice("positions", self.positions, POSITIONS)
        POSITIONS[self.positions].check(self.d_model, self.num_heads)
        if self.max_wavelength <= 1.0:
            raise ValueError(
                f"`max_wavelength` should be above 1, but got {self.max_wavelength}."
            )

    @property
    def depth(self) -> int:
        """Layers that a forward pass runs: num_layers * num_loops."""
        return self.num_layers * self.num_loops
