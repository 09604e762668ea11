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
from stackformer.models.pretrained import Weights, with_weights
from stackformer.training import loading, loop
from stackformer.training.errors import UserError
from stackformer.training.evaluation import make_measure
from stackformer.training.lm_config import LMConfig, model_types
from stackformer.training.loop import TrainOptions
from stackformer.training.mesh import Placement
from stackformer.training.problem import Measure, Problem, Validation
from stackformer.training.records import RunFolder, read_json
from stackformer.training.state import TrainState, graph_of

Array = jax.Array
PyTree = Any
Chunks = dict[str, np.ndarray]

_EVALUATION_SEED = 0


def make_problem(
    config: LMConfig, chunks: Chunks | None = None, weights: Weights | None = None
) -> Problem:
    """The engine's view of a configuration: model, batches, loss, optimizer.

    Args:
      config: the run.
      chunks: {"train": (C, T), "valid": ..., "test": ...}; None where nothing is
        trained and only the shape of the state matters.
      weights: first weights, from `stackformer.models.pretrained.read_weights`.
    """
    model_type, _ = model_types(config.task)
    model_config = config.model_config()

    def init(key: Array) -> nnx.Module:
        model = model_type(model_config, rngs=nnx.Rngs(key))
        return model if weights is None else with_weights(model, weights)

    def batch(data: PyTree, key: Array, step: Array, bucket: Any) -> dict[str, Array]:
        order_key, mask_key = jax.random.split(key)
        rows = training_rows(
            order_key,
            step,
            num_chunks=data["train"].shape[0],
            batch_size=config.batch_size,
        )
        return framed(
            config, data["train"][rows], jax.random.fold_in(mask_key, step), None
        )

    def loss(
        model: nnx.Module, batch: dict[str, Array], rngs: nnx.Rngs
    ) -> tuple[Array, dict[str, Array]]:
        total, count = token_losses(model(batch["tokens"], rngs=rngs), batch)
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
        data=chunks if chunks is not None else (),
        validation=validation,
        jit_init=weights is None,
    )


def framed(
    config: LMConfig, tokens: Array, key: Array, rows: Array | None
) -> dict[str, Array]:
    """What the model reads, what it predicts and where, (B, T) each.

    With `rows` the masks of MLM depend on the chunks' numbers, else on the key alone.
    """
    if config.task == "alm":
        targets = jnp.roll(tokens, -1, axis=1)
        where = jnp.arange(tokens.shape[1]) < tokens.shape[1] - 1
        where = jnp.broadcast_to(where[None], tokens.shape)
        return {"tokens": tokens, "targets": targets, "where": where}
    options = dict(
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
    return {"tokens": fed, "targets": tokens, "where": where}


def token_losses(logits: Array, batch: dict[str, Array]) -> tuple[Array, Array]:
    """The sum of the losses where tokens are predicted, and how many these are."""
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
        result = framed(config, data[split][rows], key, rows)
        return {**result, "where": result["where"] & real[:, None]}

    def sums(model: nnx.Module, batch: dict[str, Array]) -> dict[str, Array]:
        total, tokens = token_losses(model(batch["tokens"]), batch)
        return {"loss": total, "tokens": tokens}

    return Measure(batch=batch, count=sums, num_batches=-(-count // size))


def steps_per_epoch(config: LMConfig, chunks: Chunks) -> int:
    """Steps that go once through the training chunks."""
    count = len(chunks["train"])
    if count < config.batch_size:
        raise UserError(
            f"--batch_size={config.batch_size} is more than the {count} chunks of the "
            "training text; choose a smaller one"
        )
    return count // config.batch_size


def train(
    config: LMConfig,
    chunks: Chunks,
    folder: RunFolder,
    placement: Placement,
    *,
    weights: Weights | None = None,
    checkpoint_every: int | None = None,
    keep: int = 2,
    progress: bool = True,
) -> TrainState:
    """Trains until the validation loss stops to improve, or the budget ends."""
    epoch = steps_per_epoch(config, chunks)
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
    problem = make_problem(config, chunks, weights)
    return loop.train(problem, options, folder=folder, placement=placement)


def evaluate(
    config: LMConfig, chunks: Chunks, params: PyTree, placement: Placement
) -> list[dict[str, Any]]:
    """Perplexities of the validation and the test chunks, one entry a seed."""
    problem = make_problem(config, chunks)
    graph = graph_of(problem)
    data = jax.device_put(
        {split: chunks[split] for split in ("valid", "test")}, placement.replicated
    )
    runs = [{"seed": seed} for seed in config.seeds]
    for split in ("valid", "test"):
        measure = make_measure(split_measure(config, chunks, split), graph, placement)
        sums = jax.tree.map(np.asarray, measure(params, data))
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
    results["stack"] = config.model["stack"]
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


def load_parameters(
    out_dir: Path | str, config: LMConfig, placement: Placement
) -> tuple[PyTree, int]:
    """The best parameters of all seeds, and the steps that were trained."""
    return loading.load_parameters(
        out_dir, make_problem(config), config.seeds, placement
    )


def load_model(out_dir: Path | str, seed: int | None = None) -> nnx.Module:
    """A trained GPT-2 or RoBERTa from a run's folder, by default of its first seed."""
    config = load_config(out_dir)
    return loading.load_model(out_dir, make_problem(config), config.seeds, seed)


def _nothing(*_: Any) -> dict:
    return {}
