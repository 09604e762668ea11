"""Put a trained model into the package, for `stackformer.load`.

python -m experiments.ship --out=runs/rs --name=rs

writes stackformer/trained/NAME.safetensors: the parameters of one seed, with the run's
configuration, command, commit and scores.
"""

import argparse
import re
import subprocess
from pathlib import Path

from stackformer.commands import cli
from stackformer.training.errors import UserError

EXAMPLES = [
    "python -m experiments.ship --out=runs/rs --name=rs",
    "python -m experiments.ship --out=runs/ma --seed=3 --name=ma",
    "python -m experiments.ship --list",
]


def make_parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = cli.parser("ship", (__doc__ or "").split("\n\n")[0], EXAMPLES)
    parser.add_argument("--out", metavar="RUN", help="a run of experiments.dcf")
    parser.add_argument("--name", help="what `stackformer.load` calls it")
    parser.add_argument(
        "--seed", type=cli.count, default=0, help="which seed of the run, default 0"
    )
    parser.add_argument(
        "--list", action="store_true", help="show the models that are there, and end"
    )
    return parser


def show() -> None:
    """Prints a table of the shipped models."""
    from stackformer.problems.dcf import shipping

    for name in shipping.shipped():
        facts = shipping.facts(name)
        scores = ", ".join(
            f"{key} {100 * value:.2f}" for key, value in facts["scores"].items()
        )
        size = (shipping.folder() / f"{name}.safetensors").stat().st_size / 2**20
        print(f"{name:<8} {size:.2f} MiB  seed {facts['seed']}  {scores}")


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        revision = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            cwd=Path(__file__).parent,
        )
    except OSError:  # there is no git
        return "unknown"
    return revision.stdout.strip() or "unknown"


def main() -> int:
    """The command."""
    args = make_parser().parse_args()
    if args.list:
        show()
        return 0
    if not args.out or not args.name:
        raise UserError("--out and --name are required; see --help")
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", args.name):
        raise UserError(
            "--name should be small letters, digits and dashes, such as sm-alm, but "
            f"got {args.name!r}"
        )
    if not Path(args.out).is_dir():
        raise UserError(
            f"--out should be the folder of a run, but {args.out} does not exist"
        )
    from stackformer.problems.dcf import shipping

    path = shipping.folder() / f"{args.name}.safetensors"
    commit = _commit()
    shipping.save(Path(args.out), path, seed=args.seed, commit=commit)
    print(f"wrote {path}")
    show()
    return 0
