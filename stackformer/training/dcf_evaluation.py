"""Accuracy over lengths: the programs that measure a trained model."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tqdm import tqdm

from stackformer import models, tasks
from stackformer.training.dcf_config import DCFConfig, task_named
from stackformer.training.errors import Interrupted
from stackformer.training.evaluation import make_measure
from stackformer.training.lengths import bucket_edges
from stackformer.training.mesh import Placement
from stackformer.training.problem import Measure
from stackformer.training.signals import StopRequest

Array = jax.Array
PyTree = Any
TEST_BUCKETS = 8
_TEST_SEED = 512


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
    models and test lengths are measured on the same ones. Lengths are padded to at
    most 8 widths, one program each.

    Args:
      config: the run; `test_length` and `test_strings` say what is measured.
      placement: where to compute.
      batch_size: strings in one forward pass; a divisor of `test_strings` is chosen.
    """

    def __init__(
        self, config: DCFConfig, placement: Placement, *, batch_size: int = 64
    ):
        self.config = config
        self.task = task_named(config.task)
        self.placement = placement
        self.batch_size = max(
            n
            for n in range(1, min(batch_size, config.test_strings) + 1)
            if config.test_strings % n == 0
        )
        self.edges = bucket_edges(config.test_length, TEST_BUCKETS)
        graph = graph_of(make_problem(config))
        self.programs = {
            edge: make_measure(self._measure(edge), graph, placement)
            for edge in self.edges
        }

    def _measure(self, edge: int) -> Measure:
        def batch(data: PyTree, index: Array, length: Array) -> _TestBatch:
            key = jax.random.fold_in(jax.random.key(_TEST_SEED), length)
            key = jax.random.fold_in(key, index)
            sample = self.task.sample(key, self.batch_size, length, edge)
            return _TestBatch(tasks.frame(self.task, sample, self.config.mode), sample)

        def count(model: nnx.Module, batch: _TestBatch) -> dict[str, Array]:
            mask = batch.sample.output_mask
            right = _predict(self.config, model, batch) == batch.sample.outputs
            return {
                "right": jnp.sum(right & mask, dtype=jnp.int32),
                "tokens": jnp.sum(mask, dtype=jnp.int32),
                "right_strings": jnp.sum((right | ~mask).all(axis=1), dtype=jnp.int32),
            }

        batches = self.config.test_strings // self.batch_size
        return Measure(batch=batch, count=count, num_batches=batches)

    def at_length(self, params: PyTree, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Token and whole-string accuracy of each seed: two arrays (S,)."""
        edge = next(edge for edge in self.edges if edge >= length)
        sums = self.programs[edge](params, (), np.int32(length))
        sums = {name: np.asarray(x, np.float64) for name, x in sums.items()}
        strings = self.config.test_strings
        return sums["right"] / sums["tokens"], sums["right_strings"] / strings
