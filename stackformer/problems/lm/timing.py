"""Time and memory of one training step, with the stack and without it."""

import concurrent.futures
import dataclasses
import multiprocessing
import statistics
import sys
import time
from typing import Any

from stackformer.problems.lm.config import LMConfig


def time_step(config: LMConfig, *, repeats: int = 5) -> dict[str, Any]:
    """Measures the same configuration with and without its stacks.

    Each is measured in a process of its own, so that the largest resident size is its
    own too. The batch is random tokens; the step is the engine's.

    Args:
      config: of the run with stacks.
      repeats: steps after the first, of which the median counts.

    Returns:
      {"stack": {...}, "vanilla": {...}, "stack_share": share of a step's time that
      the stacks take, (stack - vanilla) / stack}.
    """
    vanilla = dataclasses.replace(config, model={**config.model, "stack": False})
    results = {}
    for name, variant in (("vanilla", vanilla), ("stack", config)):
        with concurrent.futures.ProcessPoolExecutor(
            1, mp_context=multiprocessing.get_context("spawn")
        ) as pool:
            results[name] = pool.submit(_measure, variant, repeats).result()
    seconds = {name: result["seconds"] for name, result in results.items()}
    share = (seconds["stack"] - seconds["vanilla"]) / seconds["stack"]
    return {**results, "stack_share": share}


def _measure(config: LMConfig, repeats: int) -> dict[str, Any]:
    import jax
    import numpy as np

    from stackformer.problems.lm.problem import make_problem
    from stackformer.training.mesh import Placement
    from stackformer.training.state import abstract_state, create_state
    from stackformer.training.step import make_block

    random = np.random.default_rng(0)
    shape = (config.batch_size, config.length)
    tokens = random.integers(5, config.model["vocab_size"], shape, np.int32)
    chunks = {split: tokens for split in ("train", "valid", "test")}
    # No copy of the best parameters: it is the step that is measured.
    problem = dataclasses.replace(make_problem(config, chunks), validation=None)
    placement = Placement.create()
    abstract = abstract_state(problem, config.seeds, placement)
    state = create_state(problem, config.seeds, placement)
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params)) // len(
        config.seeds
    )
    block = make_block(problem, problem.graph, placement, abstract, 1)
    data = jax.device_put(problem.data, placement.replicated)
    taken, losses = [], []
    for step in range(1 + repeats):
        begin = time.perf_counter()
        state, history = block(state, data, np.int32(step + 1))
        losses.append(float(history["loss"][0, 0]))
        taken.append(time.perf_counter() - begin)
    return {
        "parameters": int(count),
        "first_step_seconds": taken[0],
        "seconds": statistics.median(taken[1:]),
        "all_seconds": taken[1:],
        "loss": losses[-1],
        "peak_gib": _peak_bytes() / 2**30,
    }


def _peak_bytes() -> int:
    """The largest resident size of this process so far; 0 where it is not known."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
