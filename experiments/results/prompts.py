"""What evaluation with ALM takes, with prompts read at once and symbol by symbol.

    python experiments/results/prompts.py

The shipped `rs-alm` on lengths 41, 47, .., 95; the ways take turns in one process, and
the fastest of three turns counts.
"""

import dataclasses
import sys
import time
from pathlib import Path

import jax
from flax import nnx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import stackformer
from stackformer.models.transformer.model import StackTransformer
from stackformer.problems.dcf.evaluation import LengthEvaluation
from stackformer.training.mesh import Placement

LENGTHS, STRINGS, TURNS = range(41, 101, 6), 128, 3


class SymbolBySymbol(StackTransformer):
    """A model that seems to have no `prefill`."""

    @property
    def prefill(self):
        raise AttributeError("prefill")


class Always(dict):
    """Whether decoding is spared where it can be, for every length the same."""

    def __init__(self, spare: bool):
        super().__init__({False: spare, True: spare})

    def __setitem__(self, hard: bool, spare: bool):
        pass


def main() -> None:
    """The command."""
    trained = stackformer.load("rs-alm")
    config = dataclasses.replace(trained.config, test_strings=STRINGS, seeds=(0,))
    at_once, params = nnx.split(trained.model)
    trained.model.__class__ = SymbolBySymbol
    one_by_one = nnx.split(trained.model)[0]
    params = jax.tree.map(lambda x: x[None], params)
    ways = {
        "prompts symbol by symbol": (one_by_one, False),
        "prompts at once": (at_once, False),
        "prompts at once, decoding spared": (at_once, True),
    }
    for hard in (False, True):
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        evaluations = {}
        for name, (graph, spare) in ways.items():
            evaluations[name] = LengthEvaluation(config, graph, Placement.create())
            evaluations[name]._spare = Always(spare)
        for turn in range(1 + TURNS):
            for name, evaluation in evaluations.items():
                begin = time.perf_counter()
                for length in LENGTHS:
                    evaluation.at_length(params, length, hard=hard)
                if turn:  # the first compiles
                    seconds[name].append(time.perf_counter() - begin)
        slowest = min(seconds["prompts symbol by symbol"])
        for name, turns in seconds.items():
            ratio = min(turns) / slowest
            print(
                f"{'hard' if hard else 'soft'} {name}: {min(turns):.2f} s, {ratio:.2f}"
            )


if __name__ == "__main__":
    main()
