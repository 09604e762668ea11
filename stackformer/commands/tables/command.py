"""Measure the paper's tables: every cell a run of its own, beside the paper's number.

    python -m experiments.tables --table=1

Finished cells are skipped, so the same command goes on where it stopped. It writes
tableN.md, tableN.json and report.html (one page, no network) into --out.
"""

import argparse
from collections import Counter
from pathlib import Path

from stackformer.commands import cli
from stackformer.commands.tables.cells import (
    DATASETS,
    MODELS,
    MODES,
    POSITIONS,
    TASKS,
    Settings,
    Table,
    make_table,
)
from stackformer.commands.tables.launch import LocalLauncher, SubmititLauncher
from stackformer.commands.tables.results import collect, find_results, write_outputs
from stackformer.commands.tables.run import BROKEN, STOPPED, WAITING, Runner
from stackformer.commands.tables.stacks import (
    COLUMNS,
    ROWS,
    has_costs,
    stacks_table,
)
from stackformer.problems.dcf.config import PRESETS
from stackformer.problems.settings import RunConfig
from stackformer.training.errors import UserError

EXAMPLES = [
    "python -m experiments.tables --table=1 --tasks=RS,SM --seeds=0,1,2",
    "python -m experiments.tables --table=2 --tasks=RS --modes=mlm --budget_minutes=60",
    "python -m experiments.tables --table=1 --preset=paper --launcher=submitit \\",
    "    --submitit=slurm_partition=gpu,gpus_per_node=1,timeout_min=720",
    "python -m experiments.tables --table=3 --wikitext2_dir=DIR --steps=500",
    "python -m experiments.tables --table=1 --report_only --out=experiments/results",
    "python -m experiments.tables --table=stacks --tasks=RS,DYCK2",
    "python -m experiments.tables --table=1 -- --batch_size=64 --lr=1e-3",
]

# Flags of a run that are not given after --, and what to give instead.
_RESERVED = {
    "--task": "choose the cells with --tasks",
    "--dataset": "choose the cells with --tasks",
    "--model": "choose the cells with --models",
    "--mode": "choose the cells with --modes",
    "--pos": "choose the cells with --pos, before --",
    "--seeds": "give it before --",
    "--preset": "give it before --",
    "--steps": "give it before --",
    "--out": "the runner chooses it for each cell",
    "--eval_only": "cells are trained",
    "--predict": "cells are trained",
    "--describe": "cells are trained",
}


def make_parser() -> argparse.ArgumentParser:
    """The flags, in groups."""
    parser = cli.parser("tables", (__doc__ or "").partition("\n\n")[0], EXAMPLES)
    what = parser.add_argument_group("which cells (default: all of the table)")
    what.add_argument(
        "--table",
        type=_table,
        choices=(1, 2, 3, "stacks"),
        default=1,
        help="1: RNNs and transformers (default); 2: positional encodings; "
        "3: language modeling; stacks: every kind of stack in one transformer",
    )
    what.add_argument(
        "--tasks",
        type=_names(*ROWS, *DATASETS),
        help=f"of {','.join(TASKS)}; in table 3 of {','.join(DATASETS)}; in table "
        f"stacks of {','.join(ROWS)}",
    )
    what.add_argument(
        "--models",
        type=_names(*MODELS, "ours"),
        help=f"of {','.join(MODELS)}, and in tables 1 and 2 ours",
    )
    what.add_argument("--modes", type=_names(*MODES), help=f"of {','.join(MODES)}")
    what.add_argument(
        "--pos", type=_names(*POSITIONS), help=f"of {','.join(POSITIONS)}"
    )
    what.add_argument(
        "--stacks",
        type=_names(*COLUMNS),
        help=f"in table stacks, of {','.join(COLUMNS)}",
    )
    how = parser.add_argument_group("every cell")
    how.add_argument(
        "--seeds", type=cli.integers, default=(0, 1, 2), help="default 0,1,2"
    )
    how.add_argument(
        "--preset", choices=PRESETS, default="quick", help="of experiments.dcf"
    )
    how.add_argument("--steps", type=cli.positive, help="instead of the preset's")
    how.add_argument(
        "flags",
        nargs="*",
        metavar="-- FLAGS",
        help="after --: more flags for every run, such as -- --batch_size=64",
    )
    text = parser.add_argument_group("table 3")
    text.add_argument("--wikitext2_dir", metavar="DIR", help="the text of WikiText-2")
    text.add_argument("--ptb_dir", metavar="DIR", help="the text of Penn Treebank")
    text.add_argument("--gpt2_dir", metavar="DIR", help="pretrained GPT-2, for ALM")
    text.add_argument(
        "--roberta_dir", metavar="DIR", help="pretrained RoBERTa, for MLM"
    )
    run = parser.add_argument_group("running")
    run.add_argument(
        "--out", type=Path, default=Path("runs/tables"), help="default runs/tables"
    )
    run.add_argument(
        "--jobs",
        type=cli.positive,
        help="cells at a time, each on its share of the cores: default 1 here, all "
        "of them through submitit",
    )
    run.add_argument(
        "--budget_minutes",
        type=_minutes,
        help="then running cells save and end; the same command goes on later",
    )
    run.add_argument(
        "--launcher",
        choices=("local", "submitit"),
        default="local",
        help="local: processes on this machine (default); submitit: SLURM jobs",
    )
    run.add_argument(
        "--cluster",
        choices=("slurm", "local"),
        help="of submitit; default: what it finds",
    )
    run.add_argument(
        "--submitit",
        type=cli.assignments,
        default={},
        metavar="NAME=VALUE,...",
        help="submitit's parameters, such as timeout_min=60,slurm_partition=gpu",
    )
    instead = run.add_mutually_exclusive_group()
    instead.add_argument(
        "--dry_run", action="store_true", help="only print states and commands"
    )
    instead.add_argument(
        "--report_only",
        action="store_true",
        help="run nothing: tables and report from all results.json found under --out "
        "(of several runs of a cell the one with the most steps; only runs with "
        "the curriculum that the flags after -- name, default uniform)",
    )
    return parser


def _table(text: str) -> int | str:
    """The type of --table."""
    return int(text) if text.isdigit() else text


def _names(*allowed: str):
    """The type of a flag that lists names with commas."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(filter(None, text.split(",")))
        wrong = [name for name in names if name not in allowed]
        if wrong or not names:
            raise argparse.ArgumentTypeError(
                f"expected names of {', '.join(allowed)} with commas, but got {text!r}"
            )
        return names

    return parse


def _minutes(text: str) -> float:
    """The type of --budget_minutes.

    >>> _minutes("1.5")
    1.5
    """
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1.0
    if not 0 < minutes < float("inf"):
        raise argparse.ArgumentTypeError(
            f"expected a number of minutes above 0, but got {text!r}"
        )
    return minutes


def table_of(args: argparse.Namespace) -> Table:
    """The table that the flags ask for."""
    names = [flag.partition("=")[0] for flag in args.flags]
    reserved = [name for name in names if name in _RESERVED]
    if reserved:
        raise UserError(
            f"after -- should be flags that the table does not set, but got "
            f"{reserved[0]}; {_RESERVED[reserved[0]]}"
        )
    RunConfig.check_seeds(args.seeds)
    data_dirs = {"wikitext2": args.wikitext2_dir, "ptb": args.ptb_dir}
    pretrained = {"alm": args.gpt2_dir, "mlm": args.roberta_dir}
    settings = Settings(
        out=args.out,
        tasks=args.tasks,
        models=args.models,
        modes=args.modes,
        pos=args.pos,
        stacks=args.stacks,
        seeds=args.seeds,
        preset=args.preset,
        steps=args.steps,
        extra=tuple(args.flags),
        data_dirs={name: folder for name, folder in data_dirs.items() if folder},
        pretrained={name: folder for name, folder in pretrained.items() if folder},
    )
    if args.launcher != "submitit" and (args.cluster or args.submitit):
        raise UserError("--cluster and --submitit go with --launcher=submitit")
    if args.table == "stacks":
        return stacks_table(settings)
    if args.stacks is not None:
        raise UserError("--stacks is for --table=stacks")
    return make_table(args.table, settings)


def run(table: Table, args: argparse.Namespace, command: str) -> int:
    """Runs the cells, writes the outputs, says what happened; the exit code."""
    submitit = args.launcher == "submitit"
    jobs = args.jobs or (len(table.cells) if submitit else 1)
    launcher = (
        SubmititLauncher(args.out / "submitit", args.cluster, **args.submitit)
        if submitit
        else LocalLauncher(jobs)
    )

    cli.folder("--out", args.out)

    def write() -> list[Path]:
        return write_outputs(collect(table, runner.states(), command), args.out)

    runner = Runner(
        table.cells,
        launcher,
        jobs=jobs,
        budget_seconds=args.budget_minutes and 60 * args.budget_minutes,
        on_change=write,
    )
    runner.run()
    if not runner.stopped_by and not has_costs(table):
        # Only here is JAX needed.
        from stackformer.commands.tables.costs import measure_costs

        measure_costs(table)
    paths = write()
    broken = [entry for entry in runner.entries if entry.state == BROKEN]
    for entry in broken:
        print(f"\nbroken: {entry.cell.name}\n  {entry.cell.command}")
        print("  " + entry.reason.replace("\n", "\n  "))
    counts = Counter(entry.state for entry in runner.entries)
    print("\n" + ", ".join(f"{count} {state}" for state, count in counts.items()))
    print("wrote " + ", ".join(map(str, paths)))
    if counts[STOPPED] + counts[WAITING]:
        print(f"{runner.stopped_by or 'stopped'}; to go on: {command}")
    return 1 if broken else 0


def main() -> int:
    """The command."""
    args = make_parser().parse_args()
    command = cli.command_line("tables")
    with cli.naming_flags(args):
        table = table_of(args)
    if args.dry_run:
        for cell in table.cells:
            print("finished" if cell.finished() else "to run  ", cell.command)
        return 0
    if args.report_only:
        if args.out.is_file():
            raise UserError(f"--out should be a folder, but {args.out} is a file")
        if not args.out.is_dir():
            raise UserError(f"--out={args.out} does not exist; nothing to report")
        if not any(args.out.rglob("results*.json")):
            raise UserError(
                "--out should be a folder with results.json files of the table's "
                f"runs, but {args.out} has none"
            )
        found = find_results(table, args.out)
        paths = write_outputs(collect(found, {}, command), args.out)
        print("wrote " + ", ".join(map(str, paths)))
        return 0
    return run(table, args, command)
