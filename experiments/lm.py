"""Train GPT-2 or RoBERTa, with or without stacks, on WikiText-2 or Penn Treebank.

    python -m experiments.lm --task=alm --dataset=wikitext2 --data_dir=DIR --size=small

leaves config.json, tokenizer.json, metrics.jsonl, checkpoints/ and results.json in its
--out folder; the same command goes on where it stopped. Perplexity is over chunks of
128 tokens, see `stackformer.training.lm`. The engine is `stackformer.training`.
"""

import argparse
import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any

from experiments import cli
from experiments.lm_flags import VOCAB_SIZES, make_parser
from stackformer.training.errors import Interrupted, UserError


def model_overrides(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of the model's configuration that flags set."""
    overrides: dict[str, Any] = {"stack": not args.nostack, "remat": args.remat}
    if not args.nostack:
        overrides["stack_gate"] = 0.0 if args.stack_init == "gated" else None
        overrides["stack_layers"] = args.stack_layers
    for name in ("dtype", "dropout"):
        if getattr(args, name) is not None:
            overrides[name] = getattr(args, name)
    return overrides


def make_model_config(args: argparse.Namespace, vocab_size: int, **more: Any) -> dict:
    """All fields of the model's configuration."""
    from stackformer.models.hf_config import read_config
    from stackformer.training.lm_config import model_types

    overrides = model_overrides(args)
    _, config_type = model_types(args.task)
    if args.pretrained:
        config = read_config(args.pretrained, **overrides)
        if not isinstance(config, config_type):
            raise UserError(
                f"--task={args.task} needs a {config_type.__name__[:-6]} model, but "
                f"--pretrained={args.pretrained} has another kind"
            )
        if vocab_size > config.vocab_size:
            raise UserError(
                f"the tokenizer has {vocab_size} tokens, but --pretrained has "
                f"{config.vocab_size}; leave --tokenizer out, or give the right one"
            )
    else:
        size = args.size or "small"
        overrides |= {"vocab_size": vocab_size, **more}
        if size != "base":
            overrides["max_length"] = 128
        config = config_type.of_size(size, **overrides)
    return dataclasses.asdict(config)


def make_config(args: argparse.Namespace, corpus: Any) -> Any:
    """The configuration of a run: defaults of the size, then flags."""
    from stackformer.data.tokenization import tokenizer_fingerprint
    from stackformer.training.lm_config import LMConfig, size_values

    size = "pretrained" if args.pretrained else args.size or "small"
    names = "batch_size epochs patience steps validate_every seeds"
    given = {name: getattr(args, name) for name in names.split()}
    given["learning_rate"] = args.lr
    special = corpus.special_ids
    pad = {"pad_id": special["<pad>"]} if special else {}
    return LMConfig(
        task=args.task,
        dataset=args.dataset,
        size=size,
        model=make_model_config(args, corpus.tokenizer.get_vocab_size(), **pad),
        pretrained=str(Path(args.pretrained).resolve()) if args.pretrained else None,
        text=corpus.text,
        tokenizer=tokenizer_fingerprint(corpus.tokenizer),
        special_ids=special,
        **{
            **size_values(size, pretrained=bool(args.pretrained)),
            **{name: value for name, value in given.items() if value is not None},
        },
    )


def make_corpus(args: argparse.Namespace, tokenizer_dir: str | None = None) -> Any:
    """The tokenised text that the flags name."""
    from stackformer.data.corpus import load_corpus

    for name in ("task", "dataset", "data_dir"):
        if getattr(args, name) is None:
            raise UserError(f"--{name} is required; see --help")
    return load_corpus(
        args.dataset,
        args.data_dir,
        masked=args.task == "mlm",
        tokenizer_dir=tokenizer_dir or args.tokenizer or args.pretrained,
        vocab_size=args.vocab_size or VOCAB_SIZES[args.size or "small"],
        cache_dir=args.cache_dir,
    )


def default_out(args: argparse.Namespace) -> Path:
    """A folder named after what is trained: other flags, another folder."""
    parts = [args.task, args.dataset]
    parts.append(
        Path(args.pretrained).name if args.pretrained else args.size or "small"
    )
    parts.append("nostack" if args.nostack else f"stack_{args.stack_init}")
    names = (
        "stack_layers vocab_size lr batch_size epochs patience steps validate_every "
        "seeds dtype dropout"
    )
    for name in names.split():
        value = getattr(args, name)
        if isinstance(value, tuple):
            value = "_".join(map(str, value))
        if value is not None:
            parts.append(f"{name}{value}")
    parts += [name for name in ("remat", "tune_lr", "eval_only") if getattr(args, name)]
    return Path("runs") / "lm" / "-".join(parts)


def run(args: argparse.Namespace, command: str) -> None:
    """Trains or measures, and prints the result."""
    import jax

    from experiments import lm_commands
    from stackformer.models.pretrained import read_weights
    from stackformer.training import Placement, lm, parse_mesh

    saved = args.eval_only and not args.pretrained
    if saved and not args.out:
        raise UserError(
            "--eval_only needs --pretrained=DIR, or --out=RUN for a trained run"
        )
    try:
        if saved:
            config = lm.load_config(args.out)
            args.task, args.dataset = config.task, config.dataset
            corpus = make_corpus(args, tokenizer_dir=args.out)
            if corpus.text != config.text:
                raise UserError(
                    f"--data_dir={args.data_dir} has another text than the one that "
                    f"the run in {args.out} was trained on"
                )
        else:
            corpus = make_corpus(args)
            config = make_config(args, corpus)
        weights = None
        if args.pretrained:
            weights = read_weights(args.pretrained, config.model_config())
    except (ValueError, ImportError) as error:
        raise error if isinstance(error, UserError) else UserError(error) from None
    out = Path(args.out) if args.out else default_out(args)
    placement = Placement.create(
        parse_mesh(args.mesh, jax.device_count(), config.batch_size)
    )
    context = lm_commands.Run(
        corpus=corpus,
        placement=placement,
        weights=weights,
        command=command,
        checkpoint_every=args.checkpoint_every,
        keep=args.keep,
        progress=not args.no_progress and jax.process_index() == 0,
    )
    if args.save_chunks:
        lm_commands.save_chunks(corpus, out)
    try:
        if args.eval_only:
            results = lm_commands.evaluate(config, out, context, saved=saved)
        else:
            results = lm_commands.train(config, out, context, tune=args.tune_lr)
    except Interrupted as stop:
        print(f"\nStopped at step {stop.step:,}; everything is saved in {out}.")
        print(f"To go on: {command}")
        return
    print(lm_commands.report(results, out))


def time_step(args: argparse.Namespace) -> None:
    """Prints, and writes to --out if given, what one step takes."""
    from stackformer.training.lm_config import LMConfig
    from stackformer.training.lm_timing import time_step
    from stackformer.training.records import write_json

    if args.task is None:
        raise UserError("--task is required; see --help")
    size = args.size or "small"
    vocab_size = args.vocab_size or VOCAB_SIZES[size]
    special = dict(
        zip(("<s>", "<pad>", "</s>", "<unk>", "<mask>"), range(5), strict=True)
    )
    config = LMConfig(
        task=args.task,
        dataset=args.dataset or "wikitext2",
        size=size,
        model=make_model_config(args, vocab_size),
        special_ids=special,
        batch_size=args.batch_size or 1,
    )
    results = time_step(config)
    for name in ("vanilla", "stack"):
        entry = results[name]
        print(
            f"{args.task}, {size}, {name}: {entry['parameters']:,} parameters, "
            f"{entry['seconds']:.3f} s a step of {config.batch_size} x 128 tokens, "
            f"at most {entry['peak_gib']:.2f} GiB resident"
        )
    print(f"share of the stacks in a step's time: {results['stack_share']:.1%}")
    if args.out:
        Path(args.out).mkdir(parents=True, exist_ok=True)
        write_json(Path(args.out) / "time_step.json", results)


def main() -> int:
    """The command."""
    args = make_parser().parse_args()
    command = shlex.join(["python", "-m", "experiments.lm", *sys.argv[1:]])
    if args.tune_lr and args.lr:
        raise UserError("--lr and --tune_lr exclude each other; give one of them")
    if args.time_step:
        time_step(args)
    elif args.sample or args.export:
        from experiments import lm_commands

        if not args.out:
            raise UserError("--sample and --export need --out, the folder of a run")
        if args.export:
            lm_commands.export(Path(args.out), Path(args.export), args.seed)
            print(f"written to {args.export}")
        if args.sample:
            text = lm_commands.sample(
                Path(args.out),
                args.prompt,
                num_tokens=args.num_tokens,
                temperature=args.temperature,
                seed=args.seed,
            )
            print(text)
    else:
        run(args, command)
    return 0


if __name__ == "__main__":
    cli.run(main)
