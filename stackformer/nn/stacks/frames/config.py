"""The options of the stack of frames."""

import dataclasses
from typing import TYPE_CHECKING, ClassVar, Unpack

from stackformer.checks import check_choice, check_positive, check_types
from stackformer.nn.stacks.base import LayerOptions, StackConfig
from stackformer.nn.stacks.sampling import SAMPLINGS, Sampling

if TYPE_CHECKING:
    from stackformer.nn.stacks.frames.module import FrameStack

ACTIONS_FROM = ("answers", "strings")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FramesConfig(StackConfig):
    """Options of `FrameStack`.

    Attributes:
      items: K, the items that a frame keeps, the newest.
      item_features: numbers of an item.
      hidden: features of the two hidden layers of F, the network that closes a frame.
      noise: deviation of the normal noise on what F says before its tanh, while
        training: values that survive it are nearly binary, so that they do not drift
        however deep brackets are nested.
      sampling: of the actions, see `choose_actions`.
      actions_from: what teaches the actions. "answers": the gradient of the readings,
        through a mixture of stacks. "strings": losses on the action logits alone
        (`models.balance_loss`, `models.action_loss`), which move the action head and
        nothing before it; the stack is then always a plain one of the most probable
        actions, which costs a fraction.

    Example:
      >>> from flax import nnx
      >>> FramesConfig(items=4).make(16, rngs=nnx.Rngs(0)).config.items
      4
    """

    name: ClassVar[str] = "frames"
    reads_at: ClassVar[bool] = True

    items: int = 6
    item_features: int = 32
    hidden: int = 256
    noise: float = 0.0
    sampling: Sampling = "gumbel"
    actions_from: str = "answers"

    def __post_init__(self):
        check_types(self)
        check_positive(self, "items", "item_features", "hidden")
        check_choice("sampling", self.sampling, SAMPLINGS)
        check_choice("actions_from", self.actions_from, ACTIONS_FROM)
        if self.noise < 0.0:
            raise ValueError(f"`noise` should be at least 0, but got {self.noise}.")

    def make(self, features: int, **options: Unpack[LayerOptions]) -> "FrameStack":
        """The module for hidden states of `features` numbers."""
        from stackformer.nn.stacks.frames.module import FrameStack

        return FrameStack(features, config=self, **options)
