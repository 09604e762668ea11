"""Compile the library for a device that need not be there, and report what comes out.

    python -m experiments.compile --target=v5e:2x2 --what=kernel

XLA compiles for described TPUs and GPUs. The table says what compiles, how long that
took here, memory a device, communication, and a static cost: an estimate by the
compiler. It gives no running times, since nothing ran.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from stackformer.checks import MODES
from stackformer.commands import cli
from stackformer.commands.compile.targets import TARGETS, devices_of, platform_of
from stackformer.training.errors import UserError
from stackformer.training.records import write_json

WHAT = ("kernel", "train", "decode")
EXAMPLES = [
    "python -m experiments.compile --target=v5e:2x2",
    "python -m experiments.compile --target=h100 --what=kernel --length=513",
    "python -m experiments.compile --target=v5e:4x4 --what=train --mesh=seeds:4,data:4 "
    "--seeds=0,1,2,3",
]


def make_parser() -> argparse.ArgumentParser:
    """The flags."""
    from stackformer.nn.stacks import STACKS

    parser = cli.parser("compile", (__doc__ or "").strip(), EXAMPLES)
    parser.add_argument(
        "--target", required=True, choices=TARGETS, help="what to compile for"
    )
    parser.add_argument(
        "--what", choices=WHAT, help="which programs; default: all of them"
    )
    parser.add_argument("--task", default="RS", help="train, decode; default RS")
    parser.add_argument(
        "--mode", choices=MODES, default="mlm", help="train; default mlm"
    )
    parser.add_argument(
        "--stack",
        choices=tuple(STACKS),
        help="the kind of stack; default: the task's own",
    )
    parser.add_argument(
        "--seeds", type=cli.integers, default=(0,), help="train; default 0"
    )
    parser.add_argument(
        "--mesh", metavar="AXIS:SIZE,...", help="train; default: all devices on data"
    )
    parser.add_argument(
        "--model_config",
        type=cli.assignments,
        default={},
        metavar="NAME=VALUE,...",
        help="train, decode; over the model's own configuration, such as "
        "scan_layers=False",
    )
    parser.add_argument(
        "--length", type=cli.positive, default=2049, help="kernel: T, default 2049"
    )
    parser.add_argument(
        "--batch", type=cli.positive, default=2, help="kernel: B, default 2"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="for the same as JSON; default runs/compile/TARGET.json",
    )
    return parser


def programs(args: argparse.Namespace, devices: list[Any]) -> list[Any]:
    """What the flags ask for."""
    from stackformer.commands.compile import programs

    wanted = WHAT if args.what is None else (args.what,)
    found: list[Any] = []
    if "kernel" in wanted:
        found += programs.kernels(devices, batch=args.batch, length=args.length)
    if args.what != "kernel":
        config = programs.quick(
            task=args.task, stack=args.stack, mode=args.mode, seeds=args.seeds
        )
        sizes = config.model_config | args.model_config
        config = dataclasses.replace(config, model_config=sizes)
        if "train" in wanted:
            found += programs.train(devices, config, mesh=args.mesh)
        if "decode" in wanted:
            found += programs.decoding(devices, config)
    return found


def main(argv: list[str] | None = None) -> int:
    """Prints the table and writes the JSON file; 1 where something did not compile."""
    args = make_parser().parse_args(argv)
    with cli.naming_flags(args):
        return report(args)


def report(args: argparse.Namespace) -> int:
    """Compiles what the flags ask for."""
    out = args.out or Path("runs/compile") / f"{args.target.replace(':', '_')}.json"
    cli.folder("--out", out.parent)
    if out.is_dir():
        raise UserError(f"--out should be a file, but {out} is a folder")
    devices = devices_of(args.target)
    import jax

    from stackformer.commands.compile.report import compile_all
    from stackformer.ops.stack_attention.dispatch import assume_backend

    # A compilation is measured, not read from a cache.
    jax.config.update("jax_enable_compilation_cache", False)
    platform = platform_of(args.target)
    print(f"{args.target}: {devices[0].device_kind}, {len(devices)} described devices")
    with assume_backend(platform):
        rows = compile_all(programs(args, devices), platform)
    record = {
        "target": args.target,
        "jax": jax.__version__,
        "note": "static: estimates by the compiler, nothing was run",
        "programs": [dataclasses.asdict(row) for row in rows],
    }
    write_json(out, record)
    print(f"\nwritten: {out}")
    return 1 if any(row.error for row in rows) else 0
