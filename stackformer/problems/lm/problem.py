"""Language modeling on chunks of text, as a `Problem` for the engine.

Perplexity is exp(sum of token losses / number of predicted tokens) over chunks of 128
tokens. ALM predicts tokens 2..128 of every chunk from those before them in the chunk;
MLM predicts the hidden tokens, with masks that depend on the chunk's number alone.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from stackformer.data.chunks import evaluation_rows, training_rows
from stackformer.data.masking import mask_rows, mask_tokens
from stackformer.models.huggingface.pretrained import Weights, with_weights
from stackformer.models.language.gpt2 import GPT2
from stackformer.models.language.roberta import Roberta
from stackformer.problems.lm.config import LMConfig, model_types
from stackformer.training import loading, loop
from stackformer.training.errors import UserError
from stackformer.training.evaluation import make_measure
from stackformer.training.loop import TrainOptions
from stackformer.training.mesh import Placement
from stackformer.training.problem import Measure, Problem, Validation
from stackformer.training.records import RunFolder, read_json
from stackformer.training.state import TrainState

Array = jax.Array
PyTree = Any
Chunks = dict[str, np.ndarray]

_EVALUATION_SEED = 0


def make_problem(
    config: LMConfig,
    chunks: Chunks | None = None,
    weights: Weights | None = None,
    segment_ids: Chunks | None = None,
) -> Problem:
    """The engine's view of a configuration: model, batches, loss, optimizer.

    Args:
      config: the run.
      chunks: {"train": (C, T), "valid": ..., "test": ...}; None where nothing is
        trained and only the shape of the state matters.
      weights: first weights, from `models.huggingface.pretrained.read_weights`.
      segment_ids: of packed chunks, as `data.chunks.pack` gives them.
    """
    data = () if chunks is None else with_segments(chunks, segment_ids or {})
    model_type, _ = model_types(config.task)
    model_config = config.model_config()

    def init(key: Array) -> nnx.Module:
        model = model_type(model_config, rngs=nnx.Rngs(key))
        return model if weights is None else with_weights(model, weights)

    def batch(
        data: PyTree, key: Array, step: Array, bucket: Any, progress: PyTree
    ) -> dict[str, Array]:
        order_key, mask_key = jax.random.split(key)
        rows = training_rows(
            order_key,
            step,
            num_chunks=data["train"].shape[0],
            batch_size=config.batch_size,
        )
        mask_key = jax.random.fold_in(mask_key, step)
        return framed(config, read(data, "train", rows), mask_key, None)

    def loss(
        model: nnx.Module, batch: dict[str, Array], rngs: nnx.Rngs, progress: PyTree
    ) -> tuple[Array, dict[str, Array]]:
        total, count = token_losses(model, batch, rngs=rngs)
        return total / jnp.maximum(count, 1), {}

    validation = None
    if chunks is not None:
        steps = steps_per_epoch(config, chunks)
        validation = Validation(
            every=config.validate_every or steps,
            measure=split_measure(config, chunks, "valid"),
            score=lambda sums: sums["loss"] / sums["tokens"],
            patience=config.patience,
        )
    else:
        # The state of a run has the best parameters in it.
        empty = Measure(batch=_nothing, count=_nothing, num_batches=1)
        validation = Validation(every=1, measure=empty, score=_nothing)
    return Problem(
        init=init,
        batch=batch,
        loss=loss,
        optimizer=optax.chain(
            optax.clip_by_global_norm(config.clip_norm),
            optax.adam(config.learning_rate),
        ),
        data=data,
        validation=validation,
        jit_init=weights is None,
    )


def with_segments(chunks: Chunks, segment_ids: Chunks) -> Chunks:
    """Chunks by split, and their segment ids under "SPLIT_segments" if there are any.

    Example:
      >>> list(with_segments({"test": np.zeros(2)}, {"test": np.ones(2)}))
      ['test', 'test_segments']
    """
    return {**chunks, **{f"{name}_segments": x for name, x in segment_ids.items()}}


def read(data: PyTree, split: str, rows: Array) -> dict[str, Array]:
    """Chunks by their numbers: tokens (B, T), and with packing segment_ids."""
    result = {"tokens": data[split][rows]}
    if f"{split}_segments" in data:
        result["segment_ids"] = data[f"{split}_segments"][rows]
    return result


def framed(
    config: LMConfig, chunks: dict[str, Array], key: Array, rows: Array | None
) -> dict[str, Array]:
    """What the model reads, what it predicts and where, (B, T) each.

    With `rows` the masks of MLM depend on the chunks' numbers, else on the key alone.
    """
    tokens, ids = chunks["tokens"], chunks.get("segment_ids")
    if config.task == "alm":
        targets = jnp.roll(tokens, -1, axis=1)
        where = jnp.arange(tokens.shape[1]) < tokens.shape[1] - 1
        where = jnp.broadcast_to(where[None], tokens.shape)
        if ids is not None:  # nothing is predicted across the end of a string
            where = where & (ids > 0) & (ids == jnp.roll(ids, -1, axis=1))
        return {**chunks, "targets": targets, "where": where}
    options: dict[str, Any] = dict(
        mask_id=config.special_ids["<mask>"],
        vocab_size=config.model["vocab_size"],
        special_ids=tuple(
            config.special_ids[text] for text in ("<s>", "<pad>", "</s>")
        ),
        rate=config.mask_rate,
    )
    if rows is None:
        fed, where = mask_tokens(key, tokens, **options)
    else:
        fed, where = mask_rows(key, rows, tokens, **options)
    if ids is not None:
        where = where & (ids > 0)
    return {**chunks, "tokens": fed, "targets": tokens, "where": where}


def token_losses(
    model: Any, batch: dict[str, Array], *, rngs: nnx.Rngs | None = None
) -> tuple[Array, Array]:
    """The sum of the losses where tokens are predicted, and how many these are."""
    ids = batch.get("segment_ids")
    mask = None if ids is None else ids > 0
    logits = model(batch["tokens"], mask=mask, segment_ids=ids, rngs=rngs)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
    where = batch["where"]
    return jnp.where(where, losses, 0.0).sum(), where.sum(dtype=jnp.int32)


def split_measure(config: LMConfig, chunks: Chunks, split: str) -> Measure:
    """Sums of losses and of predicted tokens over all chunks of a split."""
    count = len(chunks[split])
    # A multiple of the training batch, so that the same mesh divides it.
    size = config.batch_size * max(1, 16 // config.batch_size)

    def batch(data: PyTree, index: Array) -> dict[str, Array]:
        rows, real = evaluation_rows(index, num_chunks=count, batch_size=size)
        key = jax.random.key(_EVALUATION_SEED)
        result = framed(config, read(data, split, rows), key, rows)
        return {**result, "where": result["where"] & real[:, None]}

    def sums(model: nnx.Module, batch: dict[str, Array]) -> dict[str, Array]:
        total, tokens = token_losses(model, batch)
        return {"loss": total, "tokens": tokens}

    return Measure(batch=batch, count=sums, num_batches=-(-count // size))


def steps_per_epoch(config: LMConfig, chunks: Chunks) -> int:
    """Steps that go once through the training chunks."""
    count = len(chunks["train"])
    if count < config.batch_size:
        raise UserError(
            f"`batch_size` should be at most the {count} chunks of the training text, "
            f"but got {config.batch_size}"
        )
    return count // config.batch_size


def train(
    config: LMConfig,
    problem: Problem,
    folder: RunFolder,
    placement: Placement,
    *,
    checkpoint_every: int | None = None,
    keep: int = 2,
    progress: bool = True,
) -> TrainState:
    """Trains until the validation loss stops to improve, or the budget ends."""
    epoch = steps_per_epoch(config, problem.data)
    steps = config.epochs * epoch
    steps = steps if config.steps is None else min(steps, config.steps)
    options = TrainOptions(
        steps=steps,
        seeds=config.seeds,
        steps_per_dispatch=config.steps_per_dispatch,
        checkpoint_every=checkpoint_every or min(epoch, 500),
        keep=keep,
        progress=progress,
    )
    return loop.train(problem, options, folder=folder, placement=placement)


def evaluate(
    config: LMConfig, problem: Problem, params: PyTree, placement: Placement
) -> list[dict[str, Any]]:
    """Perplexities of the validation and the test chunks, one entry a seed."""
    chunks = {
        name: x for name, x in problem.data.items() if not name.startswith("train")
    }
    data = jax.device_put(chunks, placement.replicated)
    runs: list[dict[str, Any]] = [{"seed": seed} for seed in config.seeds]
    for split in ("valid", "test"):
        measure = split_measure(config, chunks, split)
        program = make_measure(measure, problem.graph, placement)
        sums = jax.tree.map(np.asarray, program(params, data))
        for run, loss, tokens in zip(runs, sums["loss"], sums["tokens"], strict=True):
            run[f"perplexity_{split}"] = float(np.exp(np.float64(loss) / tokens))
            run[f"tokens_{split}"] = int(tokens)
    return runs


def summarize(config: LMConfig, runs: list[dict[str, Any]], **more: Any) -> dict:
    """The content of results.json; `std` is the sample deviation over seeds."""
    results = {
        name: getattr(config, name)
        for name in ("task", "dataset", "size", "pretrained", "learning_rate")
    }
    results["stack"] = config.model["stack"] is not None
    for split in ("valid", "test"):
        values = [run[f"perplexity_{split}"] for run in runs]
        results[f"perplexity_{split}"] = float(np.mean(values))
        results[f"perplexity_{split}_std"] = (
            float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        )
    results["tokens"] = {
        split: runs[0][f"tokens_{split}"] for split in ("valid", "test")
    }
    return {**results, **more, "runs": runs}


def load_config(out_dir: Path | str) -> LMConfig:
    """The configuration of a run from its folder."""
    return LMConfig.from_json(read_json(Path(out_dir) / "config.json"))


def load_model(out_dir: Path | str, seed: int | None = None) -> GPT2 | Roberta:
    """A trained GPT-2 or RoBERTa from a run's folder, by default of its first seed."""
    config = load_config(out_dir)
    model = loading.load_model(out_dir, make_problem(config), config.seeds, seed)
    assert isinstance(model, GPT2 | Roberta)
    return model


def _nothing(*_: Any) -> Any:
    return {}
