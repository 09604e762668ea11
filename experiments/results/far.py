"""Hard scores of a run on strings far longer than `--eval_only` has time for.

    python experiments/results/far.py --out=runs/rs --first=401 --last=500 --every=20

measures these lengths alone (401, 421, .., 481), with the most probable actions, and
writes far-401-500x16.json into the run's folder. The strings are those that
`experiments.dcf --eval_only --test_length=500` draws.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

import numpy as np
import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from stackformer.problems import dcf
from stackformer.problems.dcf.evaluation import LengthEvaluation
from stackformer.training.loading import load_parameters
from stackformer.training.mesh import Placement
from stackformer.training.records import write_json


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of a run")
    parser.add_argument("--first", type=int, default=401, help="default 401")
    parser.add_argument("--last", type=int, default=500, help="default 500")
    parser.add_argument("--every", type=int, default=1, help="every Nth length")
    parser.add_argument("--strings", type=int, default=16, help="of a length")
    args = parser.parse_args()
    config = dataclasses.replace(
        dcf.load_config(args.out), test_length=args.last, test_strings=args.strings
    )
    problem, placement = dcf.make_problem(config), Placement.create()
    params, step = load_parameters(args.out, problem, config.seeds, placement)
    evaluation = LengthEvaluation(config, problem.graph, placement)
    lengths = range(args.first, args.last + 1, args.every)
    tokens = {
        n: evaluation.at_length(params, n, hard=True)[0]
        for n in tqdm.tqdm(lengths, "lengths")
    }
    scores = np.mean(list(tokens.values()), axis=0)
    for seed, score in zip(config.seeds, scores, strict=True):
        print(f"seed {seed}: {100 * score:.2f}")
    name = f"far-{args.first}-{args.last}x{args.strings}.json"
    runs = [
        {
            "seed": seed,
            "score_hard": float(scores[i]),
            "per_length_hard": {str(n): float(tokens[n][i]) for n in lengths},
        }
        for i, seed in enumerate(config.seeds)
    ]
    content = {
        "task": config.task,
        "mode": config.mode,
        "steps": step,
        "lengths": list(lengths),
        "test_strings": args.strings,
        "command": " ".join(["python", *sys.argv]),
        "runs": runs,
    }
    write_json(args.out / name, content)


if __name__ == "__main__":
    main()
