"""Accuracy over lengths: the programs that measure a trained model."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from stackformer import models, tasks
from stackformer.problems.dcf.config import DCFConfig, task_named
from stackformer.problems.dcf.lengths import bucket_edges
from stackformer.tasks.sampling import FROZEN_STRINGS, frozen_key
from stackformer.training.errors import Interrupted, UserError
from stackformer.training.evaluation import make_measure
from stackformer.training.mesh import Placement
from stackformer.training.problem import Measure
from stackformer.training.progress import Estimate, Progress
from stackformer.training.signals import StopRequest

Array = jax.Array
PyTree = Any
# Strings in a forward pass: 64 of length 100 (T = 201), fewer when they are longer.
# On a CPU 16, whose attention is nearer the caches: on two machines 4 took 0.6 and 1.2
# of the time of 64, 16 took as long as 64 on the second. Decoding wants many.
_MOST_WEIGHTS = 64 * 201**2
_MOST_WEIGHTS_OF_CACHES = 16 * 201**2
_MOST_STRINGS = 128
# From so many whole strings right on, a pass over the right answers is worth its time.
_NEARLY_ALL = 0.99
# Positions for which attention costs as much as all that is linear in them.
_REST = 256


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _TestBatch:
    sample: tasks.Sample
    asked: Array  # (B,) bool
    hard: Array  # () bool
    spare: Array  # () bool


def predict(
    model: Any,
    task: tasks.Task,
    mode: str,
    sample: tasks.Sample,
    hard: bool | Array,
    *,
    spare: bool | Array = True,
) -> Array:
    """Predicted classes at the answer's positions: (B, M).

    MLM reads them off one forward pass; ALM decodes greedily, each symbol after those
    the model itself has written. Where a pass over the right answers predicts all of
    them, decoding would write just these: with `spare` such a pass comes first. It is
    worth its time for models that are nearly always right; the classes are the same.
    """
    framed, hard = tasks.frame(task, sample, mode), jnp.asarray(hard)

    def read_off() -> Array:
        logits = model(framed.tokens, mask=framed.mask, hard=hard)
        first, width = sample.length + 1, sample.outputs.shape[1]
        answers = jax.lax.dynamic_slice_in_dim(logits, first, width, axis=1)
        return jnp.argmax(answers, axis=-1).astype(jnp.int32)

    if mode == "mlm":
        return read_off()
    nothing = jnp.full(sample.outputs.shape, -1, jnp.int32)
    classes = jax.lax.cond(spare, read_off, lambda: nothing)
    all_right = jnp.all((classes == sample.outputs) | ~sample.output_mask) & spare

    def decode(hard: bool) -> Callable[[], Array]:
        return lambda: _decode(model, task, framed.tokens, sample, hard=hard)

    index = jnp.where(all_right, 0, 1 + hard.astype(jnp.int32))
    return jax.lax.switch(index, [lambda: classes, decode(False), decode(True)])


def _decode(
    model: Any, task: tasks.Task, tokens: Array, sample: tasks.Sample, *, hard: bool
) -> Array:
    prompt = tokens[:, : sample.inputs.shape[1] + 2]
    inside = jnp.arange(prompt.shape[1])[None, :] < sample.length + 2
    lengths = jnp.full(prompt.shape[0], sample.length + 2, jnp.int32)
    # Strings shorter than the program's have shorter answers.
    places = 1 + jnp.arange(sample.outputs.shape[1])[None, :]
    needed = jnp.where(sample.output_mask, places, 1).max()
    classes, _ = models.generate(
        model,
        jnp.where(inside, prompt, tasks.PAD),
        lengths,
        sample.outputs.shape[1],
        output_tokens=task.output_tokens,
        hard=hard,
        needed=needed,
    )
    return classes


class LengthEvaluation:
    """Token and whole-string accuracy for each length; dropout off.

    The strings of a length are a function of the task and the length alone: all seeds,
    models and test lengths are measured on the same ones, with 512 strings those of the
    frozen test set. More than 512 are drawn and measured in blocks of 512, so that
    memory does not grow with their number. Lengths are padded to at most
    `config.test_buckets` widths, one program each.

    Args:
      config: the run; `test_length` and `test_strings` say what is measured.
      graph: the model's structure.
      placement: where to compute.
      test_set: strings by length instead of drawn ones, `data.dcf.load_test_set`.
      with_hard: measure with the most probable actions too.

    Attributes:
      num_strings: strings of each length.
    """

    def __init__(
        self,
        config: DCFConfig,
        graph: nnx.GraphDef,
        placement: Placement,
        *,
        test_set: dict[int, tasks.Sample] | None = None,
        with_hard: bool = False,
    ):
        self.config = config
        self.with_hard = with_hard
        self.task = task_named(config.task)
        self.test_set = test_set
        self.num_strings = config.test_strings
        self.block = min(self.num_strings, FROZEN_STRINGS)
        if test_set is not None:
            self.num_strings = check_test_set(test_set, config.test_length)
            self.block = self.num_strings
        # Whether decoding will be spared, by what the length before was like.
        self._spare = {False: True, True: True}
        self.edges = bucket_edges(config.test_length, config.test_buckets)
        self.programs = {
            edge: make_measure(self._measure(edge), graph, placement)
            for edge in self.edges
        }

    def _batch_size(self, edge: int) -> int:
        """Strings in one forward pass: attention needs memory for B S T^2 numbers."""
        positions = 1 + edge + int(self.task.output_length(edge))
        cached = jax.default_backend() == "cpu" and self.config.mode == "mlm"
        weights = _MOST_WEIGHTS_OF_CACHES if cached else _MOST_WEIGHTS
        most = weights // (positions**2 * len(self.config.seeds))
        most = min(max(most, 1), _MOST_STRINGS, self.block)
        return max(n for n in range(1, most + 1) if self.block % n == 0)

    def _measure(self, edge: int) -> Measure:
        batch_size = self._batch_size(edge)

        def draw(
            data: PyTree, length: Array, block: Array, hard: Array, spare: Array
        ) -> tasks.Sample:
            key = frozen_key(self.task.name, length, block)
            return self.task.sample(key, self.block, length, edge)

        def batch(
            data: tasks.Sample,
            index: Array,
            length: Array,
            block: Array,
            hard: Array,
            spare: Array,
        ) -> _TestBatch:
            first = index * batch_size
            inputs, outputs, mask = (
                jax.lax.dynamic_slice_in_dim(array, first, batch_size)
                for array in (data.inputs, data.outputs, data.output_mask)
            )
            sample = tasks.Sample(inputs, outputs, mask, data.length)
            # The last block may have more strings than were asked for.
            left = self.num_strings - block * self.block - first
            return _TestBatch(sample, jnp.arange(batch_size) < left, hard, spare)

        def count(model: nnx.Module, batch: _TestBatch) -> dict[str, Array]:
            mask = batch.sample.output_mask & batch.asked[:, None]
            predicted = predict(
                model,
                self.task,
                self.config.mode,
                batch.sample,
                batch.hard,
                spare=batch.spare,
            )
            right = predicted == batch.sample.outputs
            strings = (right | ~mask).all(axis=1) & batch.asked
            return {
                "right": jnp.sum(right & mask, dtype=jnp.int32),
                "tokens": jnp.sum(mask, dtype=jnp.int32),
                "right_strings": jnp.sum(strings, dtype=jnp.int32),
            }

        return Measure(
            batch=batch,
            count=count,
            num_batches=self.block // batch_size,
            prepare=draw if self.test_set is None else None,
            one_by_one=self.config.mode == "alm",
        )

    def at_length(
        self, params: PyTree, length: int, *, hard: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Token and whole-string accuracy of each seed: two arrays (S,).

        With `hard` the stacks take their most probable action.
        """
        edge = self._edge(length)
        data = ()
        if self.test_set is not None:
            data = _padded(self.task, self.test_set[length], edge)
        totals: dict[str, Any] = {}
        for block in range(-(-self.num_strings // self.block)):
            sums = self.programs[edge](
                params,
                data,
                np.int32(length),
                np.int32(block),
                np.bool_(hard),
                np.bool_(self._spare[hard]),
            )
            for name, x in sums.items():
                totals[name] = totals.get(name, 0) + np.asarray(x, np.int64)
        strings = totals["right_strings"] / self.num_strings
        self._spare[hard] = bool(np.mean(strings) >= _NEARLY_ALL)
        return totals["right"] / totals["tokens"], strings

    def run(
        self, params: PyTree, *, step: int = 0, progress: bool = True
    ) -> list[dict[str, dict[str, float]]]:
        """Lengths 1..test_length; for each seed `per_length`, `per_length_string`,
        and where asked for `per_length_hard`.

        Raises:
          Interrupted: after SIGTERM or Ctrl-C, with `step`.
        """
        seeds = len(self.config.seeds)
        names = ["per_length", "per_length_string"]
        names += ["per_length_hard"] if self.with_hard else []
        runs: list[dict[str, dict[str, float]]] = [
            {name: {} for name in names} for _ in range(seeds)
        ]
        last, estimate, seen = self.config.test_length, Estimate(), set()
        costs = [(self._edge(n), self._cost(self._edge(n))) for n in range(1, last + 1)]
        with Progress(enabled=progress) as shown, StopRequest() as stop:
            for length, (edge, cost) in enumerate(costs, start=1):
                begin = time.monotonic()
                if edge not in seen:
                    shown.wait_for(f"compiling the evaluation up to length {edge:,}")
                seen.add(edge)
                measured = list(self.at_length(params, length))
                if self.with_hard:
                    measured.append(self.at_length(params, length, hard=True)[0])
                for name, values in zip(names, measured, strict=True):
                    for run, value in zip(runs, values, strict=True):
                        run[name][str(length)] = float(value)
                estimate.add(edge, cost, time.monotonic() - begin)
                remaining: dict[int, float] = {}
                for kind, each in costs[length:]:
                    remaining[kind] = remaining.get(kind, 0.0) + each
                left = estimate.left(remaining)
                shown.count("testing", length, last, unit=" lengths", left=left)
                if stop.requested():
                    raise Interrupted(step)
        return runs

    def _edge(self, length: int) -> int:
        """The length that strings of this one are padded to."""
        return next(edge for edge in self.edges if edge >= length)

    def _cost(self, edge: int) -> float:
        """What a length of a bucket costs, in any unit: attention, and the rest."""
        positions = 1 + edge + int(self.task.output_length(edge))
        return positions * (positions + _REST)


def check_test_set(test_set: dict[int, tasks.Sample], test_length: int) -> int:
    """The number of strings of each length."""
    missing = sorted(set(range(1, test_length + 1)) - set(test_set))
    if missing:
        raise UserError(
            f"`test_data` should have all lengths up to `test_length` {test_length}, "
            f"but got {min(test_set)}..{max(test_set)} without {missing[0]}"
        )
    sizes = {len(sample.inputs) for sample in test_set.values()}
    if len(sizes) != 1:
        raise UserError(
            f"`test_data` should have as many strings of every length, but got {sizes}"
        )
    return sizes.pop()


def _padded(task: tasks.Task, sample: tasks.Sample, edge: int) -> tasks.Sample:
    """The same strings in arrays for strings of length `edge`."""

    def widen(array: Array | np.ndarray, width: int) -> np.ndarray:
        return np.pad(array, ((0, 0), (0, width - array.shape[1])))

    answer = int(task.output_length(edge))
    return tasks.Sample(
        widen(sample.inputs, edge),
        widen(sample.outputs, answer),
        widen(sample.output_mask, answer),
        sample.length,
    )


def results_name(config: DCFConfig, test_length: int, test_strings: int) -> str:
    """The file of an evaluation: results.json is that of the run's own protocol.

    >>> config = DCFConfig(task="RS", steps=1, batch_size=1, learning_rate=1e-3)
    >>> results_name(config, 100, 512), results_name(config, 500, 1)
    ('results.json', 'results-500x1.json')
    """
    if (test_length, test_strings) == (config.test_length, config.test_strings):
        return "results.json"
    return f"results-{test_length}x{test_strings}.json"


def summarize(
    config: DCFConfig,
    runs: list[dict[str, Any]],
    *,
    steps: int,
    seconds: float,
    test_strings: int,
) -> dict[str, Any]:
    """The content of results.json.

    `score` is the mean of the token accuracy over the lengths
    train_length+1..test_length, `score_hard` that with the most probable actions;
    `std` is the sample standard deviation over seeds.
    """
    lengths = range(config.train_length + 1, config.test_length + 1)

    def score(accuracies: dict[str, float]) -> float:
        return float(np.mean([accuracies[str(n)] for n in lengths]))

    finished = []
    for seed, run in zip(config.seeds, runs, strict=True):
        scores = {"score": score(run["per_length"])}
        if "per_length_hard" in run:
            scores["score_hard"] = score(run["per_length_hard"])
        scores["string_score"] = score(run["per_length_string"])
        more = {"steps": steps, "seconds": seconds}
        finished.append({"seed": seed, **scores, **run, **more})
    summary = _mean_and_std([run["score"] for run in finished])
    if "score_hard" in finished[0]:
        hard = _mean_and_std([run["score_hard"] for run in finished])
        summary |= {f"{name}_hard": x for name, x in hard.items()}
    return {
        "task": config.task,
        "model": config.model,
        "stack": config.stack,
        "phases": config.phases,
        "mode": config.mode,
        "pos": config.pos,
        "model_config": config.model_config,
        "preset": config.preset,
        "steps": steps,
        "train_length": config.train_length,
        "test_length": config.test_length,
        "test_strings": test_strings,
        "chance": task_named(config.task).chance,
        "runs": finished,
        **summary,
    }


def _mean_and_std(scores: list[float]) -> dict[str, float]:
    std = float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0
    return {"mean": float(np.mean(scores)), "std": std}
