"""The train step and the block of steps that runs in one dispatch."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.typing import ArrayLike

from stackformer.training.mesh import Placement
from stackformer.training.problem import Problem
from stackformer.training.state import Best, TrainState, seed_key, shardings_of

Array = jax.Array
PyTree = Any
Block = Callable[[TrainState, PyTree, ArrayLike], tuple[TrainState, dict[str, Array]]]


def gradient(
    problem: Problem,
    graph: nnx.GraphDef,
    placement: Placement,
    bucket: Any,
    operands: tuple[PyTree, PyTree, tuple[Array, Array], Array, PyTree],
) -> tuple[PyTree, dict[str, Array]]:
    """Gradient and metrics of one seed at one step, in one bucket.

    The batch and the dropout mask are functions of seed, step and the seed's progress
    alone, by their two keys.
    """
    params, data, (strings, dropout), step, progress = operands
    batch = problem.batch(data, strings, step, bucket, progress)
    batch = placement.constrain_batch(batch)

    def loss_of(params: PyTree) -> tuple[Array, dict[str, Array]]:
        model = nnx.merge(graph, params)
        return problem.loss(model, batch, nnx.Rngs(dropout=dropout), progress)

    (loss, metrics), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    return grads, {"loss": loss, **metrics}


def make_block(
    problem: Problem,
    graph: nnx.GraphDef,
    placement: Placement,
    abstract: TrainState,
    num_steps: int,
) -> Block:
    """Compiles up to `num_steps` steps into one program with a donated state.

    The program is `(state, data, stop) -> (state, history)`: a `lax.scan` over
    `num_steps` iterations of which those at `state.step >= stop` do nothing, so that
    one program serves blocks of every length. `history` has arrays of shape
    (num_steps, S); rows that did nothing are zero.

    Inside the scan a `lax.switch` picks the step's bucket: every bucket is compiled
    once, in this one program, and each step draws its own bucket.
    """

    def branch(bucket: Any) -> Callable[..., Any]:
        def one_seed(*operands: Any) -> Any:
            return gradient(problem, graph, placement, bucket, operands)

        return jax.vmap(one_seed, in_axes=(0, None, 0, None, 0), spmd_axis_name="seeds")

    branches = [branch(bucket) for bucket in problem.buckets]

    def keys_of(key: Array, step: Array) -> tuple[Array, Array]:
        key = seed_key(key)
        dropout = jax.random.fold_in(jax.random.fold_in(key, 2), step)
        return jax.random.fold_in(key, 1), dropout

    def one_step(state: TrainState, data: PyTree) -> tuple[TrainState, dict]:
        # Outside of the buckets: compiled once. So are the updates below.
        keys = jax.vmap(keys_of, in_axes=(0, None))(state.keys, state.step)
        operands = (state.params, data, keys, state.step, state.progress)
        if len(branches) == 1:
            grads, metrics = branches[0](*operands)
        else:
            index = problem.choose_bucket(state.step, state.progress)
            grads, metrics = jax.lax.switch(index, branches, *operands)

        def update(grads: PyTree, opt_state: PyTree, params: PyTree) -> Any:
            norm = optax.tree.norm(grads)
            updates, opt_state = problem.optimizer.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, norm

        params, opt_state, norm = jax.vmap(update, spmd_axis_name="seeds")(
            grads, state.opt_state, state.params
        )
        metrics["grad_norm"] = norm
        progress = jax.vmap(problem.advance, in_axes=(0, 0, None))(
            state.progress, metrics, state.step
        )
        metrics = {k: x for k, x in metrics.items() if not k.startswith("_")}
        state = dataclasses.replace(
            state,
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            progress=progress,
        )
        return state, metrics

    def block(state: TrainState, data: PyTree, stop: Array) -> tuple[TrainState, dict]:
        zeros = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
            jax.eval_shape(one_step, state, data)[1],
        )

        def body(state: TrainState, _: None) -> tuple[TrainState, dict]:
            return jax.lax.cond(
                state.step < stop,
                lambda state: one_step(state, data),
                lambda state: (state, zeros),
                state,
            )

        return jax.lax.scan(body, state, None, length=num_steps)

    return jax.jit(
        block,
        donate_argnums=0,
        out_shardings=(shardings_of(abstract), placement.replicated),
    )


@jax.jit
def update_best(state: TrainState, score: Array, patience: Array) -> TrainState:
    """Takes the parameters of the seeds whose validation score improved.

    A seed that has been stale for `patience` validations has stopped: its best
    parameters stay, as they would if it had been trained alone.
    """
    best = state.best
    assert best is not None  # of a problem with validation
    better = (score < best.score) & (best.stale < patience)

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(better.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

    best = Best(
        params=jax.tree.map(choose, state.params, best.params),
        score=jnp.where(better, score, best.score),
        step=jnp.where(better, state.step, best.step),
        stale=jnp.where(better, 0, best.stale + 1),
    )
    return dataclasses.replace(state, best=best)
