"""Measure the library: kernel, train step, decoding, task samplers, frames.

Everything that is compared is timed in one process, compiled ahead, warmed up, taking
turns; times are medians. A kernel that differs from the reference is not timed.
Softmax attention is causal, on given q, k and v without projections, in two versions
(jax.nn.dot_product_attention; products and a softmax), and ratios are to the faster.
"""

import argparse
import contextlib
import json
from pathlib import Path

from stackformer.commands import cli
from stackformer.training.errors import UserError
from stackformer.training.records import write_text

LENGTHS = (81, 129, 201, 513, 1025, 2049)
PARTS = ("kernel", "train", "decode", "tasks", "frames")
EXAMPLES = [
    "python -m experiments.benchmark --quick",
    "python -m experiments.benchmark kernel",
    "python -m experiments.benchmark kernel --lengths=81,513",
    "python -m experiments.benchmark train decode tasks frames",
]


def make_parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = cli.parser("benchmark", (__doc__ or "").strip(), EXAMPLES)
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"what to measure, out of {', '.join(PARTS)}; default: all of them "
        "(with --quick: the kernel)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer sizes and kernels: two minutes on two cores",
    )
    parser.add_argument(
        "--lengths",
        type=cli.integers,
        metavar="T,T,...",
        help="kernel: only these numbers of positions, out of "
        + ",".join(map(str, LENGTHS)),
    )
    parser.add_argument(
        "--repeats",
        type=cli.positive,
        help="turns of each contestant; default 15, with --quick 5",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/benchmark"),
        metavar="DIR",
        help="for benchmark.json and kernel.png; default runs/benchmark",
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs the chosen parts, prints tables, writes the JSON file and the plot."""
    args = make_parser().parse_args(argv)
    for part in args.parts:
        if part not in PARTS:
            raise UserError(
                f"PART should be one of {', '.join(PARTS)}, but got {part!r}."
            )
    parts = args.parts or (PARTS[:1] if args.quick else PARTS)
    repeats = args.repeats or (5 if args.quick else 15)
    wrong = sorted(set(args.lengths or ()) - set(LENGTHS))
    if wrong:
        raise UserError(
            f"--lengths should be out of {', '.join(map(str, LENGTHS))}, but got "
            f"{wrong[0]}"
        )
    if args.lengths and "kernel" not in parts:
        raise UserError(f"--lengths is for the part kernel, but got {', '.join(parts)}")
    cli.folder("--out", args.out)

    import jax

    # A compilation is measured, not read from a cache.
    jax.config.update("jax_enable_compilation_cache", False)
    from stackformer.commands.benchmark.timing import machine

    record = {"machine": machine(), "quick": args.quick}
    seconds = 10.0 if args.quick else 30.0
    if "kernel" in parts:
        from stackformer.commands.benchmark import kernel, plot
        from stackformer.ops import describe_dispatch

        print(describe_dispatch(), end="\n\n")
        record["kernel"] = kernel.run(
            quick=args.quick, repeats=repeats, lengths=args.lengths
        )
        plot.draw(record["kernel"]["shapes"], args.out / "kernel.png")
        if rows := record["kernel"]["dispatch"]:
            table = {jax.default_backend(): rows}
            write_text(args.out / "dispatch.json", json.dumps(table, indent=1) + "\n")
            print(f"\nwhat the dispatch table should say here:\n{json.dumps(table)}")
            print(f"to use it: STACKFORMER_DISPATCH={args.out / 'dispatch.json'}")
    if "train" in parts:
        from stackformer.commands.benchmark import models

        record["train"] = models.train_step(repeats=repeats, seconds=seconds)
    if "decode" in parts:
        from stackformer.commands.benchmark import models, steps

        record["decode"] = models.decoding(length=100, repeats=repeats, seconds=seconds)
        record["steps"] = steps.stack_steps(repeats=repeats, seconds=seconds)
    if "tasks" in parts:
        from stackformer.commands.benchmark import samplers

        record["tasks"] = samplers.run(repeats=3 * repeats, seconds=seconds)
    if "frames" in parts:
        from stackformer.commands.benchmark import frames

        record["frames"] = frames.run(repeats=repeats, seconds=seconds)
    path = args.out / "benchmark.json"
    old = {}
    with contextlib.suppress(OSError, ValueError):  # none yet, or damaged
        old = json.loads(path.read_text(encoding="utf-8"))
    old = old if isinstance(old, dict) else {}
    write_text(path, json.dumps(old | record, indent=1) + "\n")
    print(f"\nwritten: {path}")
    return 0
