"""The evaluation: sums over batches, on the device, for all seeds at once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer.training.mesh import Placement
from stackformer.training.problem import Measure

Array = jax.Array
PyTree = Any


def make_measure(
    measure: Measure, graph: nnx.GraphDef, placement: Placement
) -> Callable[..., dict[str, Array]]:
    """Compiles `(params, data, *args) -> {name: sums of shape (S,)}`.

    `params` carries the axis of seeds; all seeds see the same batches. The batches
    run one after the other inside the program, so that memory does not grow with
    their number.
    """

    def sums(params: PyTree, data: PyTree, *args: Array) -> dict[str, Array]:
        if measure.prepare is not None:
            data = measure.prepare(data, *args)

        def one_batch(index: Array) -> dict[str, Array]:
            batch = placement.constrain_batch(measure.batch(data, index, *args))

            def one_seed(params: PyTree) -> dict[str, Array]:
                return measure.count(nnx.merge(graph, params), batch)

            if jax.tree.leaves(params)[0].shape[0] > 1:
                if measure.one_by_one and not placement.splits_seeds:
                    return jax.lax.map(one_seed, params)
                return jax.vmap(one_seed, spmd_axis_name="seeds")(params)
            # Under `vmap` decoding copies its caches in every step on a CPU, which
            # a single seed can be spared.
            only = one_seed(jax.tree.map(lambda leaf: leaf[0], params))
            return jax.tree.map(lambda leaf: leaf[None], only)

        def body(total: dict[str, Array], index: Array) -> tuple[dict, None]:
            return jax.tree.map(jnp.add, total, one_batch(index)), None

        shapes = jax.eval_shape(one_batch, jnp.zeros((), jnp.int32))
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        indices = jnp.arange(measure.num_batches, dtype=jnp.int32)
        return jax.lax.scan(body, zeros, indices)[0]

    return jax.jit(sums, out_shardings=placement.replicated)
