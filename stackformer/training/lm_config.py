"""The configuration of a language-modeling run."""

import dataclasses
from typing import Any

from stackformer.models.gpt2 import GPT2, GPT2_SIZES, GPT2Config
from stackformer.models.lm_config import LanguageModelConfig
from stackformer.models.roberta import Roberta, RobertaConfig
from stackformer.training.errors import UserError

TASKS = ("alm", "mlm")
DATASETS = ("wikitext2", "ptb")
SIZES = tuple(GPT2_SIZES)
# The grid of the paper's appendix B.2, and what it chose.
LEARNING_RATES = (1e-5, 2e-5, 1e-4, 2e-4)
PAPER_LEARNING_RATE = 2e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class LMConfig:
    """One run: a model, a text, how it is trained.

    Attributes:
      task: "alm" (GPT-2, next token) or "mlm" (RoBERTa, masked tokens).
      dataset: "wikitext2" or "ptb".
      size: "tiny", "small", "base", or "pretrained" where a folder gave the shape.
      model: all fields of `GPT2Config` or `RobertaConfig`.
      pretrained: the folder of the first weights, or None.
      text: fingerprint of the text files.
      tokenizer: fingerprint of the tokenizer, which lies in the run's folder.
      special_ids: ids of <s>, <pad>, </s>, <unk>, <mask> in the tokenizer; MLM only.
      length: tokens of a chunk.
      batch_size: chunks in a step.
      learning_rate: of Adam; constant, as in the paper.
      clip_norm: gradients are clipped to this global norm.
      epochs: at most so many.
      patience: validations (one an epoch) without improvement that end a run.
      steps: at most so many, for a fixed budget; None is no limit.
      validate_every: steps between validations; None is an epoch.
      mask_rate: the share of tokens that MLM hides.
      seeds: independent runs, trained at once.
      steps_per_dispatch: steps in one program call.
    """

    task: str
    dataset: str
    size: str
    model: dict[str, Any]
    pretrained: str | None = None
    text: str = ""
    tokenizer: str = ""
    special_ids: dict[str, int] = dataclasses.field(default_factory=dict)
    length: int = 128
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
        object.__setattr__(self, "seeds", tuple(self.seeds))
        _choice("task", self.task, TASKS)
        _choice("dataset", self.dataset, DATASETS)
        _choice("size", self.size, (*SIZES, "pretrained"))
        if self.learning_rate <= 0:
            raise UserError(f"--lr must be positive, got {self.learning_rate}")
        if not 0.0 < self.mask_rate < 1.0:
            raise UserError(
                f"--mask_rate must be between 0 and 1, got {self.mask_rate}"
            )
        for name in ("batch_size", "epochs", "patience", "steps", "validate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} must be at least 1, got {value}")
        longest = self.model.get("max_length", self.length)
        if longest < self.length:
            raise UserError(
                f"chunks have {self.length} tokens, but the model has only {longest} "
                "positions; take a model with more"
            )
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise UserError(f"--seeds must be different numbers, got {self.seeds}")
        if min(self.seeds) < 0:
            raise UserError(f"--seeds must not be negative, got {self.seeds}")

    def model_config(self) -> LanguageModelConfig:
        """The model's own configuration."""
        return model_types(self.task)[1](**self.model)

    def to_json(self) -> dict[str, Any]:
        """The content of config.json, without the environment."""
        content = dataclasses.asdict(self)
        return {"experiment": "lm", **content, "seeds": list(self.seeds)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "LMConfig":
        """Reads what `to_json` wrote; other keys of config.json are ignored."""
        if content.get("experiment") != "lm":
            raise UserError(
                "config.json is not of an experiments.lm run: "
                f'"experiment" is {content.get("experiment")!r}'
            )
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: x for name, x in content.items() if name in names})


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


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"--{name} must be one of {', '.join(allowed)}, got {value!r}")
