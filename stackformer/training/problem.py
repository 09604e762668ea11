"""What an experiment gives to the engine: a `Problem`, and nothing else."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

Array = jax.Array
PyTree = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """Sums over batches, computed on the device: the engine's only evaluation.

    Attributes:
      batch: `(data, index, *args) -> pytree`; `index` counts 0..num_batches-1 and is
        traced, so are the arrays in `args`. The leading axis of every leaf is the
        batch.
      count: `(model, batch) -> {name: sum}`; the engine adds these over the batches.
        Dropout is off, because no `rngs` reach the model.
      num_batches: how many batches there are.
      prepare: `(data, *args) -> data`, once before the first batch: what it returns is
        the `data` of every batch. None: the data as they are.
      one_by_one: seeds run one after the other where no mesh axis holds them, so that
        a `lax.cond` in `count` spares work.
    """

    batch: Callable[..., PyTree]
    count: Callable[[nnx.Module, PyTree], dict[str, Array]]
    num_batches: int
    prepare: Callable[..., PyTree] | None = None
    one_by_one: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Validation:
    """A measurement during training that chooses the best parameters.

    Attributes:
      every: steps between two validations (an epoch, for language modeling); the
        last step is followed by one too.
      measure: what is summed over the validation data.
      score: `{name: sums of shape (S,)} -> (S,)`, one number a seed, lower is better.
      patience: a seed stops after so many validations without improvement; the run
        ends when every seed has stopped. None: never stop early.
    """

    every: int
    measure: Measure
    score: Callable[[dict[str, Array]], Array]
    patience: int | None = None


def _first_bucket(step: Array, progress: PyTree) -> Array:
    return jnp.zeros_like(step)


def _no_progress(progress: PyTree, metrics: dict[str, Array], step: Array) -> PyTree:
    return progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """A model, its batches, its loss and its optimizer.

    All functions are traced by JAX and see a single seed: the engine adds the axis of
    seeds with `vmap`, the mesh with shardings, and the loop over steps with `scan`.

    Attributes:
      init: `key -> model`, an NNX module whose state is parameters only.
      batch: `(data, key, step, bucket, progress) -> pytree`. A pure function: `key`
        belongs to the seed and is the same at every step, `step` is traced, `bucket` is
        a Python value out of `buckets`. Leading axis of every leaf: the batch.
      loss: `(model, batch, rngs, progress) -> (loss, metrics)`; scalars. Pass `rngs` on
        to the model to switch dropout on.
      optimizer: an optax gradient transformation, clipping included.
      data: arrays that `batch` reads (text chunks, say); placed on the devices once.
      buckets: static shapes; each is compiled once, inside one training program.
      choose_bucket: `(step, progress) -> index into buckets`, traced, one for all
        seeds: here `progress` has the axis of seeds.
      progress: arrays that say how far a seed has come (a phase of training, say); they
        are this at first, belong to the state, and every function above sees them.
      advance: `(progress, metrics, step) -> progress` after step number `step`. Metrics
        whose names begin with "_" are for this alone and may have axes.
      validation: see `Validation`; with it the best parameters are kept in the state.
      jit_init: set to False when `init` reads files (pretrained weights).
    """

    init: Callable[[Array], nnx.Module]
    batch: Callable[[PyTree, Array, Array, Any, PyTree], PyTree]
    loss: Callable[
        [nnx.Module, PyTree, nnx.Rngs, PyTree], tuple[Array, dict[str, Array]]
    ]
    optimizer: optax.GradientTransformation
    data: PyTree = ()
    buckets: tuple[Any, ...] = (0,)
    choose_bucket: Callable[[Array, PyTree], Array] = _first_bucket
    progress: PyTree = ()
    advance: Callable[[PyTree, dict[str, Array], Array], PyTree] = _no_progress
    validation: Validation | None = None
    jit_init: bool = True

    @functools.cached_property
    def _abstract(self) -> tuple[nnx.GraphDef, PyTree]:
        return nnx.split(nnx.eval_shape(lambda: self.init(jax.random.key(0))))

    @property
    def graph(self) -> nnx.GraphDef:
        """The structure of the model without its numbers."""
        return self._abstract[0]

    @property
    def parameter_bytes(self) -> int:
        """Memory of the parameters of one seed."""
        leaves = jax.tree.leaves(self._abstract[1])
        return sum(x.size * x.dtype.itemsize for x in leaves)
