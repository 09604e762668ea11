"""Length generalization on formal-language tasks, as a `Problem` for the engine."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from stackformer import models, tasks
from stackformer.training import loop
from stackformer.training.dcf_config import DCFConfig, task_named
from stackformer.training.dcf_evaluation import LengthEvaluation, summarize
from stackformer.training.errors import UserError
from stackformer.training.loading import load_model, load_parameters
from stackformer.training.loop import TrainOptions
from stackformer.training.mesh import Placement
from stackformer.training.problem import Problem
from stackformer.training.records import RunFolder, read_json
from stackformer.training.state import graph_of, parameters

Array = jax.Array
PyTree = Any


def make_problem(config: DCFConfig) -> Problem:
    """The engine's view of a configuration: model, batches, loss, optimizer."""
    task = task_named(config.task)
    curriculum = config.lengths()

    def init(key: Array) -> nnx.Module:
        return models.build(
            config.model,
            task,
            config.model_config,
            mode=config.mode,
            positions=config.pos,
            rngs=nnx.Rngs(key),
        )

    def batch(data: PyTree, key: Array, step: Array, bucket: int) -> tasks.Framed:
        length_key, string_key = jax.random.split(jax.random.fold_in(key, step))
        length = curriculum.draw(length_key, step, bucket)
        sample = task.sample(string_key, config.batch_size, length, bucket)
        return tasks.frame(task, sample, config.mode)

    def loss(
        model: nnx.Module, batch: tasks.Framed, rngs: nnx.Rngs
    ) -> tuple[Array, dict[str, Array]]:
        logits = model(batch.tokens, mask=batch.mask, rngs=rngs)
        return masked_loss(logits, batch.targets, batch.target_mask)

    return Problem(
        init=init,
        batch=batch,
        loss=loss,
        optimizer=optax.chain(
            optax.clip_by_global_norm(config.clip_norm),
            optax.adam(learning_rate(config)),
        ),
        buckets=curriculum.buckets(),
        choose_bucket=curriculum.choose_bucket,
    )


def learning_rate(config: DCFConfig) -> optax.ScalarOrSchedule:
    """Adam's learning rate: a number, or a function of the step."""
    if config.schedule == "cooldown":
        cooldown = max(1, config.steps // 5)
        return optax.linear_schedule(
            config.learning_rate, 0.0, cooldown, config.steps - cooldown
        )
    return config.learning_rate


def check_model(config: DCFConfig) -> None:
    """Raises `UserError` where the model cannot be built with these settings."""
    try:
        graph_of(make_problem(config))
    except ValueError as error:
        raise UserError(f"--model={config.model}: {error}") from None


def masked_loss(
    logits: Array, targets: Array, mask: Array
) -> tuple[Array, dict[str, Array]]:
    """Cross-entropy and accuracy, means over the positions that count.

    Args:
      logits: (B, T, O).
      targets: (B, T) int32 classes.
      mask: (B, T) bool.
    """
    weight = mask.astype(jnp.float32)
    total = jnp.maximum(weight.sum(), 1.0)
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits.astype(jnp.float32), targets
    )
    right = (jnp.argmax(logits, axis=-1) == targets).astype(jnp.float32)
    return (losses * weight).sum() / total, {"accuracy": (right * weight).sum() / total}


def run(
    config: DCFConfig,
    folder: RunFolder,
    placement: Placement,
    *,
    train: bool = True,
    test_data: str | None = None,
    checkpoint_every: int | None = None,
    keep: int = 3,
    progress: bool = True,
) -> dict[str, Any]:
    """Trains (or loads), measures all lengths, writes results.json and returns it.

    A finished run is not measured again, unless `train` is False.
    """
    test_set = load_test_set(config, test_data)
    options = TrainOptions(
        steps=config.steps,
        seeds=config.seeds,
        steps_per_dispatch=config.steps_per_dispatch,
        checkpoint_every=checkpoint_every or min(1000, max(100, config.steps // 10)),
        keep=keep,
        progress=progress,
    )
    if train:
        state = loop.train(
            make_problem(config), options, folder=folder, placement=placement
        )
        params, step = parameters(state), int(state.step)
    else:
        params, step = load_parameters(
            folder.path, make_problem(config), config.seeds, placement
        )
    runs = _finished_runs(config, folder, step, test_data) if train else None
    if runs is None:
        graph = graph_of(make_problem(config))
        evaluation = LengthEvaluation(config, graph, placement, test_set=test_set)
        runs = evaluation.run(params, step=step, progress=progress)
    results = summarize(config, runs, steps=step, seconds=folder.seconds())
    results["test_data"] = test_data
    folder.write("results.json", results)
    return results


def _finished_runs(
    config: DCFConfig, folder: RunFolder, step: int, test_data: str | None
) -> list[dict[str, Any]] | None:
    """Accuracies from results.json, if they are of this state and of all lengths."""
    path = folder.path / "results.json"
    if not path.exists():
        return None
    old = read_json(path)
    same = (old["steps"], old["test_strings"], old["test_data"]) == (
        step,
        config.test_strings,
        test_data,
    )
    if not same or old["test_length"] < config.test_length:
        return None
    lengths = [str(n) for n in range(1, config.test_length + 1)]
    names = ("per_length", "per_length_string")
    return [
        {name: {n: run[name][n] for n in lengths} for name in names}
        for run in old["runs"]
    ]


def load_test_set(
    config: DCFConfig, test_data: str | None
) -> dict[int, tasks.Sample] | None:
    """The frozen test set in a folder, or None where none was asked for."""
    if test_data is None:
        return None
    from stackformer.data import dcf as frozen  # slow to import: tensorflow-datasets

    try:
        return frozen.load_test_set(test_data, task_named(config.task))
    except (ValueError, OSError) as error:
        raise UserError(f"--test_data={test_data}: {error}") from None


def load_config(out_dir: Path | str) -> DCFConfig:
    """The configuration of a run from its folder."""
    return DCFConfig.from_json(read_json(Path(out_dir) / "config.json"))


def load_run(
    out_dir: Path | str, seed: int | None = None
) -> tuple[nnx.Module, tasks.Task, DCFConfig]:
    """A trained model from a run's folder, with its task and configuration.

    Args:
      out_dir: the `--out` of an `experiments.dcf` run.
      seed: one of the run's seeds; by default the first.
    """
    config = load_config(out_dir)
    model = load_model(out_dir, make_problem(config), config.seeds, seed)
    return model, task_named(config.task), config
