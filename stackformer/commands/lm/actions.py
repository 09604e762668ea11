"""What `experiments.lm` does: train, measure, tune, sample, export, time."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from stackformer.commands import cli, paper_results
from stackformer.commands.flags import RunFlags
from stackformer.data.corpus import Corpus
from stackformer.data.tokenization import load_tokenizer
from stackformer.models.huggingface.pretrained import Weights, save_pretrained
from stackformer.problems.lm import problem as lm
from stackformer.problems.lm.config import LEARNING_RATES, LMConfig
from stackformer.training.checkpoints import stamp
from stackformer.training.errors import UserError
from stackformer.training.loading import load_parameters
from stackformer.training.memory import check_parameters
from stackformer.training.problem import Problem
from stackformer.training.records import RunFolder
from stackformer.training.state import create_state, parameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What every training and measurement needs."""

    flags: RunFlags
    corpus: Corpus
    weights: Weights | None

    def problem(self, config: LMConfig) -> Problem:
        """What is trained and measured."""
        problem = lm.make_problem(
            config, self.corpus.chunks, self.weights, self.corpus.segment_ids
        )
        check_parameters(problem, len(config.seeds))
        return problem

    def folder(self, config: LMConfig, path: Path) -> RunFolder:
        """Where it is recorded."""
        return RunFolder(path, config.to_json(), command=self.flags.command)

    def train(self, config: LMConfig, problem: Problem, folder: RunFolder) -> Any:
        """Trains, or goes on."""
        if folder.primary:
            self.corpus.tokenizer.save(str(folder.path / "tokenizer.json"))
        options = self.flags.training()
        return lm.train(config, problem, folder, self.flags.placement, **options)


def train_and_measure(config: LMConfig, run: Run, *, tune: bool) -> dict[str, Any]:
    """Trains, measures the best parameters, writes results.json and returns it."""
    more = {}
    if tune:
        config, more["tune_lr"] = tune_learning_rate(config, run)
    problem = run.problem(config)
    with run.folder(config, run.flags.out) as folder:
        state = run.train(config, problem, folder)
        runs = lm.evaluate(config, problem, parameters(state), run.flags.placement)
        for entry, step in zip(runs, np.asarray(state.best.step), strict=True):
            entry["best_step"] = int(step)
        epoch = lm.steps_per_epoch(config, run.corpus.chunks)
        results = lm.summarize(
            config,
            runs,
            steps=int(state.step),
            epochs=int(state.step) / epoch,
            seconds=folder.seconds(),
            fingerprint=stamp(folder.config, int(state.step), parameters(state)),
            **more,
        )
        folder.write("results.json", results)
    return results


def tune_learning_rate(config: LMConfig, run: Run) -> tuple[LMConfig, dict[str, float]]:
    """The rate of the paper's grid with the lowest validation loss, first seed.

    Each rate is a run of its own in OUT/tune_lr, so that tuning can be interrupted.
    """
    perplexities = {}
    for rate in LEARNING_RATES:
        trial = dataclasses.replace(config, learning_rate=rate, seeds=config.seeds[:1])
        with run.folder(trial, run.flags.out / "tune_lr" / f"{rate:g}") as folder:
            state = run.train(trial, run.problem(trial), folder)
        perplexities[rate] = float(np.exp(np.asarray(state.best.score)[0]))
        print(f"lr {rate:g}: validation perplexity {perplexities[rate]:.2f}")
    best = min(perplexities, key=perplexities.__getitem__)
    print(f"lr {best:g} is the best")
    return (
        dataclasses.replace(config, learning_rate=best),
        {f"{rate:g}": value for rate, value in perplexities.items()},
    )


def measure(config: LMConfig, run: Run, *, saved: bool) -> dict[str, Any]:
    """Perplexities without training: of a saved run, or of the first weights."""
    problem, placement = run.problem(config), run.flags.placement
    if saved:
        params, step = load_parameters(run.flags.out, problem, config.seeds, placement)
    else:
        plain = dataclasses.replace(
            problem, optimizer=optax.identity(), validation=None
        )
        params, step = create_state(plain, config.seeds, placement).params, 0
    with run.folder(config, run.flags.out) as folder:
        runs = lm.evaluate(config, problem, params, placement)
        mark = stamp(folder.config, step, params)
        results = lm.summarize(config, runs, steps=step, fingerprint=mark)
        folder.write("results.json", results)
    return results


def save_chunks(corpus: Corpus, out: Path) -> None:
    """Writes the tokens that perplexities are measured on."""
    cli.folder("--out", out)
    arrays = lm.with_segments(corpus.chunks, corpus.segment_ids)
    measured: dict[str, Any] = {
        name: x for name, x in arrays.items() if not name.startswith("train")
    }
    np.savez_compressed(out / "chunks.npz", **measured)


def report(results: dict[str, Any], out: Path) -> str:
    """The result beside the paper's, as text."""
    tokens = results["tokens"]
    lines = [
        f"{results['task']}, {results['dataset']}, {results['size']}, "
        f"{'stack' if results['stack'] else 'vanilla'}: perplexity over chunks of 128 "
        f"tokens, {_count(results['runs'])}, {results['steps']:,} steps"
    ]
    for split in ("valid", "test"):
        mean = results[f"perplexity_{split}"]
        std = results[f"perplexity_{split}_std"]
        deviation = f" ± {std:.2f}" if len(results["runs"]) > 1 else ""
        lines.append(
            f"  {split:5}  {mean:.2f}{deviation}   ({tokens[split]:,} predictions)"
        )
    start = "pretrained" if results["pretrained"] else "scratch"
    key = (start, results["task"], results["dataset"], results["stack"])
    cell = paper_results.TABLE_3[key]
    same = results["size"] in ("base", "pretrained")
    lines.append(
        f"  paper  {cell.mean:.2f} ± {cell.std:.2f}   (test, {start}, "
        f"{'base size' if same else 'base size: not comparable with this size'})"
    )
    lines.append(f"in {out}: results.json")
    return "\n".join(lines)


def _count(runs: list) -> str:
    return f"{len(runs)} seeds" if len(runs) > 1 else "one seed: no deviation"


def sample(
    out: Path,
    prompt: str,
    *,
    num_tokens: int,
    temperature: float,
    seed: int | None = None,
) -> str:
    """Continues a prompt with the run in `out`, using the cache and the stack state."""
    config = lm.load_config(out)
    if config.task != "alm":
        raise UserError(
            f"--sample needs a run of --task=alm, but {out} is of {config.task}: "
            "a masked language model does not write from left to right"
        )
    tokenizer = load_tokenizer(out)
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    if not ids:
        raise UserError("--prompt must have some text, such as --prompt='The cat'")
    longest = config.model["max_length"]
    if len(ids) + num_tokens > longest:
        raise UserError(
            f"the prompt has {len(ids)} tokens and --num_tokens is {num_tokens}, but "
            f"the model has {longest} positions; ask for fewer"
        )
    if temperature < 0:
        raise UserError(f"--temperature must not be negative, got {temperature}")
    from stackformer.models.generate import generate

    model = lm.load_model(out, seed)
    new, _ = generate(
        model,
        np.asarray([ids], np.int32),
        np.asarray([len(ids)], np.int32),
        num_tokens,
        key=jax.random.key(0 if seed is None else seed),
        temperature=temperature,
    )
    return tokenizer.decode([*ids, *np.asarray(new)[0].tolist()])


def export(out: Path, folder: Path, seed: int | None = None) -> None:
    """Writes the run in `out` as a Hugging Face folder."""
    model = lm.load_model(out, seed)
    save_pretrained(model, cli.folder("--export", folder), load_tokenizer(out))
