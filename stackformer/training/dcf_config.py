"""The configuration of a DCF run and its presets."""

import dataclasses
from typing import Any

from stackformer import models, tasks
from stackformer.nn.positions import POSITIONS
from stackformer.training.errors import UserError
from stackformer.training.lengths import Curriculum

MODELS = tuple(models.MODELS)
MODES = ("mlm", "alm")
SCHEDULES = ("constant", "cooldown")
PRESETS = ("quick", "paper", "smoke")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DCFConfig:
    """One run: a model, a task, how it is trained and how it is measured.

    Attributes:
      task: short or long name of a task.
      model: one of `MODELS`.
      mode: "mlm" (all answers at once) or "alm" (one after the other).
      pos: positional encoding of the transformers.
      preset: where the defaults came from; a record only.
      steps: optimizer steps.
      batch_size: strings in a step.
      learning_rate: of Adam, at the beginning.
      schedule: "constant" (the paper's), or "cooldown": constant for four fifths of the
        steps, then linear down to zero.
      clip_norm: gradients are clipped to this global norm.
      train_length: training strings have lengths 1..train_length.
      test_length: the score is over train_length+1..test_length.
      curriculum: `NAME` or `NAME:VALUE`, see `Curriculum`.
      seeds: independent runs, trained at once.
      test_strings: strings for each length at evaluation.
      steps_per_dispatch: steps in one program call.
      train_buckets: shapes that training lengths are padded to.
      test_buckets: shapes that test lengths are padded to.
      model_config: overrides of the model's own configuration.
    """

    task: str
    model: str = "stack_transformer"
    mode: str = "mlm"
    pos: str = "none"
    preset: str = "quick"
    steps: int
    batch_size: int
    learning_rate: float
    schedule: str = "constant"
    clip_norm: float = 1.0
    train_length: int = 40
    test_length: int = 100
    curriculum: str = "uniform"
    seeds: tuple[int, ...] = (0,)
    test_strings: int = 512
    steps_per_dispatch: int = 25
    train_buckets: int = 5
    test_buckets: int = 8
    model_config: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", tuple(self.seeds))
        _choice("model", self.model, MODELS)
        _choice("mode", self.mode, MODES)
        _choice("pos", self.pos, POSITIONS)
        _choice("preset", self.preset, PRESETS)
        _choice("schedule", self.schedule, SCHEDULES)
        task_named(self.task)
        for name in (
            "steps",
            "batch_size",
            "train_length",
            "test_strings",
            "steps_per_dispatch",
            "train_buckets",
            "test_buckets",
        ):
            if getattr(self, name) < 1:
                raise UserError(
                    f"--{name} must be at least 1, got {getattr(self, name)}"
                )
        if self.learning_rate <= 0:
            raise UserError(f"--lr must be positive, got {self.learning_rate}")
        if self.test_length <= self.train_length:
            raise UserError(
                f"--test_length must be above --train_length={self.train_length}, "
                f"got {self.test_length}"
            )
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise UserError(f"--seeds must be different numbers, got {self.seeds}")
        if min(self.seeds) < 0:
            raise UserError(f"--seeds must not be negative, got {self.seeds}")
        self.lengths()

    def lengths(self) -> Curriculum:
        """The distribution of training lengths."""
        return Curriculum.parse(self.curriculum, self.train_length, self.train_buckets)

    def to_json(self) -> dict[str, Any]:
        """The content of config.json, without the environment."""
        content = dataclasses.asdict(self)
        return {"experiment": "dcf", **content, "seeds": list(self.seeds)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "DCFConfig":
        """Reads what `to_json` wrote; other keys of config.json are ignored."""
        if content.get("experiment") != "dcf":
            raise UserError(
                "config.json is not of an experiments.dcf run: "
                f'"experiment" is {content.get("experiment")!r}'
            )
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: x for name, x in content.items() if name in names})


def task_named(name: str) -> tasks.Task:
    """The task, or a `UserError` that lists the names."""
    try:
        return tasks.get(name)
    except (KeyError, ValueError) as error:
        message = error.args[0] if error.args else str(error)
        raise UserError(f"--task: {message}") from None


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"--{name} must be one of {', '.join(allowed)}, got {value!r}")


def preset_values(preset: str, task: str, model: str) -> dict[str, Any]:
    """Defaults of a preset for a task and a model; `README.md` explains them.

    >>> preset_values("paper", "MA", "stack_transformer")["steps"]
    1000000
    """
    _choice("preset", preset, PRESETS)
    _choice("model", model, MODELS)
    short = task_named(task).short_name
    if preset == "paper":
        long = short not in ("RS", "SM")
        return {
            "steps": 1_000_000 if long else 100_000,
            "batch_size": 128 if long else 32,
            "learning_rate": 1e-4,
        }
    if preset == "smoke":
        transformer = model in ("transformer", "stack_transformer")
        small = {"d_model": 16, "num_layers": 2, "num_heads": 2}
        return {
            "steps": 20,
            "batch_size": 8,
            "learning_rate": 1e-3,
            "train_length": 6,
            "test_length": 12,
            "test_strings": 32,
            "steps_per_dispatch": 5,
            "train_buckets": 1,
            "test_buckets": 1,
            "model_config": small if transformer else {"hidden_size": 16},
        }
    return {
        "steps": 1_000 if short == "RS" else 2_500,
        "batch_size": 32,
        "learning_rate": 3e-4,
        "schedule": "cooldown",
        "train_buckets": 3,
        "test_buckets": 4,
    }
