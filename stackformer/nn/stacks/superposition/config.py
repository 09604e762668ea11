"""The options of stack attention."""

import dataclasses
from typing import TYPE_CHECKING, ClassVar

import jax
from flax import nnx

from stackformer.checks import check_choice, check_positive, check_types
from stackformer.nn.stacks.base import StackConfig
from stackformer.nn.stacks.sampling import SAMPLINGS, Sampling
from stackformer.ops.stack_attention.forms import choose

if TYPE_CHECKING:
    from stackformer.nn.stacks.superposition.module import StackAttention

DEFAULT_KERNEL_INIT = nnx.initializers.lecun_normal()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuperpositionConfig(StackConfig):
    """Options of `StackAttention`; the defaults are the paper's stack.

    Attributes:
      num_stacks: independent stacks, each on its slice of the features.
      max_depth: elements that a stack remembers; None is all of them.
      max_pops: the largest number of elements popped in one step.
      sampling: "soft", "gumbel" or "straight_through", see `choose_actions`.
      implementation: form of the kernel, see `stackformer.stack_attention`.
      chunk_size: chunk length of the chunkwise form.
      project: push a learned projection of the hidden states in place of them, and
        read through another, as DuSell and Chiang (2024) do.
      value_features: numbers of a projection; None is as many as the hidden states.

    Example:
      >>> SuperpositionConfig(num_stacks=2).make(16, rngs=nnx.Rngs(0)).num_stacks
      2
    """

    name: ClassVar[str] = "superposition"

    num_stacks: int = 1
    max_depth: int | None = None
    max_pops: int = 1
    sampling: Sampling = "soft"
    implementation: str | None = None
    chunk_size: int | None = None
    project: bool = False
    value_features: int | None = None

    def __post_init__(self):
        check_types(self)
        names = ("num_stacks", "max_depth", "max_pops", "chunk_size", "value_features")
        check_positive(self, *names)
        check_choice("sampling", self.sampling, SAMPLINGS)
        if self.value_features is not None and not self.project:
            raise ValueError(
                "`value_features` should be None without `project`, where the hidden "
                f"states themselves are pushed, but got {self.value_features}."
            )
        # Options that exclude each other are refused here, not at the first call.
        choose(
            2,
            1,
            implementation=self.implementation,
            chunk_size=self.chunk_size,
            max_depth=self.max_depth,
            max_pops=self.max_pops,
        )

    def make(
        self,
        features: int,
        *,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = "float32",
        kernel_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs,
    ) -> "StackAttention":
        """The module for hidden states of `features` numbers."""
        from stackformer.nn.stacks.superposition.module import StackAttention

        return StackAttention(
            features,
            **dataclasses.asdict(self),
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init or DEFAULT_KERNEL_INIT,
            rngs=rngs,
        )
