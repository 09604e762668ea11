"""Train GPT-2 or RoBERTa, with or without stacks, on WikiText-2 or Penn Treebank.

    python -m experiments.lm --task=alm --dataset=wikitext2 --data_dir=DIR --size=small

leaves config.json, tokenizer.json, metrics.jsonl, checkpoints/ and results.json in its
--out folder; the same command goes on where it stopped. Perplexity is over chunks of
128 tokens, see `stackformer.problems.lm.problem`. The engine is `stackformer.training`.
"""

import argparse
import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stackformer.commands import cli, flags
from stackformer.commands.lm.flags import TRAINING, VOCAB_SIZES, make_parser
from stackformer.training.errors import UserError


def model_overrides(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of the model's configuration that flags set."""
    overrides: dict[str, Any] = {"stack": not args.nostack, "remat": args.remat}
    if not args.nostack:
        overrides["stack_gate"] = 0.0 if args.stack_init == "gated" else None
        overrides["stack_layers"] = args.stack_layers
    if args.dtype is not None:
        overrides["dtype"] = args.dtype
    if args.dropout is not None:
        for name in ("dropout", "embedding_dropout", "attention_dropout"):
            overrides[name] = args.dropout
    return overrides


@contextlib.contextmanager
def reading(folder: str) -> Iterator[None]:
    """Within, what is wrong with a Hugging Face folder is the user's to know about."""
    try:
        yield
    except (UserError, ImportError, MemoryError):
        raise
    except KeyError as error:
        raise UserError(
            f"--pretrained: config.json in {folder} should have the field "
            f"{error.args[0]}, but it is missing"
        ) from None
    except Exception as error:  # the types of damaged files are many
        hint = ""
        if not Path(folder).exists():
            hint = (
                " A name on the hub is not enough: download its folder, as with `hf "
                f"download openai-community/{Path(folder).name} --local-dir={folder}`"
            )
        message = cli.one_line(error)
        raise UserError(f"--pretrained={folder}: {message}{hint}") from None


def check_folders(args: argparse.Namespace) -> None:
    """What is wrong with a folder is said before any text is read."""
    if args.pretrained:
        from stackformer.models.huggingface.config import read_config
        from stackformer.training.records import read_json

        with reading(args.pretrained):
            if (Path(args.pretrained) / "config.json").is_file():
                read_json(Path(args.pretrained) / "config.json")
            read_config(args.pretrained)
    if args.cache_dir:
        cli.folder("--cache_dir", args.cache_dir)
    if args.out and not args.eval_only and Path(args.out).is_file():
        raise UserError(f"--out should be a folder, but {args.out} is a file")


def make_model_config(args: argparse.Namespace, vocab_size: int, **more: Any) -> dict:
    """All fields of the model's configuration."""
    from stackformer.models.huggingface.config import read_config
    from stackformer.problems.lm.config import model_types

    overrides = model_overrides(args)
    _, config_type = model_types(args.task)
    if args.pretrained:
        with reading(args.pretrained):
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
    return config.to_json()


def make_config(args: argparse.Namespace, corpus: Any) -> Any:
    """The configuration of a run: defaults of the size, then flags."""
    from stackformer.data.tokenization import tokenizer_fingerprint
    from stackformer.problems.lm.config import LMConfig, size_values

    size = "pretrained" if args.pretrained else args.size or "small"
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
        packing=args.packing,
        **{
            **size_values(size, pretrained=bool(args.pretrained)),
            **flags.given_fields(args, TRAINING),
        },
    )


def make_corpus(args: argparse.Namespace, tokenizer_dir: str | None = None) -> Any:
    """The tokenised text that the flags name."""
    from stackformer.data.corpus import load_corpus

    for name in ("task", "dataset", "data_dir"):
        if getattr(args, name) is None:
            raise UserError(f"--{name} is required; see --help")
    # TFDS announces a download; there is none.
    with contextlib.redirect_stdout(io.StringIO()):
        return load_corpus(
            args.dataset,
            args.data_dir,
            masked=args.task == "mlm",
            tokenizer_dir=tokenizer_dir or args.tokenizer or args.pretrained,
            vocab_size=args.vocab_size or VOCAB_SIZES[args.size or "small"],
            packing=args.packing,
            cache_dir=args.cache_dir,
        )


def default_out(args: argparse.Namespace) -> Path:
    """A folder named after what is trained: other flags, another folder."""
    parts = [args.task, args.dataset]
    parts.append(
        Path(args.pretrained).name if args.pretrained else args.size or "small"
    )
    parts.append("nostack" if args.nostack else f"stack_{args.stack_init}")
    names = ("stack_layers", "vocab_size", *TRAINING, "dtype", "dropout")
    given = flags.given_fields(args, names)
    switches = [
        n for n in ("remat", "packing", "tune_lr", "eval_only") if getattr(args, n)
    ]
    return Path("runs/lm") / flags.folder_of([*parts, *switches], given)


def execute(args: argparse.Namespace, command: str) -> None:
    """Trains or measures, and prints the result."""
    import jax
    import tensorflow_datasets as tfds

    from stackformer.commands.lm import actions as lm_commands
    from stackformer.models.huggingface.pretrained import read_weights
    from stackformer.problems.lm import problem as lm

    check_folders(args)
    tfds.disable_progress_bar()
    saved = args.eval_only and not args.pretrained
    if saved and not args.out:
        raise UserError(
            "--eval_only needs --pretrained=DIR, or --out=RUN for a trained run"
        )
    try:
        if saved:
            config = lm.load_config(args.out)
            args.task, args.dataset = config.task, config.dataset
            args.packing = config.packing
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
            with reading(args.pretrained):
                weights = read_weights(args.pretrained, config.model_config())
    except (ValueError, ImportError) as error:
        raise error if isinstance(error, UserError) else UserError(error) from None
    run = lm_commands.Run(
        flags=flags.RunFlags.read(
            args,
            out=default_out(args),
            batch_size=config.batch_size,
            command=command,
        ),
        corpus=corpus,
        weights=weights,
    )
    out = run.flags.out
    for split, share in corpus.padding().items():
        print(f"{split}: {len(corpus.chunks[split]):,} chunks, {share:.1%} padding")
    if args.save_chunks:
        lm_commands.save_chunks(corpus, out)
    with cli.going_on(out, command):
        if args.eval_only:
            results = lm_commands.measure(config, run, saved=saved)
        else:
            results = lm_commands.train_and_measure(config, run, tune=args.tune_lr)
        if jax.process_index() == 0:
            print(lm_commands.report(results, out))


def time_step(args: argparse.Namespace) -> None:
    """Prints, and writes to --out if given, what one step takes."""
    from stackformer.problems.lm.config import LMConfig
    from stackformer.problems.lm.timing import time_step
    from stackformer.training.records import write_json

    if args.task is None:
        raise UserError("--task is required; see --help")
    size = args.size or "small"
    vocab_size = args.vocab_size or VOCAB_SIZES[size]
    special_tokens = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    special = {token: number for number, token in enumerate(special_tokens)}
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
        cli.folder("--out", args.out)
        write_json(Path(args.out) / "time_step.json", results)


def sample_or_export(args: argparse.Namespace) -> None:
    """What is done with a trained run."""
    from stackformer.commands.lm import actions as lm_commands

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


def main() -> int:
    """The command."""
    args = make_parser().parse_args()
    command = cli.command_line("lm")
    with cli.naming_flags(args):
        if args.tune_lr and args.learning_rate:
            raise UserError("--lr and --tune_lr exclude each other; give one of them")
        stack = args.stack_init != "plain" or args.stack_layers is not None
        if args.nostack and stack:
            raise UserError("--stack_init and --stack_layers do not go with --nostack")
        flags.keep_programs(args)
        flags.join_processes(args)
        if args.time_step:
            time_step(args)
        elif args.sample or args.export:
            sample_or_export(args)
        else:
            execute(args, command)
    return 0
