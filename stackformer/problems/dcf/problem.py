"""Length generalization on formal-language tasks, as a `Problem` for the engine."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from stackformer import models, tasks
from stackformer.models.config import BlocksConfig
from stackformer.nn.stacks import STACKS
from stackformer.problems.dcf.config import OF_EVALUATION, DCFConfig, task_named
from stackformer.problems.dcf.evaluation import (
    LengthEvaluation,
    check_test_set,
    results_name,
    summarize,
)
from stackformer.problems.dcf.lengths import Reached
from stackformer.problems.dcf.memory import check_memory
from stackformer.problems.dcf.phases import Phase, action_metrics
from stackformer.problems.dcf.strings import Strings
from stackformer.training import loop
from stackformer.training.checkpoints import stamp
from stackformer.training.errors import UserError
from stackformer.training.loading import load_parameters
from stackformer.training.loop import TrainOptions
from stackformer.training.memory import check_parameters
from stackformer.training.mesh import Placement
from stackformer.training.problem import Problem
from stackformer.training.records import RunFolder, read_json
from stackformer.training.state import parameters

Array = jax.Array
PyTree = Any
# Folded into a step's key to draw the strings of the balance term.
_STRINGS = 2
# Fields that say something of actions, and what they are in a model without.
_OF_ACTIONS = (("phases", "soft"), ("balance", 0.0))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a seed has come: its phase, and its lengths in the curriculum."""

    phase: Phase
    reached: Reached | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """What a step is trained on.

    Attributes:
      framed: strings of one length with their answers; None in a step that learns
        the actions alone.
      at: the positions of their answers, where the others are left out.
      lengths: those of its G groups, or 0.
      strings: strings of many lengths for the balance term, without answers; None
        where there is no such term.
      step: the step's number.
    """

    framed: tasks.Framed | None
    at: Array | None
    lengths: Array
    strings: Strings | None
    step: Array


def make_problem(config: DCFConfig) -> Problem:
    """The engine's view of a configuration: model, batches, loss, optimizer.

    Raises:
      UserError: the model cannot be built with these settings.
    """
    task = task_named(config.task)
    curriculum = config.lengths()
    # The first steps learn the actions alone: a bucket without answers.
    groups = config.lengths_per_step
    alone = (None,) if config.balance and config.balance_steps else ()

    # Layers that are alike are compiled once.
    scanned = issubclass(models.MODELS[config.model].config, BlocksConfig)
    faster = {"scan_layers": True} if scanned else {}

    def init(key: Array) -> nnx.Module:
        return models.build(
            config.model,
            task,
            faster | config.model_config,
            mode=config.mode,
            positions=config.pos,
            stack=config.stack,
            rngs=nnx.Rngs(key),
        )

    def batch(
        data: PyTree, key: Array, step: Array, bucket: int | None, progress: Progress
    ) -> Batch:
        key = jax.random.fold_in(key, step)
        length_key, string_key = jax.random.split(key)
        strings = None
        if config.balance:
            strings_key = jax.random.fold_in(key, _STRINGS)
            strings = Strings.draw(task, config, strings_key)
        if bucket is None:
            return Batch(None, None, jnp.zeros(groups, jnp.int32), strings, step)
        lengths = curriculum.draw(length_key, step, bucket, progress.reached)
        keys = [string_key, *jax.random.split(string_key, groups - 1)]
        parts = []
        for key, length in zip(keys, lengths, strict=True):
            sample = task.sample(key, config.batch_size // groups, length, bucket)
            framed = tasks.frame(task, sample, config.mode)
            parts.append((framed, answer_positions(sample)))
        framed, at = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
        # Where it can, a stack computes what is asked for alone.
        at = at if config.stack and STACKS[config.stack].reads_at else None
        return Batch(framed, at, lengths, strings, step)

    def loss(
        model: Any, batch: Batch, rngs: nnx.Rngs, progress: Progress
    ) -> tuple[Array, dict[str, Array]]:
        value, metrics = jnp.float32(0.0), {"accuracy": jnp.float32(0.0)}
        # For `advance` alone: not in the records.
        metrics |= {"_lengths": batch.lengths, "_right": jnp.zeros(groups)}
        strings, framed = batch.strings, batch.framed
        if strings is not None:
            _, aux = model(strings.tokens, mask=strings.mask, return_aux="actions")
            done = batch.step / max(1, config.balance_steps)
            metrics |= action_metrics(aux, strings.mask)
            metrics["balance"] = strings.balance(aux, done)
            value += config.balance * metrics["balance"]
        if framed is not None:
            targets, target_mask, options = framed.targets, framed.target_mask, {}
            if batch.at is not None:
                targets, target_mask = (
                    jnp.take_along_axis(x, batch.at, axis=1)
                    for x in (targets, target_mask)
                )
                options["at"] = batch.at
            logits, aux = model(
                framed.tokens,
                mask=framed.mask,
                rngs=rngs,
                hard=progress.phase.is_hard(config),
                return_aux="actions",
                **options,
            )
            answers, right = masked_loss(logits, targets, target_mask)
            metrics |= right | action_metrics(aux, framed.mask)
            by_group = [
                masked_loss(*part)[1]["accuracy"]
                for part in zip(
                    *(jnp.split(x, groups) for x in (logits, targets, target_mask)),
                    strict=True,
                )
            ]
            metrics["_right"] = jnp.stack(by_group)
            value += answers
            if "entropy" in metrics:
                value += progress.phase.loss(config, metrics["entropy"])
        return value, {**metrics, "length": jnp.mean(batch.lengths.astype(jnp.float32))}

    def choose_bucket(step: Array, progress: Progress) -> Array:
        index = curriculum.choose_bucket(step, progress.reached)
        return jnp.where(step < config.balance_steps, 0, index + 1) if alone else index

    def advance(progress: Progress, metrics: dict[str, Array], step: Array) -> Progress:
        accuracy = metrics["accuracy"]
        entropy = metrics.get("entropy", jnp.zeros(()))
        return Progress(
            progress.phase.after(config, accuracy, entropy),
            curriculum.advance(
                progress.reached, metrics["_lengths"], metrics["_right"]
            ),
        )

    problem = Problem(
        init=init,
        batch=batch,
        loss=loss,
        optimizer=optax.chain(
            optax.clip_by_global_norm(config.clip_norm),
            optimizer(config),
        ),
        buckets=(*alone, *curriculum.buckets()),
        choose_bucket=choose_bucket,
        progress=Progress(Phase.first(), curriculum.progress()),
        advance=advance,
    )
    try:
        check_parameters(problem, len(config.seeds))  # the model is built here first
    except ValueError as error:
        raise UserError(f"`model` {config.model}: {error}") from None
    wants = [name for name, off in _OF_ACTIONS if getattr(config, name) != off]
    stacks = config.stack is not None and config.model_config.get("stack_layers") != []
    if wants and not stacks and not has_actions(problem):
        raise UserError(
            f"`{wants[0]}` should be that of a model with actions, but got "
            f"{getattr(config, wants[0])} with `model` {config.model}, which has none"
        )
    return problem


def optimizer(config: DCFConfig) -> optax.GradientTransformation:
    """Adam, or AdamW where there is weight decay."""
    if config.weight_decay:
        return optax.adamw(
            learning_rate(config), b2=0.99, weight_decay=config.weight_decay
        )
    return optax.adam(learning_rate(config))


def learning_rate(config: DCFConfig) -> optax.ScalarOrSchedule:
    """Adam's learning rate: a number, or a function of the step."""
    rate = optax.constant_schedule(config.learning_rate)
    if config.schedule == "cooldown":
        cooldown = max(1, round(config.steps * config.cooldown))
        rate = optax.linear_schedule(
            config.learning_rate, 0.0, cooldown, config.steps - cooldown
        )
    rising = optax.linear_schedule(0.1, 1.0, max(1, config.warmup))
    first = config.balance_steps
    if not (config.warmup or first):
        return rate
    return lambda step: jnp.where(
        jnp.asarray(step) < first,
        config.balance_learning_rate,
        rate(step) * (rising(step - first) if config.warmup else 1.0),
    )


def answer_positions(sample: tasks.Sample) -> Array:
    """Where the answers of strings of one length are, with their padding: (B, M)."""
    batch, longest = sample.outputs.shape
    at = sample.length + 1 + jnp.arange(longest)
    return jnp.broadcast_to(at[None, :], (batch, longest))


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
    problem: Problem | None = None,
    train: bool = True,
    test_data: str | None = None,
    checkpoint_every: int | None = None,
    keep: int = 3,
    progress: bool = True,
) -> dict[str, Any]:
    """Trains (or loads), measures all lengths, writes the results and returns them.

    The evaluation that the run's own configuration asks for is results.json; another
    one, of other lengths or another number of strings, gets a file of its own, named
    by `results_name`, under "file". A finished run is not measured again, unless
    `train` is False.
    """
    check_memory(config)
    test_set = load_test_set(config, test_data)
    options = TrainOptions(
        steps=config.steps,
        seeds=config.seeds,
        steps_per_dispatch=config.steps_per_dispatch,
        checkpoint_every=checkpoint_every or min(1000, max(100, config.steps // 10)),
        keep=keep,
        progress=progress,
    )
    problem = problem or make_problem(config)
    if train:
        state = loop.train(problem, options, folder=folder, placement=placement)
        params, step = parameters(state), int(state.step)
    else:
        params, step = load_parameters(folder.path, problem, config.seeds, placement)
    strings = config.test_strings
    if test_set is not None:
        strings = check_test_set(test_set, config.test_length)
    saved = DCFConfig.from_json(folder.config)
    mark = stamp(folder.config, step, params, without=OF_EVALUATION)
    name = results_name(saved, config.test_length, strings)
    runs = _finished_runs(config, folder.path / name, mark, strings, test_data)
    if runs is None or not train:
        evaluation = LengthEvaluation(
            config,
            problem.graph,
            placement,
            test_set=test_set,
            with_hard=has_actions(problem),
        )
        runs = evaluation.run(params, step=step, progress=progress)
    results = summarize(
        config, runs, steps=step, seconds=folder.seconds(), test_strings=strings
    )
    results |= {"test_data": test_data, "fingerprint": mark}
    folder.write(name, results)
    return {**results, "file": name}


def _finished_runs(
    config: DCFConfig,
    path: Path,
    mark: dict[str, Any],
    strings: int,
    test_data: str | None,
) -> list[dict[str, Any]] | None:
    """Accuracies from a results file, if they are of this state and of all lengths.

    A file that is damaged, or of another configuration, step or parameters, is None:
    the run is measured again.
    """
    try:
        old = read_json(path)
    except UserError:
        return None
    names = ("fingerprint", "test_strings", "test_data")
    same = tuple(map(old.get, names)) == (mark, strings, test_data)
    if not same or old.get("test_length", 0) < config.test_length:
        return None
    lengths = [str(n) for n in range(1, config.test_length + 1)]
    return [
        {
            name: {n: run[name][n] for n in lengths}
            for name in ("per_length", "per_length_string", "per_length_hard")
            if name in run
        }
        for run in old["runs"]
    ]


def has_actions(problem: Problem) -> bool:
    """Whether the model moves a memory by actions, which can be made hard."""

    def logits(key: Array) -> Any:
        model: Any = problem.init(key)
        tokens = jnp.zeros((1, 2), jnp.int32)
        return model(tokens, return_aux="actions")[1].action_logits

    return bool(jax.tree.leaves(jax.eval_shape(logits, jax.random.key(0))))


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
        raise UserError(f"`test_data` {test_data}: {error}") from None
