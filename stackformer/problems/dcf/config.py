"""The configuration of a DCF run and its presets."""

import dataclasses
from typing import Any

from stackformer import models, tasks
from stackformer.checks import MODES
from stackformer.nn.positions import POSITIONS
from stackformer.nn.stacks import STACKS
from stackformer.problems.dcf.lengths import Curriculum
from stackformer.problems.dcf.phases import PHASES
from stackformer.problems.settings import RunConfig, setting
from stackformer.training.errors import UserError

MODELS = tuple(models.MODELS)
PRESETS = ("quick", "paper", "smoke")
SCHEDULES = ("constant", "cooldown")
# Fields that say how far a run is measured: no part of what it has learned.
OF_EVALUATION = ("test_length", "test_strings", "test_buckets")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DCFConfig(RunConfig):
    """One run: a model, a task, how it is trained and how it is measured.

    Attributes:
      task: RS, SM, MA, SE, a long name such as reverse_string, module:Class or
        FILE.py:Class; `experiments.tasks` lists all.
      model: the architecture.
      stack: the kind of stack of the stack transformer: superposition is the paper's.
      mode: mlm: all answers at once; alm: one symbol after another.
      pos: positional encoding of the transformers.
      preset: the source of all defaults. quick: minutes on two CPU cores; paper: the
        paper's appendix; smoke: seconds, to see that all works.
      steps: optimizer steps; a larger number goes on with a finished run.
      batch_size: strings in a step.
      learning_rate: learning rate of Adam, at the beginning.
      warmup: steps over which the learning rate rises from a tenth; 0: none.
      schedule: of the learning rate: constant (the paper's), or cooldown: constant,
        then linear down to zero (quick).
      cooldown: the share of the steps that a cooldown takes.
      weight_decay: of AdamW; 0: Adam (the paper's).
      clip_norm: gradients are clipped to this global norm.
      train_length: train on strings of lengths 1..N.
      test_length: test up to N; the score is over train_length+1..N.
      curriculum: lengths of training strings, NAME or NAME:VALUE: uniform,
        fixed:LENGTH, regular_increase:STEPS, reverse_exponential:BASE, or
        accuracy:SHARE: short strings first, one length more whenever the newest three
        are right to that share.
      lengths_per_step: so many groups of a batch draw a length of their own.
      curriculum_start: the longest strings at first, with --curriculum=accuracy.
      phases: how far training goes: soft (the paper's); sharpened: from the training
        accuracy sharpen_at on the entropy of the actions is in the loss; hard: once it
        has fallen to harden_at, the stack takes its most probable action.
      sharpen_at: the training accuracy at which a seed is sharpened.
      entropy_weight: weight of the entropy, sharpened.
      harden_at: the entropy of the actions, in nats, at which a seed becomes hard.
      balance: weight of the balance term, which asks the actions to be those of
        brackets: as many pops as pushes, never below empty; 0: none.
      balance_steps: so many first steps learn the actions alone, from the strings and
        the balance term, without answers.
      balance_learning_rate: learning rate of these first steps.
      seeds: such as 0,1,2: independent runs, trained at once.
      test_strings: strings of each length at evaluation.
      steps_per_dispatch: steps in one program call.
      train_buckets: shapes that training lengths are padded to.
      test_buckets: shapes that test lengths are padded to.
      model_config: over the model's own configuration, such as
        d_model=32,num_layers=2.
    """

    experiment = "dcf"

    task: str
    model: str = setting("stack_transformer", choices=MODELS)
    stack: str | None = setting(None, choices=tuple(STACKS))
    mode: str = setting("mlm", choices=MODES)
    pos: str = setting("none", choices=POSITIONS)
    preset: str = setting("quick", choices=PRESETS)
    steps: int
    batch_size: int
    learning_rate: float
    warmup: int = setting(0, least=0)
    schedule: str = setting("constant", choices=SCHEDULES)
    cooldown: float = setting(0.2, most=1)
    weight_decay: float = setting(0.0, least=0)
    clip_norm: float = 1.0
    train_length: int = 40
    test_length: int = 100
    curriculum: str = "uniform"
    lengths_per_step: int = 1
    curriculum_start: int = 12
    phases: str = setting("soft", choices=PHASES)
    sharpen_at: float = setting(0.99, most=1)
    entropy_weight: float = 0.05
    harden_at: float = 0.05
    balance: float = setting(0.0, least=0)
    balance_steps: int = setting(0, least=0)
    balance_learning_rate: float = 1e-2
    seeds: tuple[int, ...] = (0,)
    test_strings: int = 512
    steps_per_dispatch: int = 25
    train_buckets: int = 5
    test_buckets: int = 8
    model_config: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        task_named(self.task)
        if self.stack is None and self.model == "stack_transformer":
            object.__setattr__(self, "stack", "superposition")
        if self.test_length <= self.train_length:
            raise UserError(
                f"`test_length` should be above the train_length {self.train_length}, "
                f"but got {self.test_length}"
            )
        if self.batch_size % self.lengths_per_step:
            raise UserError(
                f"`lengths_per_step` should divide the batch_size {self.batch_size}, "
                f"but got {self.lengths_per_step}"
            )
        if self.balance_steps and not self.balance:
            raise UserError(
                "`balance_steps` should be 0 without `balance`, which is what these "
                f"steps learn from, but got {self.balance_steps}"
            )
        self.lengths()

    def lengths(self) -> Curriculum:
        """The distribution of training lengths."""
        return Curriculum.parse(
            self.curriculum,
            self.train_length,
            self.train_buckets,
            start=self.curriculum_start,
            num_groups=self.lengths_per_step,
        )


def task_named(name: str) -> tasks.Task:
    """The task, or a `UserError` that lists the names."""
    try:
        return tasks.get(name)
    except (KeyError, ValueError) as error:
        message = error.args[0] if error.args else str(error)
        raise UserError(f"`task`: {message}") from None
