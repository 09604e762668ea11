"""Layers of equal shape as one loop, so that XLA compiles one of them, not all.

Parameters stay separate, layer by layer, where they are kept and trained; a forward
pass stacks them along a new first axis and scans over it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any
Layer = Callable[..., tuple[jax.Array, PyTree]]


def groups_of_equals(
    layers: Sequence[tuple[Any, PyTree]], given: Sequence[PyTree]
) -> list[range]:
    """Neighbours that one program serves.

    Args:
      layers: pairs (graph definition, parameters).
      given: a further input of each layer; equal shapes are equal.

    Example:
      >>> a, b = jnp.zeros(2), jnp.zeros(3)
      >>> groups_of_equals([("x", a), ("x", a), ("x", b)], [None] * 3)
      [range(0, 2), range(2, 3)]
    """
    kinds = [
        (graph, *_shapes(parameters), *_shapes(extra))
        for (graph, parameters), extra in zip(layers, given, strict=True)
    ]
    groups: list[range] = []
    for index, kind in enumerate(kinds):
        if groups and kinds[groups[-1].start] == kind:
            groups[-1] = range(groups[-1].start, index + 1)
        else:
            groups.append(range(index, index + 1))
    return groups


def scan_equals(
    layer: Layer, h: jax.Array, inputs: Sequence[tuple[PyTree, ...]]
) -> tuple[jax.Array, list[PyTree]]:
    """Runs `h, output = layer(parameters, h, *rest)` for each of the inputs in turn.

    Args:
      layer: pure function.
      h: what goes from layer to layer.
      inputs: (parameters, *rest) of each layer, all of one structure.

    Returns:
      The last h, and the output of each layer.
    """

    def apply(h, each):
        parameters, *rest = each
        return layer(parameters, h, *rest)

    first = jax.eval_shape(apply, h, inputs[0])[0] if len(inputs) > 1 else h
    if len(inputs) == 1 or (first.shape, first.dtype) != (h.shape, h.dtype):
        outputs = []
        for each in inputs:
            h, output = apply(h, each)
            outputs.append(output)
        return h, outputs

    leaves, structures = zip(*map(jax.tree.flatten, inputs), strict=True)
    columns = list(zip(*leaves, strict=True))
    # What all layers share is read in the loop, not copied for each.
    shared = [all(leaf is column[0] for leaf in column) for column in columns]
    own = [
        jnp.stack(column)
        for column, same in zip(columns, shared, strict=True)
        if not same
    ]

    def body(h, own):
        parts = iter(own)
        each = [
            column[0] if same else next(parts)
            for column, same in zip(columns, shared, strict=True)
        ]
        return apply(h, jax.tree.unflatten(structures[0], each))

    h, stacked = jax.lax.scan(body, h, own)
    count = len(inputs)
    outputs = [jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(count)]
    return h, outputs


def _shapes(tree: PyTree) -> tuple[Any, ...]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((jnp.shape(x), jnp.result_type(x)) for x in leaves)
