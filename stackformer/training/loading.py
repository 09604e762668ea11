"""Trained models from a run's folder, whatever the experiment."""

from pathlib import Path
from typing import Any

import jax
from flax import nnx

from stackformer.training.checkpoints import Checkpoints
from stackformer.training.errors import UserError
from stackformer.training.mesh import Placement
from stackformer.training.problem import Problem
from stackformer.training.state import abstract_state, parameters


def load_parameters(
    out_dir: Path | str,
    problem: Problem,
    seeds: tuple[int, ...],
    placement: Placement,
) -> tuple[Any, int]:
    """Parameters of all seeds and the steps trained, newest whole checkpoint.

    Where the problem has a validation, they are the best ones.
    """
    folder = Path(out_dir) / "checkpoints"
    if not folder.is_dir():
        raise UserError(f"{out_dir} has no checkpoints yet; train first")
    checkpoints = Checkpoints(folder, read_only=True)
    try:
        state = checkpoints.restore(abstract_state(problem, seeds, placement))
    finally:
        checkpoints.close()
    if state is None:
        raise UserError(f"{folder} has no whole checkpoint; train first")
    return parameters(state), int(state.step)


def load_model(
    out_dir: Path | str,
    problem: Problem,
    seeds: tuple[int, ...],
    seed: int | None = None,
) -> nnx.Module:
    """The trained model of one seed, by default of the first."""
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        raise UserError(f"{out_dir} has the seeds {list(seeds)}, not {seed}")
    params, _ = load_parameters(out_dir, problem, seeds, Placement.create())
    params = jax.tree.map(lambda leaf: leaf[seeds.index(seed)], params)
    return nnx.merge(problem.graph, params)
