"""Accuracy over lengths: the programs that measure a trained model."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tqdm import tqdm

from stackformer import models, tasks
from stackformer.tasks.sampling import frozen_key
from stackformer.training.dcf_config import DCFConfig, task_named
from stackformer.training.errors import Interrupted, UserError
from stackformer.training.evaluation import make_measure
from stackformer.training.lengths import bucket_edges
from stackformer.training.mesh import Placement
from stackformer.training.problem import Measure
from stackformer.training.signals import StopRequest

Array = jax.Array
PyTree = Any
# Strings in a forward pass: 64 of length 100 (T = 201), fewer when they are longer.
_MOST_WEIGHTS = 64 * 201**2
_MOST_STRINGS = 128


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _TestBatch:
    framed: tasks.Framed
    sample: tasks.Sample


def _predict(config: DCFConfig, model: nnx.Module, batch: _TestBatch) -> Array:
    """Predicted classes at the answer's positions: (B, M).

    MLM reads them off one forward pass; ALM decodes greedily, each symbol after those
    the model itself has written.
    """
    task = task_named(config.task)
    framed, sample = batch.framed, batch.sample
    width = sample.outputs.shape[1]
    if config.mode == "mlm":
        logits = model(framed.tokens, mask=framed.mask)
        first = sample.length + 1
        answers = jax.lax.dynamic_slice_in_dim(logits, first, width, axis=1)
        return jnp.argmax(answers, axis=-1)
    prompt = framed.tokens[:, : sample.inputs.shape[1] + 2]
    inside = jnp.arange(prompt.shape[1])[None, :] < sample.length + 2
    lengths = jnp.full(prompt.shape[0], sample.length + 2, jnp.int32)
    classes, _ = models.generate(
        model,
        jnp.where(inside, prompt, tasks.PAD),
        lengths,
        width,
        output_tokens=task.output_tokens,
    )
    return classes


class LengthEvaluation:
    """Token and whole-string accuracy for each length; dropout off.

    The strings of a length are a function of the task and the length alone: all seeds,
    models and test lengths are measured on the same ones, with 512 strings those of the
    frozen test set. Lengths are padded to at most `config.test_buckets` widths, one
    program each.

    Args:
      config: the run; `test_length` and `test_strings` say what is measured.
      graph: the model's structure.
      placement: where to compute.
      test_set: strings by length instead of drawn ones, `data.dcf.load_test_set`.
    """

    def __init__(
        self,
        config: DCFConfig,
        graph: nnx.GraphDef,
        placement: Placement,
        *,
        test_set: dict[int, tasks.Sample] | None = None,
    ):
        self.config = config
        self.task = task_named(config.task)
        self.test_set = test_set
        self.num_strings = config.test_strings
        if test_set is not None:
            self.num_strings = _check_test_set(test_set, config.test_length)
        self.edges = bucket_edges(config.test_length, config.test_buckets)
        self.programs = {
            edge: make_measure(self._measure(edge), graph, placement)
            for edge in self.edges
        }

    def _batch_size(self, edge: int) -> int:
        """Strings in one forward pass: attention needs memory for B S T^2 numbers."""
        positions = 1 + edge + self.task.output_length(edge)
        most = _MOST_WEIGHTS // (positions**2 * len(self.config.seeds))
        most = min(max(most, 1), _MOST_STRINGS, self.num_strings)
        return max(n for n in range(1, most + 1) if self.num_strings % n == 0)

    def _measure(self, edge: int) -> Measure:
        batch_size = self._batch_size(edge)

        def draw(data: PyTree, length: Array) -> tasks.Sample:
            key = frozen_key(self.task.name, length)
            return self.task.sample(key, self.num_strings, length, edge)

        def batch(data: tasks.Sample, index: Array, length: Array) -> _TestBatch:
            inputs, outputs, mask = (
                jax.lax.dynamic_slice_in_dim(array, index * batch_size, batch_size)
                for array in (data.inputs, data.outputs, data.output_mask)
            )
            sample = tasks.Sample(inputs, outputs, mask, data.length)
            return _TestBatch(tasks.frame(self.task, sample, self.config.mode), sample)

        def count(model: nnx.Module, batch: _TestBatch) -> dict[str, Array]:
            mask = batch.sample.output_mask
            right = _predict(self.config, model, batch) == batch.sample.outputs
            return {
                "right": jnp.sum(right & mask, dtype=jnp.int32),
                "tokens": jnp.sum(mask, dtype=jnp.int32),
                "right_strings": jnp.sum((right | ~mask).all(axis=1), dtype=jnp.int32),
            }

        return Measure(
            batch=batch,
            count=count,
            num_batches=self.num_strings // batch_size,
            prepare=draw if self.test_set is None else None,
        )

    def at_length(self, params: PyTree, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Token and whole-string accuracy of each seed: two arrays (S,)."""
        edge = next(edge for edge in self.edges if edge >= length)
        data = ()
        if self.test_set is not None:
            data = _padded(self.task, self.test_set[length], edge)
        sums = self.programs[edge](params, data, np.int32(length))
        sums = {name: np.asarray(x, np.float64) for name, x in sums.items()}
        return sums["right"] / sums["tokens"], sums["right_strings"] / self.num_strings

    def run(
        self, params: PyTree, *, step: int = 0, progress: bool = True
    ) -> list[dict[str, dict[str, float]]]:
        """Lengths 1..test_length; for each seed `per_length`, `per_length_string`.

        Raises:
          Interrupted: after SIGTERM or Ctrl-C, with `step`.
        """
        seeds = len(self.config.seeds)
        runs = [{"per_length": {}, "per_length_string": {}} for _ in range(seeds)]
        lengths = range(1, self.config.test_length + 1)
        with StopRequest() as stop:
            for length in tqdm(
                lengths, desc="test lengths", disable=not progress, dynamic_ncols=True
            ):
                token, string = self.at_length(params, length)
                for run, a, b in zip(runs, token, string, strict=True):
                    run["per_length"][str(length)] = float(a)
                    run["per_length_string"][str(length)] = float(b)
                if stop.requested():
                    raise Interrupted(step)
        return runs


def _check_test_set(test_set: dict[int, tasks.Sample], test_length: int) -> int:
    """The number of strings of each length."""
    missing = sorted(set(range(1, test_length + 1)) - set(test_set))
    if missing:
        raise UserError(
            f"--test_data has the lengths {min(test_set)}..{max(test_set)}, but "
            f"--test_length={test_length} needs {missing[0]} too; choose "
            "a smaller --test_length"
        )
    sizes = {len(sample.inputs) for sample in test_set.values()}
    if len(sizes) != 1:
        raise UserError(f"--test_data has different numbers of strings: {sizes}")
    return sizes.pop()


def _padded(task: tasks.Task, sample: tasks.Sample, edge: int) -> tasks.Sample:
    """The same strings in arrays for strings of length `edge`."""

    def widen(array: np.ndarray, width: int) -> np.ndarray:
        return np.pad(array, ((0, 0), (0, width - array.shape[1])))

    return tasks.Sample(
        widen(sample.inputs, edge),
        widen(sample.outputs, task.output_length(edge)),
        widen(sample.output_mask, task.output_length(edge)),
        sample.length,
    )


def summarize(
    config: DCFConfig, runs: list[dict[str, Any]], *, steps: int, seconds: float
) -> dict[str, Any]:
    """The content of results.json.

    `score` is the mean of the token accuracy over the lengths
    train_length+1..test_length; `std` is the sample standard deviation over seeds.
    """
    lengths = range(config.train_length + 1, config.test_length + 1)
    finished = []
    for seed, run in zip(config.seeds, runs, strict=True):
        score = np.mean([run["per_length"][str(n)] for n in lengths])
        string = np.mean([run["per_length_string"][str(n)] for n in lengths])
        finished.append(
            {
                "seed": seed,
                "score": float(score),
                "string_score": float(string),
                "per_length": run["per_length"],
                "per_length_string": run["per_length_string"],
                "steps": steps,
                "seconds": seconds,
            }
        )
    scores = [run["score"] for run in finished]
    return {
        "task": config.task,
        "model": config.model,
        "mode": config.mode,
        "pos": config.pos,
        "preset": config.preset,
        "steps": steps,
        "train_length": config.train_length,
        "test_length": config.test_length,
        "test_strings": config.test_strings,
        "chance": task_named(config.task).chance,
        "runs": finished,
        "mean": float(np.mean(scores)),
        "std": float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0,
    }
