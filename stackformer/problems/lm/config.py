"""The configuration of a language-modeling run."""

import dataclasses
from typing import Any

from stackformer.models.language.config import SIZES as MODEL_SIZES
from stackformer.models.language.config import LanguageModelConfig
from stackformer.models.language.gpt2 import GPT2, GPT2Config
from stackformer.models.language.roberta import Roberta, RobertaConfig
from stackformer.problems.settings import RunConfig, setting
from stackformer.training.errors import UserError

TASKS = ("alm", "mlm")
DATASETS = ("wikitext2", "ptb")
SIZES = tuple(MODEL_SIZES)
# The grid of the paper's appendix B.2, and what it chose.
LEARNING_RATES = (1e-5, 2e-5, 1e-4, 2e-4)
PAPER_LEARNING_RATE = 2e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class LMConfig(RunConfig):
    """One run: a model, a text, how it is trained.

    Attributes:
      task: alm: GPT-2, next token; mlm: RoBERTa, masked tokens.
      dataset: the text.
      size: small: minutes on two CPU cores; base: GPT-2 124M, roberta-base; tiny:
        seconds, for tests.
      model: all fields of `GPT2Config` or `RobertaConfig`.
      pretrained: start from a Hugging Face folder (config.json, model.safetensors and
        the tokenizer) instead of a size.
      text: fingerprint of the text files.
      tokenizer: fingerprint of the tokenizer, which lies in the run's folder.
      special_ids: ids of <s>, <pad>, </s>, <unk>, <mask> in the tokenizer; MLM only.
      length: tokens of a chunk.
      packing: pack whole documents into chunks instead of cutting across them; each
        has a stack, attention and positions of its own. Not the paper's protocol.
      batch_size: chunks in a step.
      learning_rate: learning rate of Adam, constant; 2e-5 for base and pretrained
        weights (the paper's choice), 2e-4 for tiny and small.
      clip_norm: gradients are clipped to this global norm.
      epochs: at most so many.
      patience: validations (one an epoch) without improvement that end a run.
      steps: at most so many, for a fixed budget; no limit without it.
      validate_every: steps between validations; an epoch without it.
      mask_rate: the share of tokens that MLM hides.
      seeds: such as 0,1,2: independent runs, trained at once.
      steps_per_dispatch: steps in one program call.
    """

    experiment = "lm"

    task: str = setting(choices=TASKS)
    dataset: str = setting(choices=DATASETS)
    size: str = setting(choices=(*SIZES, "pretrained"))
    model: dict[str, Any]
    pretrained: str | None = None
    text: str = ""
    tokenizer: str = ""
    special_ids: dict[str, int] = dataclasses.field(default_factory=dict)
    length: int = 128
    packing: bool = False
    batch_size: int = 32
    learning_rate: float = PAPER_LEARNING_RATE
    clip_norm: float = 1.0
    epochs: int = 100
    patience: int = 5
    steps: int | None = None
    validate_every: int | None = None
    mask_rate: float = 0.15
    seeds: tuple[int, ...] = (0,)
    steps_per_dispatch: int = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_rate >= 1.0:
            raise UserError(
                f"`mask_rate` should be between 0 and 1, but got {self.mask_rate}"
            )
        longest = self.model.get("max_length", self.length)
        if longest < self.length:
            raise UserError(
                f"the model should have at least the {self.length} positions of a "
                f"chunk, but got one with {longest}"
            )

    def model_config(self) -> LanguageModelConfig:
        """The model's own configuration."""
        return model_types(self.task)[1](**{"scan_layers": True, **self.model})


def model_types(task: str) -> tuple[type, type]:
    """The model of a task and its configuration.

    >>> model_types("alm")[0].__name__
    'GPT2'
    """
    return (GPT2, GPT2Config) if task == "alm" else (Roberta, RobertaConfig)


def size_values(size: str, *, pretrained: bool = False) -> dict[str, Any]:
    """How a size is trained where no flag says otherwise.

    `base` and pretrained weights take the learning rate that the paper chose, the two
    sizes that are not in the paper the largest of its grid.

    >>> size_values("base")["learning_rate"]
    2e-05
    """
    same_as_paper = pretrained or size == "base"
    rate = PAPER_LEARNING_RATE if same_as_paper else max(LEARNING_RATES)
    return {"batch_size": 8, "learning_rate": rate}
