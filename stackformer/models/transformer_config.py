"""The configuration of the stack transformer."""

import dataclasses
from collections.abc import Sequence

from stackformer.nn.positions import POSITIONS, Positions

_DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Everything that defines a `StackTransformer`; the defaults are the paper's.

    Attributes:
      vocab_size: number of token ids.
      output_size: number of output classes O.
      num_layers: L.
      d_model: D.
      num_heads: attention heads, a divisor of D.
      d_ff: features inside the feed-forward; None is 4 D.
      stack: whether layers have a stack. False is the vanilla transformer, every other
        part the same.
      causal: False is the encoder for masked modelling (MLM), True the future-masked
        transformer for autoregressive modelling (ALM).
      positions: "none", "sincos", "relative", "rotary" or "alibi".
      max_wavelength: of the sinusoids in sincos, relative and rotary.
      dropout: rate in training; evaluation has none.
      stack_implementation: form of the stack kernel, see `stackformer.stack_attention`.
      stack_chunk_size: chunk length of the chunkwise form.
      dtype: dtype of the products, "float32", "bfloat16" or "float16". Parameters,
        softmax, layer-norm statistics, the stack's recurrence and the logits stay
        float32.

    Beyond the paper, all off by default:
      stack_norm: layer norm after the stack's residual sum.
      pre_norm: layer norm before the sub-layers instead of after, and one at the end.
      num_stacks: independent stacks in a layer, each on D / num_stacks features.
      max_depth: elements that a stack remembers; None is all of them.
      max_pops: the largest number of elements popped in one step.
      stack_layers: which layers carry a stack, counted from 0; None is all.
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
    d_ff: int | None = None
    stack: bool = True
    causal: bool = False
    positions: Positions = "none"
    max_wavelength: float = 10_000.0
    dropout: float = 0.1
    stack_implementation: str | None = None
    stack_chunk_size: int | None = None
    dtype: str = "float32"
    stack_norm: bool = False
    pre_norm: bool = False
    num_stacks: int = 1
    max_depth: int | None = None
    max_pops: int = 1
    stack_layers: tuple[int, ...] | None = None
    num_loops: int = 1

    def __post_init__(self) -> None:
        if self.stack_layers is not None:  # JSON has lists.
            object.__setattr__(self, "stack_layers", tuple(self.stack_layers))
        for name in (
            "vocab_size",
            "output_size",
            "num_layers",
            "d_model",
            "num_heads",
            "num_stacks",
            "max_pops",
            "num_loops",
        ):
            _check_positive(name, getattr(self, name))
        for name in ("d_ff", "max_depth", "stack_chunk_size"):
            if getattr(self, name) is not None:
                _check_positive(name, getattr(self, name))
        for name in ("num_heads", "num_stacks"):
            if self.d_model % getattr(self, name):
                raise ValueError(
                    f"`{name}` should divide `d_model` ({self.d_model}), but got "
                    f"{getattr(self, name)}."
                )
        _check_choice("positions", self.positions, POSITIONS)
        _check_choice("dtype", self.dtype, _DTYPES)
        if self.positions in ("sincos", "relative") and self.d_model % 2:
            raise ValueError(
                f"`d_model` should be even with positions={self.positions!r}, but got "
                f"{self.d_model}."
            )
        if self.positions == "rotary" and (self.d_model // self.num_heads) % 2:
            raise ValueError(
                "`d_model / num_heads` should be even with positions='rotary', but got "
                f"{self.d_model} / {self.num_heads}."
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(
                f"`dropout` should be at least 0 and below 1, but got {self.dropout}."
            )
        if self.max_wavelength <= 1.0:
            raise ValueError(
                f"`max_wavelength` should be above 1, but got {self.max_wavelength}."
            )
        for layer in self.stack_layers or ():
            if not 0 <= layer < self.num_layers:
                raise ValueError(
                    "`stack_layers` should hold layers from 0 to "
                    f"{self.num_layers - 1}, but got {self.stack_layers}."
                )

    @property
    def depth(self) -> int:
        """Layers that a forward pass runs: num_layers * num_loops."""
        return self.num_layers * self.num_loops

    def has_stack(self, layer: int) -> bool:
        """Whether a layer (0 to num_layers - 1) carries a stack."""
        return self.stack and (self.stack_layers is None or layer in self.stack_layers)


def _check_positive(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"`{name}` should be an integer of at least 1, but got {value!r}."
        )


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(
            f"`{name}` should be one of {', '.join(choices)}, but got {value!r}."
        )
