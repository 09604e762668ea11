"""Look at the strings of a formal-language task, or write its frozen test set.

Without --task, lists all tasks.
"""

import argparse
import contextlib
import io
import time
from collections.abc import Callable
from typing import Any

from stackformer.checks import MODES
from stackformer.commands import cli
from stackformer.training.errors import UserError

EXAMPLES = [
    "python -m experiments.tasks",
    "python -m experiments.tasks --task=MA --length=20 --n=5",
    "python -m experiments.tasks --task=SM --length=6 --mode=alm",
    "python -m experiments.tasks --task=MA --answer='((1+2)*3)'",
    "python -m experiments.tasks --task=MA --export=data",
    "python -m experiments.tasks --task=all --export=data",
]


def make_parser() -> argparse.ArgumentParser:
    """The flags, in groups."""
    parser = cli.parser("tasks", (__doc__ or "").strip(), EXAMPLES)
    strings = parser.add_argument_group("random strings")
    strings.add_argument(
        "--task",
        metavar="NAME",
        help="RS, SM, MA, SE, a long name such as reverse_string, module:Class or "
        "FILE.py:Class",
    )
    strings.add_argument(
        "--length", type=cli.positive, default=20, help="of the strings, default 20"
    )
    strings.add_argument(
        "--n", type=cli.positive, default=5, help="number of strings, default 5"
    )
    strings.add_argument("--seed", type=cli.seed, default=0, help="default 0")
    strings.add_argument(
        "--mode",
        choices=MODES,
        help="show also the tokens that a model reads in this setting",
    )
    instead = parser.add_argument_group("instead")
    instead = instead.add_mutually_exclusive_group()
    instead.add_argument(
        "--answer", metavar="STRING", help="show the answer to a string of your own"
    )
    instead.add_argument(
        "--export",
        metavar="DIR",
        help="write the frozen test set (512 strings of each length 1..100) as a TFDS "
        "data set under DIR; --task=all writes those of all tasks",
    )
    return parser


def list_tasks() -> None:
    """Prints a table of all tasks."""
    from stackformer import tasks

    rows = [("task", "short", "level", "input symbols", "output symbols")]
    for task in map(tasks.get, tasks.names()):
        symbols = " ".join(task.input_symbols), " ".join(task.output_symbols)
        rows.append((task.name, task.short_name or "", task.level, *symbols))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def show(name: str, args: argparse.Namespace) -> None:
    """Prints random strings with their answers."""
    import jax

    from stackformer import tasks

    task = tasks.get(name)
    check_memory(task, args)
    sample = task.sample(jax.random.key(args.seed), args.n, args.length)
    pairs = task.decode_sample(sample)
    width = max(len(x) for x, _ in pairs)
    tokens = tasks.frame(task, sample, args.mode).tokens if args.mode else None
    for i, (x, y) in enumerate(pairs):
        print(f"{x.ljust(width)}  ->  {y}")
        if tokens is not None:
            print(f"    {task.decode_tokens(tokens[i])}")


def check_memory(task: Any, args: argparse.Namespace) -> None:
    """Refuses lengths and numbers of strings that cannot fit."""
    from stackformer.training.memory import refuse_beyond_memory

    # A word of random bits, a symbol, and an answer's symbol with its mask.
    one = 8 * args.length + 5 * int(task.output_length(args.length))
    name = "length" if args.length > args.n else "n"
    what = f"{args.n:,} strings of {args.length:,} symbols"
    refuse_beyond_memory(name, getattr(args, name), args.n * one, what)


def counter(progress: Any, task: str, dataset: Any) -> Callable[[int], None]:
    """What is called with every number of strings that were written."""
    from stackformer.training.progress import Estimate

    total, done, last = dataset.builder_config.num_strings, 0, time.monotonic()
    estimate = Estimate()
    progress.wait_for(f"compiling {task}")

    def written(number: int) -> None:
        nonlocal done, last
        now = time.monotonic()
        estimate.add("strings", number, now - last)
        done, last = done + number, now
        left = estimate.left({"strings": total - done})
        progress.count(task, done, total, unit=" strings", left=left)

    return written


def export(name: str, folder: str) -> None:
    """Writes frozen test sets, with a progress bar."""
    import tensorflow_datasets as tfds

    from stackformer import tasks
    from stackformer.data import dcf
    from stackformer.training.progress import Progress

    tfds.disable_progress_bar()
    for task in tasks.names() if name == "all" else (name,):
        dataset = dcf.builder(task, folder)
        ready = dataset.is_prepared()
        with Progress(enabled=not ready) as progress:
            dataset.on_written = counter(progress, task, dataset)
            # TFDS announces a download; there is none.
            with contextlib.redirect_stdout(io.StringIO()):
                path = dcf.export(dataset)
        print(f"{'already there' if ready else 'written'}, checked: {path}")


def main() -> None:
    """The command."""
    args = make_parser().parse_args()
    try:
        if args.task is None:
            if args.export is not None or args.answer is not None:
                raise UserError("--export and --answer need --task=NAME")
            list_tasks()
        elif args.task == "all" and args.export is None:
            raise UserError("--task=all goes with --export; without --task: all names")
        elif args.export is not None:
            export(args.task, str(cli.folder("--export", args.export)))
        elif args.answer is not None:
            from stackformer import tasks

            print(tasks.get(args.task).answer(args.answer))
        else:
            show(args.task, args)
    except ValueError as error:
        with cli.naming_flags(args):
            raise UserError(str(error)) from error
