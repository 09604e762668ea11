"""The training state: everything that a checkpoint holds."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from stackformer.training.mesh import Placement
from stackformer.training.problem import Problem

Array = jax.Array
PyTree = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Best:
    """The best parameters so far, by validation score (lower is better).

    Attributes:
      params: like `TrainState.params`.
      score: (S,) float32, infinite before the first validation.
      step: (S,) int32, the step of the best parameters.
      stale: (S,) int32, validations since the last improvement.
    """

    params: PyTree
    score: Array
    step: Array
    stale: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """S runs, one a seed, side by side.

    Attributes:
      step: () int32, steps done.
      params: nested dict of arrays, each with a leading axis S.
      opt_state: the optimizer's state, leading axis S.
      keys: (S, 2) uint32, data of each seed's key.
      best: None where the problem has no validation.
      progress: how far each seed has come (`Problem.progress`), leading axis S.
    """

    step: Array
    params: PyTree
    opt_state: PyTree
    keys: Array
    best: Best | None = None
    progress: PyTree = ()


def _init_one(problem: Problem, key: Array) -> PyTree:
    return nnx.to_pure_dict(nnx.state(problem.init(key)))


def _complete(problem: Problem, params: PyTree, keys: Array | np.ndarray) -> TrainState:
    seeds = keys.shape[0]
    best = None
    if problem.validation is not None:
        best = Best(
            params=jax.tree.map(jnp.copy, params),
            score=jnp.full((seeds,), jnp.inf, jnp.float32),
            step=jnp.zeros((seeds,), jnp.int32),
            stale=jnp.zeros((seeds,), jnp.int32),
        )
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=jax.vmap(problem.optimizer.init)(params),
        keys=jnp.asarray(keys),
        best=best,
        progress=jax.tree.map(
            lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], seeds, axis=0),
            problem.progress,
        ),
    )


def _fresh(problem: Problem, keys: Array | np.ndarray) -> TrainState:
    init_keys = jax.vmap(lambda key: jax.random.fold_in(seed_key(key), 0))(keys)
    params = jax.vmap(lambda key: _init_one(problem, key))(init_keys)
    return _complete(problem, params, keys)


def seed_key(data: Array) -> Array:
    """The typed key of a row of `TrainState.keys`."""
    return jax.random.wrap_key_data(data, impl="threefry2x32")


def _seed_keys(seeds: tuple[int, ...]) -> np.ndarray:
    keys = [jax.random.key(seed, impl="threefry2x32") for seed in seeds]
    return np.stack([np.asarray(jax.random.key_data(key)) for key in keys])


def shardings_of(state: PyTree) -> PyTree:
    """The sharding of every leaf."""
    return jax.tree.map(lambda leaf: leaf.sharding, state)


def abstract_state(
    problem: Problem, seeds: tuple[int, ...], placement: Placement
) -> TrainState:
    """Shapes, dtypes and shardings of the state: what a checkpoint is read into."""
    placement.check_seeds(len(seeds))
    state = jax.eval_shape(lambda keys: _fresh(problem, keys), _seed_keys(seeds))

    def placed(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sharding = placement.per_seed(leaf) if leaf.ndim else placement.replicated
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(placed, state)


def create_state(
    problem: Problem, seeds: tuple[int, ...], placement: Placement
) -> TrainState:
    """A fresh state. Each seed's part depends on that seed alone.

    The parameters come from `fold_in(key(seed), 0)`; batches and dropout use other
    branches of the same key, see `step.py`.
    """
    keys = _seed_keys(seeds)
    shardings = shardings_of(abstract_state(problem, seeds, placement))
    if problem.jit_init:
        return jax.jit(lambda: _fresh(problem, keys), out_shardings=shardings)()
    init_keys = [jax.random.fold_in(seed_key(key), 0) for key in keys]
    models = [_init_one(problem, key) for key in init_keys]
    params = jax.tree.map(lambda *leaves: np.stack(leaves), *models)
    params = jax.tree.map(jax.device_put, params, shardings.params)
    complete = jax.jit(
        lambda params: _complete(problem, params, keys), out_shardings=shardings
    )
    return complete(params)


def parameters(state: TrainState) -> PyTree:
    """The parameters to evaluate: the best where validation chose, else the last."""
    return state.params if state.best is None else state.best.params
