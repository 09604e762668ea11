"""Train a model on a formal-language task and measure it on longer strings.

    python -m experiments.dcf --task=RS

leaves config.json, metrics.jsonl, checkpoints/, results.json and
length_generalization.png in its --out folder; the same command goes on where it
stopped. The engine is `stackformer.training`.
"""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from stackformer.commands import cli, flags, paper_results
from stackformer.problems.dcf.config import DCFConfig, task_named
from stackformer.problems.dcf.presets import preset_values
from stackformer.training.errors import UserError

EXAMPLES = [
    "python -m experiments.dcf --task=RS",
    "python -m experiments.dcf --task=SM --mode=alm --seeds=0,1,2 --out=runs/sm",
    "python -m experiments.dcf --eval_only --out=runs/sm --test_length=500 "
    "--test_strings=64",
    "python -m experiments.dcf --predict=abba --out=rs",
]
# Flags that say how something is done, and what then has to be asked for.
_PARTS = {
    "cooldown": ("schedule", ("cooldown",)),
    "sharpen_at": ("phases", ("sharpened", "hard")),
    "entropy_weight": ("phases", ("sharpened", "hard")),
    "harden_at": ("phases", ("hard",)),
}
# Fields of the configuration that are flags, in two groups.
_WHAT = ("task", "model", "stack", "mode", "pos", "preset")
_OVER = (
    *("steps", "batch_size", "learning_rate", "schedule", "train_length"),
    *("test_length", "test_strings", "seeds", "curriculum", "curriculum_start"),
    *("lengths_per_step", "warmup", "weight_decay", "cooldown"),
    *("phases", "sharpen_at", "entropy_weight", "harden_at"),
    *("balance", "balance_steps", "balance_learning_rate", "model_config"),
)


def make_parser() -> argparse.ArgumentParser:
    """The flags, in groups."""
    parser = cli.parser("dcf", (__doc__ or "").split("\n\n")[0], EXAMPLES)
    what = parser.add_argument_group("what is trained")
    flags.add_fields(what, DCFConfig, _WHAT)
    over = parser.add_argument_group("over the preset")
    decided = preset_values("quick", "RS", "stack_transformer")
    defaults = dict.fromkeys(decided, "as the preset says")
    flags.add_fields(over, DCFConfig, _OVER, defaults=defaults)
    flags.add_run_flags(parser, out="runs/dcf", keep=3)
    other = parser.add_argument_group("instead of training")
    other.add_argument(
        "--eval_only", action="store_true", help="only measure the run in --out"
    )
    other.add_argument(
        "--test_data", metavar="DIR", help="measure on this frozen TFDS test set"
    )
    other.add_argument(
        "--predict",
        metavar="STRING",
        help="print what the run in --out answers to this string; - reads lines",
    )
    other.add_argument(
        "--actions",
        choices=("soft", "hard"),
        help="with --predict: mixed actions, or the most probable ones; default soft",
    )
    other.add_argument(
        "--describe", action="store_true", help="print the model's parameters and end"
    )
    return parser


def given_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of the configuration that flags set."""
    return flags.given_fields(args, _WHAT + _OVER)


def make_config(args: argparse.Namespace) -> DCFConfig:
    """Preset, then flags."""
    given = given_fields(args)
    if "task" not in given:
        raise UserError("--task is required, such as --task=RS; see --help")
    preset = given.get("preset", "quick")
    model = given.get("model", "stack_transformer")
    values = preset_values(preset, given["task"], model, given.get("stack"))
    if "model_config" in given:
        # A field that is given leaves the preset's others as they are.
        given["model_config"] = values.get("model_config", {}) | given["model_config"]
    config = DCFConfig(**{**values, **given})
    check_parts(config, given)
    return config


def check_parts(config: DCFConfig, given: dict[str, Any]) -> None:
    """Raises `UserError` where a flag that was given would change nothing."""
    for name, (what, wanted) in _PARTS.items():
        if name in given and getattr(config, what) not in wanted:
            raise UserError(
                f"`{name}` should go with `{what}` {' or '.join(wanted)}, but got "
                f"`{what}` {getattr(config, what)}"
            )
    if "curriculum_start" in given and config.lengths().progress() is None:
        raise UserError(
            "`curriculum_start` should go with `curriculum` accuracy, but got "
            f"`curriculum` {config.curriculum}"
        )
    if "balance_learning_rate" in given and not config.balance_steps:
        raise UserError(
            "`balance_learning_rate` should go with `balance_steps`, but got none"
        )


def default_out(config: DCFConfig, args: argparse.Namespace) -> Path:
    """A folder named after what is trained: other flags, another folder."""
    parts = [str(getattr(config, name)) for name in _WHAT if getattr(config, name)]
    return Path("runs/dcf") / flags.folder_of(parts, flags.given_fields(args, _OVER))


def saved_config(args: argparse.Namespace) -> DCFConfig:
    """The configuration of the run in --out, for --eval_only."""
    from stackformer.problems import dcf

    if args.out is None:
        raise UserError("--eval_only needs --out, the folder of a run")
    config = dcf.load_config(args.out)
    given = given_fields(args)
    measured = {
        name: given.pop(name)
        for name in ("test_length", "test_strings")
        if name in given
    }
    check_same(args, given, config, "--eval_only")
    return dataclasses.replace(config, **measured)


def check_same(
    args: argparse.Namespace,
    given: dict[str, Any],
    config: DCFConfig,
    flag: str,
) -> None:
    """Raises `UserError` where a flag says something else than the run in --out."""
    for name, value in given.items():
        if getattr(config, name) != value:
            raise UserError(
                f"{flag}: `{name}` should be that of the run in {args.out}, "
                f"{getattr(config, name)}, but got {value}; leave that flag out"
            )


def report(results: dict[str, Any], out: Path) -> str:
    """The result beside the paper's, as text."""
    first, last = results["train_length"] + 1, results["test_length"]
    runs = results["runs"]
    model = " with ".join(filter(None, [results["model"], results["stack"]]))
    lines = [
        f"{results['task']}, {model}, {results['mode']}, positions {results['pos']}: "
        f"token accuracy on lengths {first}..{last}, in percent",
        f"  measured  {_percent(results['mean'], results['std'], len(runs))}   "
        f"({results['steps']:,} steps, {_count(runs)})",
    ]
    if "mean_hard" in results:
        hard = _percent(results["mean_hard"], results["std_hard"], len(runs))
        lines.append(f"  hard      {hard}   (the most probable action only)")
    short = task_named(results["task"]).short_name
    cell = paper_results.lookup(
        short, results["model"], results["mode"], results["pos"]
    )
    if cell is None:
        lines.append("  paper     has no number for this")
    else:
        values = preset_values("paper", results["task"], results["model"])
        lines.append(
            f"  paper     {cell}   ({values['steps']:,} steps, 5 seeds, 41..100)"
        )
    lines.append(f"  chance    {100 * results['chance']:.2f}")
    if len(runs) > 1:
        for name, key in (("by seed  ", "score"), ("  hard   ", "score_hard")):
            if key in runs[0]:
                scores = [f"{run['seed']}: {100 * run[key]:.2f}" for run in runs]
                lines.append(f"  {name} {', '.join(scores)}")
    lines.append(f"in {out}: {results['file']}, metrics.jsonl and the curve as a PNG")
    return "\n".join(lines)


def _percent(mean: float, std: float, seeds: int) -> str:
    return f"{100 * mean:.2f}" + (f" ± {100 * std:.2f}" if seeds > 1 else "")


def _count(runs: list) -> str:
    return f"{len(runs)} seeds" if len(runs) > 1 else "one seed: no deviation"


def execute(config: DCFConfig, args: argparse.Namespace, run: flags.RunFlags) -> None:
    """Trains (unless --eval_only), measures, writes the results and prints them."""
    from stackformer.problems import dcf
    from stackformer.problems.dcf.memory import check_memory
    from stackformer.training import RunFolder
    from stackformer.viz.curves import plot_length_generalization

    check_memory(config)  # what cannot work leaves no folder
    problem = dcf.make_problem(config)
    saved = dcf.load_config(run.out) if args.eval_only else config
    with RunFolder(run.out, saved.to_json(), command=run.command) as folder:
        results = dcf.run(
            config,
            folder,
            run.placement,
            problem=problem,
            train=not args.eval_only,
            test_data=args.test_data,
            **run.training(),
        )
        if folder.primary:
            print(report(results, run.out))
        if folder.primary and folder.writable:
            picture = run.out / "length_generalization.png"
            if results["file"] != "results.json":
                lengths = results["file"].removeprefix("results").removesuffix(".json")
                picture = picture.with_stem(picture.stem + lengths)
            try:
                plot_length_generalization(results, picture)
            except OSError as error:
                reason = error.strerror or "the disk is full"
                raise UserError(f"{picture} cannot be drawn: {reason}") from None


def answer(args: argparse.Namespace) -> None:
    """Prints what the run in --out answers, for --predict."""
    from stackformer.problems import dcf

    if args.out is None:
        raise UserError(
            "--predict needs --out, the folder of a run or the name of a model that "
            f"comes with the package: {', '.join(dcf.shipped())}"
        )
    others = ("eval_only", "describe", "test_data")
    wrong = [cli.flag_of(name) for name in others if getattr(args, name)]
    if wrong:
        raise UserError(f"--predict should be given without {', '.join(wrong)}")
    if args.seeds is not None and len(args.seeds) > 1:
        raise UserError(
            f"--predict: `seeds` should be one seed, but got {len(args.seeds)}"
        )
    with cli.naming_flags(args, name="--out"):
        trained = dcf.load(args.out, args.seeds[0] if args.seeds else None)
    given = given_fields(args)
    given.pop("seeds", None)
    check_same(args, given, trained.config, "--predict")
    lines = [args.predict]
    if args.predict == "-":
        lines = [line.strip() for line in sys.stdin if line.strip()]
    try:
        answers = trained.predict(lines, hard=args.actions == "hard")
    except ValueError as error:
        raise UserError(f"--predict: {error}") from None
    print("\n".join(answers))


def describe(config: DCFConfig) -> None:
    """Prints the table of parameters."""
    import jax

    from stackformer import models
    from stackformer.problems.dcf import make_problem

    print(models.describe(make_problem(config).init(jax.random.key(0))))


def main() -> int:
    """The command."""
    args = make_parser().parse_args()
    command = cli.command_line("dcf")
    with cli.naming_flags(args):
        if args.actions is not None and args.predict is None:
            raise UserError("--actions goes with --predict; --phases is for training")
        flags.keep_programs(args)
        flags.join_processes(args)
        if args.predict is not None:
            answer(args)
            return 0
        config = saved_config(args) if args.eval_only else make_config(args)
        if args.describe:
            describe(config)
            return 0
        run = flags.RunFlags.read(
            args,
            out=default_out(config, args),
            batch_size=config.batch_size,
            command=command,
        )
        with cli.going_on(run.out, command):
            execute(config, args, run)
    return 0
