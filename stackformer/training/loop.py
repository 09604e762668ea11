"""The training loop: blocks of steps, records, checkpoints, validation."""

import contextlib
import dataclasses
import time
from typing import Any

import jax
import numpy as np

from stackformer.training.checkpoints import Checkpoints
from stackformer.training.errors import Interrupted, NonFiniteLossError, UserError
from stackformer.training.evaluation import make_measure
from stackformer.training.events import Events
from stackformer.training.mesh import Placement
from stackformer.training.problem import Problem, Validation
from stackformer.training.progress import Estimate, Progress
from stackformer.training.records import METRICS, TIMING, RunFolder
from stackformer.training.signals import StopRequest
from stackformer.training.state import TrainState, abstract_state, create_state
from stackformer.training.step import make_block, update_best


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How long and how to train; what is trained is the `Problem`.

    Attributes:
      steps: number of optimizer steps.
      seeds: each is an independent run; all are trained at once.
      steps_per_dispatch: steps in one program call, and the distance of two records
        in metrics.jsonl. Checkpoints and signals are looked after between calls.
      checkpoint_every: steps between checkpoints (at the next end of a block).
      keep: how many checkpoints stay.
      progress: whether to show a bar.
    """

    steps: int
    seeds: tuple[int, ...] = (0,)
    steps_per_dispatch: int = 25
    checkpoint_every: int = 500
    keep: int = 3
    progress: bool = True

    def __post_init__(self) -> None:
        for name in ("steps", "steps_per_dispatch", "checkpoint_every", "keep"):
            if getattr(self, name) < 1:
                raise UserError(
                    f"`{name}` should be at least 1, but got {getattr(self, name)}"
                )
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise UserError(f"`seeds` should be given and differ, but got {self.seeds}")


def _next_stop(step: int, options: TrainOptions, problem: Problem) -> int:
    """End of the block that begins at `step`: a function of the configuration only."""
    every = [options.steps_per_dispatch]
    if problem.validation is not None:
        every.append(problem.validation.every)
    return min([options.steps, *((step // n + 1) * n for n in every)])


class _Trainer:
    """The compiled parts and the state of one call of `train`."""

    def __init__(self, problem, options, placement, folder, checkpoints):
        self.problem: Problem = problem
        self.options: TrainOptions = options
        self.folder: RunFolder = folder
        self.checkpoints: Checkpoints = checkpoints
        abstract = abstract_state(problem, options.seeds, placement)
        self.block = make_block(
            problem, problem.graph, placement, abstract, options.steps_per_dispatch
        )
        self.data = jax.device_put(problem.data, placement.replicated)
        self.measure = None
        if problem.validation is not None:
            self.measure = make_measure(
                problem.validation.measure, problem.graph, placement
            )
        state = checkpoints.restore(abstract)
        if state is None:
            state = create_state(problem, options.seeds, placement)
        self.state: TrainState = state
        self.step = int(state.step)
        self.events = Events(
            folder.path / "tensorboard",
            options.seeds,
            step=self.step,
            enabled=folder.primary and folder.writable,
        )

    def run_block(self) -> dict[str, Any]:
        """Runs one block, writes its record and returns it."""
        begin = time.perf_counter()
        stop = _next_stop(self.step, self.options, self.problem)
        self.state, history = self.block(self.state, self.data, np.int32(stop))
        history = {name: np.asarray(x) for name, x in history.items()}
        history = {name: x[: stop - self.step] for name, x in history.items()}
        self._check_finite(history)
        seconds = time.perf_counter() - begin
        means = {name: x.mean(axis=0).tolist() for name, x in history.items()}
        record = {"step": stop, **means}
        validation = self.problem.validation
        if validation is not None and (
            stop % validation.every == 0 or stop == self.options.steps
        ):
            record["validation"] = self._validate(validation)
        speed = (stop - self.step) / seconds
        timing = {"step": stop, "seconds": seconds, "steps_per_second": speed}
        self.folder.append(METRICS, record)
        self.folder.append(TIMING, timing)
        self.events.write({**record, "steps_per_second": speed})
        self.step = stop
        return record

    def _validate(self, validation: Validation) -> dict[str, Any]:
        assert self.measure is not None
        score = validation.score(self.measure(self.state.params, self.data))
        patience = validation.patience or np.iinfo(np.int32).max
        self.state = update_best(self.state, score, np.int32(patience))
        best = self.state.best
        assert best is not None
        return {
            "score": np.asarray(score).tolist(),
            "best_score": np.asarray(best.score).tolist(),
            "best_step": np.asarray(best.step).tolist(),
        }

    def _check_finite(self, history: dict[str, np.ndarray]) -> None:
        for name in ("loss", "grad_norm"):
            bad = np.argwhere(~np.isfinite(history[name]))
            if len(bad):
                offset, seed = bad[0]
                self.checkpoints.wait()
                saved = self.checkpoints.steps()
                good = f"step {saved[-1]}" if saved else "none yet"
                raise NonFiniteLossError(
                    f"the {name} became {history[name][offset, seed]} at step "
                    f"{self.step + int(offset) + 1}, seed {self.options.seeds[seed]}; "
                    f"last good checkpoint: {good} in {self.checkpoints.directory}. "
                    "Try a smaller learning rate in a new folder."
                )

    def stopped_early(self) -> bool:
        """Whether every seed's validation has been stale for the whole patience."""
        validation = self.problem.validation
        if validation is None or validation.patience is None:
            return False
        best = self.state.best
        assert best is not None
        return bool(np.all(np.asarray(best.stale) >= validation.patience))


def train(
    problem: Problem,
    options: TrainOptions,
    *,
    folder: RunFolder,
    placement: Placement | None = None,
) -> TrainState:
    """Trains, or goes on from the newest whole checkpoint in the folder.

    The parameters after step s are a function of the problem, the seeds and s alone:
    not of where a run was interrupted, nor of how steps are grouped.

    Raises:
      Interrupted: after SIGTERM or Ctrl-C, with the state saved.
      NonFiniteLossError: the loss or the gradient was NaN or infinite.
    """
    placement = placement or Placement.create()
    with contextlib.ExitStack() as closing:
        place = folder.path / "checkpoints"
        if not folder.writable and not place.is_dir():
            folder.begin()  # refuses
        checkpoints = Checkpoints(
            place, keep=options.keep, read_only=not folder.writable
        )
        closing.callback(checkpoints.close)
        shown = Progress(enabled=options.progress and folder.primary)
        closing.enter_context(shown)
        shown.wait_for("making the model")
        trainer = _Trainer(problem, options, placement, folder, checkpoints)
        closing.callback(trainer.events.close)
        folder.begin()
        folder.truncate(trainer.step)
        first, estimate = trainer.step, Estimate()
        if 0 < first < options.steps:
            shown.say(f"going on from step {first:,} of {options.steps:,}")
        with StopRequest() as stop:
            while trainer.step < options.steps and not trainer.stopped_early():
                before, begin = trainer.step, time.monotonic()
                if before == first:
                    shapes = len(problem.buckets)
                    lengths = f", {shapes} lengths" if shapes > 1 else ""
                    shown.wait_for(f"compiling the training step{lengths}")
                record = trainer.run_block()
                estimate.add(0, trainer.step - before, time.monotonic() - begin)
                shown.count(
                    "training",
                    trainer.step,
                    options.steps,
                    note=_note(record),
                    left=estimate.left({0: options.steps - trainer.step}),
                )
                every = options.checkpoint_every
                if trainer.step // every > before // every:
                    checkpoints.save(trainer.step, trainer.state)
                if trainer.step < options.steps and stop.requested():
                    checkpoints.save(trainer.step, trainer.state)
                    checkpoints.wait()
                    raise Interrupted(trainer.step)
        if folder.writable:
            checkpoints.save(trainer.step, trainer.state)
            checkpoints.wait()
        return trainer.state


def _note(record: dict[str, Any]) -> str:
    shown = [
        f"{name} {np.mean(record[name]):.3f}"
        for name in ("loss", "accuracy")
        if name in record
    ]
    return ", ".join(shown)
