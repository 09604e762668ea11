"""What the configurations of all transformers share."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from stackformer.checks import (
    check_arrays,
    check_choice,
    check_positive,
    check_rate,
    check_types,
)
from stackformer.nn.stacks import (
    StackConfig,
    StackLike,
    stack_config,
)

DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlocksConfig:
    """A column of transformer blocks, with or without stacks.

    Attributes:
      num_layers: L.
      d_model: D.
      num_heads: attention heads, a divisor of D.
      d_ff: features inside the feed-forward; None is 4 D.
      dropout: rate in training; evaluation has none.
      stack: a `StackConfig` such as `SuperpositionConfig()`, or its name; True is the
        paper's, None the vanilla transformer, every other part the same.
      stack_layers: which layers carry a stack, counted from 0; None is all.
      stack_gate: None is the paper's plain addition, H + S(H). A number g makes it
        H + g S(H) with one learned scalar g per layer, starting there; with 0.0 a
        pretrained model's first outputs are its own.
      dtype: dtype of the products, "float32", "bfloat16" or "float16". Parameters,
        softmax, layer-norm statistics, the stack's recurrence and the logits stay
        float32.
      remat: compute each block again in the backward pass instead of keeping its
        activations: less memory, more time.
      scan_layers: compile neighbouring layers of equal shape once, as a loop. The same
        model, so it is not part of `to_json`: parameters and results stay as they are.
    """

    num_layers: int
    d_model: int
    num_heads: int
    d_ff: int | None = None
    dropout: float = 0.1
    stack: StackLike = True
    stack_layers: tuple[int, ...] | None = None
    stack_gate: float | None = None
    dtype: str = "float32"
    remat: bool = False
    scan_layers: bool = False

    def __post_init__(self):
        check_types(self)
        object.__setattr__(self, "stack", stack_config(self.stack))
        if self.stack_layers is not None:
            object.__setattr__(self, "stack_layers", tuple(self.stack_layers))
        check_positive(self, "num_layers", "d_model", "num_heads", "d_ff")
        if self.d_model % self.num_heads:
            raise ValueError(
                f"`num_heads` should divide `d_model` ({self.d_model}), but got "
                f"{self.num_heads}."
            )
        check_rate("dropout", self.dropout)
        check_choice("dtype", self.dtype, DTYPES)
        bad = [k for k in self.stack_layers or () if not 0 <= k < self.num_layers]
        if bad:
            raise ValueError(
                f"`stack_layers` should lie in 0..{self.num_layers - 1}, as the model "
                f"has {self.num_layers} layers, but got {bad}."
            )

    def stack_of(self, layer: int) -> StackConfig | None:
        """The stack of a layer (0 to num_layers - 1), or None where it has none."""
        chosen = self.stack_layers is None or layer in self.stack_layers
        assert self.stack is None or isinstance(self.stack, StackConfig)
        return self.stack if chosen else None

    @property
    def compute_dtype(self) -> jnp.dtype:
        return jnp.dtype(self.dtype)

    @property
    def feed_forward(self) -> int:
        """Features inside the feed-forward."""
        return self.d_ff or 4 * self.d_model

    def to_json(self) -> dict[str, Any]:
        """What the model is; the configuration's class reads it back as arguments."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del fields["scan_layers"]
        stack = stack_config(self.stack)
        return {**fields, "stack": None if stack is None else stack.to_json()}


def check_tokens(tokens: jax.Array, *others: tuple[str, jax.Array | None]) -> None:
    """Raises ValueError unless tokens are integers (B, T) and the others fit them."""
    check_arrays(tokens=tokens, **dict(others))
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ValueError(
            f"`tokens` should be integers of shape (B, T), but got {tokens.dtype} of "
            f"shape {tokens.shape}."
        )
    if not tokens.shape[1]:
        raise ValueError(
            f"`tokens` should have at least one position, but got shape {tokens.shape}."
        )
    for name, array in others:
        if array is not None and array.shape != tokens.shape:
            raise ValueError(
                f"`{name}` shape should be that of `tokens`, {tokens.shape}, but got "
                f"{array.shape}."
            )
