"""Train a model on a formal-language task and measure it on longer strings.

    python -m experiments.dcf --task=RS

leaves config.json, metrics.jsonl, checkpoints/, results.json and
length_generalization.png in its --out folder; the same command goes on where it
stopped. The engine is `stackformer.training`.
"""

import argparse
import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any

from experiments import cli, paper_results
from stackformer.training import dcf_config
from stackformer.training.dcf_config import DCFConfig, preset_values
from stackformer.training.errors import Interrupted, UserError
from stackformer.training.lengths import CURRICULA

EXAMPLES = [
    "python -m experiments.dcf --task=RS",
    "python -m experiments.dcf --task=SM --mode=alm --seeds=0,1,2 --out=runs/sm",
    "python -m experiments.dcf --eval_only --out=runs/sm --test_length=500 "
    "--test_strings=64",
]
# Flags that are fields of the configuration, with other names there.
_FIELDS = {"lr": "learning_rate"}


def make_parser() -> argparse.ArgumentParser:
    """The flags, in groups."""
    parser = cli.parser("dcf", __doc__.split("\n\n")[0], EXAMPLES)
    what = parser.add_argument_group("what is trained")
    what.add_argument(
        "--task",
        help="RS, SM, MA, SE or a long name such as reverse_string; "
        "`python -m experiments.tasks` lists all",
    )
    what.add_argument(
        "--model", choices=dcf_config.MODELS, help="default: stack_transformer"
    )
    what.add_argument(
        "--mode",
        choices=dcf_config.MODES,
        help="mlm: all answers at once (default); alm: one symbol after another",
    )
    what.add_argument(
        "--pos", choices=dcf_config.POSITIONS, help="positional encoding, default none"
    )
    what.add_argument(
        "--preset",
        choices=dcf_config.PRESETS,
        help="quick: minutes on two CPU cores (default); paper: the paper's appendix; "
        "smoke: seconds, to see that all works",
    )
    over = parser.add_argument_group("over the preset")
    over.add_argument("--steps", type=cli.positive, help="optimizer steps")
    over.add_argument("--batch_size", type=cli.positive, help="strings in a step")
    over.add_argument("--lr", type=float, help="learning rate of Adam")
    over.add_argument(
        "--schedule",
        choices=dcf_config.SCHEDULES,
        help="of the learning rate: constant (the paper's), or cooldown to zero over "
        "the last fifth of the steps (quick)",
    )
    over.add_argument(
        "--train_length", type=cli.positive, help="train on 1..N, default 40"
    )
    over.add_argument(
        "--test_length", type=cli.positive, help="test up to N, default 100"
    )
    over.add_argument(
        "--test_strings", type=cli.positive, help="strings of each length, default 512"
    )
    over.add_argument(
        "--seeds", type=cli.integers, help="such as 0,1,2: trained at once; default 0"
    )
    over.add_argument(
        "--curriculum",
        metavar="NAME[:VALUE]",
        help=f"lengths of training strings: {', '.join(CURRICULA)}; default uniform",
    )
    over.add_argument(
        "--model_config",
        type=cli.assignments,
        metavar="NAME=VALUE,...",
        help="over the model's own configuration, such as d_model=32,num_layers=2",
    )
    run = parser.add_argument_group("the run")
    run.add_argument("--out", metavar="DIR", help="default: runs/dcf/<what is trained>")
    run.add_argument("--checkpoint_every", type=cli.positive, metavar="STEPS")
    run.add_argument(
        "--keep", type=cli.positive, default=3, help="checkpoints kept, default 3"
    )
    run.add_argument("--no_progress", action="store_true", help="no progress bars")
    devices = parser.add_argument_group("devices")
    devices.add_argument(
        "--mesh",
        metavar="AXIS:SIZE,...",
        help="axes seeds, data, params, such as seeds:2,data:4; default: all on data",
    )
    devices.add_argument(
        "--distributed", action="store_true", help="join several processes into one run"
    )
    devices.add_argument("--coordinator", metavar="HOST:PORT")
    devices.add_argument("--num_processes", type=cli.positive)
    devices.add_argument("--process_id", type=int)
    other = parser.add_argument_group("instead of training")
    other.add_argument(
        "--eval_only", action="store_true", help="only measure the run in --out"
    )
    other.add_argument(
        "--test_data", metavar="DIR", help="measure on this frozen TFDS test set"
    )
    other.add_argument(
        "--describe", action="store_true", help="print the model's parameters and end"
    )
    return parser


def given_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of the configuration that flags set."""
    names = (
        "task model mode pos preset steps batch_size lr schedule train_length "
        "test_length test_strings seeds curriculum model_config"
    )
    flags = {name: getattr(args, name) for name in names.split()}
    return {_FIELDS.get(name, name): x for name, x in flags.items() if x is not None}


def make_config(args: argparse.Namespace) -> DCFConfig:
    """Preset, then flags."""
    given = given_fields(args)
    if "task" not in given:
        raise UserError("--task is required, such as --task=RS; see --help")
    preset = given.get("preset", "quick")
    model = given.get("model", "stack_transformer")
    values = preset_values(preset, given["task"], model)
    return DCFConfig(**{**values, **given})


def default_out(config: DCFConfig, args: argparse.Namespace) -> Path:
    """A folder named after what is trained: other flags, another folder."""
    named = ("task", "model", "mode", "pos", "preset")
    parts = [str(getattr(config, name)) for name in named]
    for name, value in given_fields(args).items():
        if name in named:
            continue
        if isinstance(value, tuple):
            value = "_".join(map(str, value))
        elif isinstance(value, dict):
            value = "_".join(f"{key}{x}" for key, x in value.items())
        parts.append(f"{name}{value}".replace(":", "_"))
    return Path("runs") / "dcf" / "-".join(parts)


def saved_config(args: argparse.Namespace) -> DCFConfig:
    """The configuration of the run in --out, for --eval_only."""
    from stackformer.training import dcf

    if args.out is None:
        raise UserError("--eval_only needs --out, the folder of a run")
    config = dcf.load_config(args.out)
    given = given_fields(args)
    measured = {
        name: given.pop(name)
        for name in ("test_length", "test_strings")
        if name in given
    }
    for name, value in given.items():
        if getattr(config, name) != value:
            raise UserError(
                f"--eval_only: the run in {args.out} has {name} "
                f"{getattr(config, name)}, not {value}; leave that flag out"
            )
    return dataclasses.replace(config, **measured)


def report(results: dict[str, Any], out: Path) -> str:
    """The result beside the paper's, as text."""
    first, last = results["train_length"] + 1, results["test_length"]
    lines = [
        f"{results['task']}, {results['model']}, {results['mode']}, positions "
        f"{results['pos']}: token accuracy on lengths {first}..{last}, in percent",
        f"  measured  {100 * results['mean']:.2f} ± {100 * results['std']:.2f}   "
        f"({results['steps']:,} steps, {len(results['runs'])} seed"
        f"{'s' if len(results['runs']) > 1 else ''})",
    ]
    short = dcf_config.task_named(results["task"]).short_name
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
    if len(results["runs"]) > 1:
        scores = ", ".join(
            f"{run['seed']}: {100 * run['score']:.2f}" for run in results["runs"]
        )
        lines.append(f"  by seed   {scores}")
    lines.append(f"in {out}: results.json, length_generalization.png, metrics.jsonl")
    return "\n".join(lines)


def describe(config: DCFConfig) -> None:
    """Prints the table of parameters."""
    import jax

    from stackformer import models
    from stackformer.training import dcf

    dcf.check_model(config)
    print(models.describe(dcf.make_problem(config).init(jax.random.key(0))))


def run(config: DCFConfig, out: Path, args: argparse.Namespace, command: str) -> None:
    """Trains (unless --eval_only), measures, writes the results and prints them."""
    import jax

    from stackformer.training import Placement, RunFolder, dcf, parse_mesh
    from stackformer.viz.curves import plot_length_generalization

    dcf.check_model(config)
    placement = Placement.create(
        parse_mesh(args.mesh, jax.device_count(), config.batch_size)
    )
    progress = not args.no_progress and jax.process_index() == 0
    saved = dcf.load_config(out) if args.eval_only else config
    with RunFolder(out, saved.to_json(), command=command) as folder:
        results = dcf.run(
            config,
            folder,
            placement,
            train=not args.eval_only,
            test_data=args.test_data,
            checkpoint_every=args.checkpoint_every,
            keep=args.keep,
            progress=progress,
        )
        if folder.primary:
            plot_length_generalization(results, out / "length_generalization.png")
            print(report(results, out))


def main() -> int:
    """The command."""
    args = make_parser().parse_args()
    command = shlex.join(["python", "-m", "experiments.dcf", *sys.argv[1:]])
    if args.distributed:
        from stackformer.training import distributed

        distributed.initialize(args.coordinator, args.num_processes, args.process_id)
    config = saved_config(args) if args.eval_only else make_config(args)
    if args.describe:
        describe(config)
        return 0
    out = Path(args.out) if args.out else default_out(config, args)
    try:
        run(config, out, args, command)
    except Interrupted as stop:
        print(f"\nStopped at step {stop.step:,}; everything is saved in {out}.")
        print(f"To go on: {command}")
    return 0


if __name__ == "__main__":
    cli.run(main)
