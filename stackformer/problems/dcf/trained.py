"""A trained model with what belongs to it: its task, and answers to strings."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from stackformer import tasks
from stackformer.problems.dcf.config import DCFConfig, task_named
from stackformer.problems.dcf.evaluation import predict
from stackformer.problems.dcf.problem import make_problem
from stackformer.training.loading import load_model
from stackformer.training.records import read_json

# Inputs are padded to this many symbols, or a power of two times as many.
_NARROWEST = 8


class TrainedModel(NamedTuple):
    """A model as a run left it.

    Attributes:
      model: an NNX module, `model(tokens, mask=mask)`.
      task: what it was trained on.
      config: the configuration of its run.
    """

    model: Any
    task: tasks.Task
    config: DCFConfig

    @overload
    def predict(self, text: str, *, hard: bool = False) -> str: ...
    @overload
    def predict(
        self, text: list[str] | tuple[str, ...], *, hard: bool = False
    ) -> list[str]: ...
    def predict(
        self, text: str | Sequence[str], *, hard: bool = False
    ) -> str | list[str]:
        """The model's answer to an input string, or to each of several.

        Args:
          text: in the task's input symbols, such as "abba" or "a b pop push_a".
          hard: the stacks take their most probable action.

        Raises:
          ValueError: a string is empty, has symbols that the task does not know, or is
            not of its form, such as brackets that do not match.
        """
        if isinstance(text, str):
            return self.predict([text], hard=hard)[0]
        if not isinstance(text, Sequence) or not all(isinstance(x, str) for x in text):
            raise TypeError(f"`text` should be a text or several, but got {text!r}.")
        inputs = [self._encode(one) for one in text]
        answers = {}
        for length in sorted({x.size for x in inputs}):
            rows = [i for i, x in enumerate(inputs) if x.size == length]
            found = self._predict(np.stack([inputs[i] for i in rows]), hard)
            answers |= dict(zip(rows, found, strict=True))
        return [answers[i] for i in range(len(inputs))]

    def _encode(self, text: str) -> np.ndarray:
        inputs = self.task.encode(text)
        if not inputs.size:
            raise ValueError(
                f"{self.task.name} input should not be empty; its symbols are "
                f"{' '.join(self.task.input_symbols)}."
            )
        self.task.check_form([self.task.input_symbols[i] for i in inputs])
        return inputs

    def _predict(self, inputs: np.ndarray, hard: bool) -> list[str]:
        length = inputs.shape[1]
        width = _NARROWEST
        while width < length:
            width *= 2
        padded = np.pad(inputs, ((0, 0), (0, width - length)))
        graph, params = nnx.split(self.model)
        classes = _classes(
            graph, self.task, self.config.mode, params, padded, length, hard
        )
        return [
            self._written(row)
            for row in np.asarray(classes)[:, : int(self.task.output_length(length))]
        ]

    def _written(self, classes: np.ndarray) -> str:
        if tasks.END in self.task.output_symbols:
            end = self.task.output_symbols.index(tasks.END)
            classes = classes[: np.argmax([*(classes == end), True]) + 1]
        return self.task.decode_output(classes)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _classes(graph, task, mode, params, inputs, length, hard):
    outputs = jnp.zeros((len(inputs), task.output_length(inputs.shape[1])), jnp.int32)
    inside = jnp.arange(outputs.shape[1]) < task.output_length(length)
    sample = tasks.Sample(
        inputs=inputs,
        outputs=outputs,
        output_mask=jnp.broadcast_to(inside, outputs.shape),
        length=length,
    )
    return predict(nnx.merge(graph, params), task, mode, sample, hard)


def load_config(out_dir: Path | str) -> DCFConfig:
    """The configuration of a run from its folder."""
    return DCFConfig.from_json(read_json(Path(out_dir) / "config.json"))


def load_run(out_dir: Path | str, seed: int | None = None) -> TrainedModel:
    """A trained model from a run's folder.

    Args:
      out_dir: the `--out` of an `experiments.dcf` run.
      seed: one of the run's seeds; by default the first.
    """
    config = load_config(out_dir)
    model = load_model(out_dir, make_problem(config), config.seeds, seed)
    return TrainedModel(model, task_named(config.task), config)
