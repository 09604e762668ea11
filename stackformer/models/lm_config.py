"""The configuration that GPT-2 and RoBERTa share."""

import dataclasses

import jax
import jax.numpy as jnp

DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelConfig:
    """The shape of a language model and of the stacks in it.

    Attributes:
      vocab_size: number of token ids.
      max_length: the longest sequence that the learned positions cover.
      num_layers, d_model, num_heads: L, D and N.
      d_ff: features between the two feed-forward products; 4 * d_model where None.
      dropout: rate on embeddings, attention weights and sub-layer outputs; active
        if and only if the call gets `rngs`.
      layer_norm_eps: as in the pretrained models.
      stack: whether blocks have a stack sub-layer.
      stack_layers: the blocks (0 is the first) that have one; all where None.
      stack_gate: None is the paper's plain addition, H + S(H). A number g makes it
        H + g * S(H) with one learned scalar g per sub-layer, starting there; with
        0.0 a pretrained model's first outputs are its own.
      num_stacks, stack_implementation: see `stackformer.StackAttention`.
      dtype: what products are computed in, "float32" or "bfloat16". Parameters, the
        softmax, layer norms' statistics, the stack and the logits stay in float32.
      remat: recompute each block in the backward pass instead of keeping its
        activations.
    """

    vocab_size: int
    max_length: int = 128
    num_layers: int = 12
    d_model: int = 768
    num_heads: int = 12
    d_ff: int | None = None
    dropout: float = 0.1
    layer_norm_eps: float = 1e-5
    stack: bool = True
    stack_layers: tuple[int, ...] | None = None
    stack_gate: float | None = None
    num_stacks: int = 1
    stack_implementation: str | None = None
    dtype: str = "float32"
    remat: bool = False

    def __post_init__(self):
        if self.d_ff is None:
            object.__setattr__(self, "d_ff", 4 * self.d_model)
        if self.stack_layers is not None:
            object.__setattr__(self, "stack_layers", tuple(self.stack_layers))
        for name in ("vocab_size", "max_length", "num_layers", "d_model", "d_ff"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"`{name}` should be at least 1, but got {getattr(self, name)}."
                )
        if self.num_heads < 1 or self.d_model % self.num_heads:
            raise ValueError(
                f"`num_heads` should divide `d_model` ({self.d_model}), but got "
                f"{self.num_heads}."
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(
                f"`dropout` should be at least 0 and below 1, but got {self.dropout}."
            )
        if self.dtype not in DTYPES:
            raise ValueError(
                f"`dtype` should be one of {DTYPES}, but got {self.dtype!r}."
            )
        bad = [k for k in self.stack_layers or () if not 0 <= k < self.num_layers]
        if bad:
            raise ValueError(
                f"`stack_layers` should lie in 0..{self.num_layers - 1}, as the model "
                f"has {self.num_layers} blocks, but got {bad}."
            )

    def has_stack(self, layer: int) -> bool:
        """Whether block `layer` has a stack sub-layer."""
        chosen = self.stack_layers is None or layer in self.stack_layers
        return self.stack and chosen

    @property
    def compute_dtype(self) -> jnp.dtype:
        return jnp.dtype(self.dtype)


def check_tokens(tokens: jax.Array, config: LanguageModelConfig) -> None:
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ValueError(
            f"`tokens` should be integers of shape (B, T), but got {tokens.dtype} of "
            f"shape {tokens.shape}."
        )
    if tokens.shape[1] > config.max_length:
        raise ValueError(
            f"`tokens` should have at most max_length={config.max_length} positions, "
            f"the number of learned positions, but got {tokens.shape[1]}; cut the "
            "text or build the model with a larger `max_length`."
        )
