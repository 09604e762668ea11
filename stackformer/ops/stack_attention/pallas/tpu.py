"""The fused kernels for a TPU (Mosaic); interpreted they run on a CPU.

The grid is (strings, chunks). The stack lies in scratch memory (VMEM), which stays from
chunk to chunk; Pallas moves the values, the tops and the saved stacks in and out.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from stackformer.ops.stack_attention.pallas import steps
from stackformer.ops.stack_attention.pallas.outputs import output_like
from stackformer.ops.stack_attention.pallas.steps import Plan

# Bytes of the stacks of one chunk, which the backward pass holds in VMEM.
_BUDGET = 5 * 2**20
_LANES, _SUBLANES = 128, 8


def plan(length: int, features: int, depth: int, numbers: int) -> Plan:
    """Sizes for `length` steps: K = 16 where that fits into VMEM, otherwise 8."""
    block = -(-(depth + 1) // _SUBLANES) * _SUBLANES
    row = -(-features // _LANES) * _LANES * 4
    size = 16 if 16 * (block + _SUBLANES) * row <= _BUDGET and length > 8 else 8
    return Plan(depth, size, -(-length // size), block, 1, lambda: None, numbers)


def forward(
    actions: jax.Array,
    values: jax.Array,
    bottom: jax.Array,
    sizes: Plan,
    *,
    interpret: bool,
) -> tuple[jax.Array, jax.Array]:
    """Tops (B, C K, D), and the stack before each chunk (B, C, rows, D)."""
    batch, _, features = values.shape

    def kernel(actions, values, bottom, tops, saved, work):
        @pl.when(pl.program_id(1) == 0)
        def _():
            steps.fill(sizes, work, 0, bottom[0])

        steps.copy(sizes, work, 0, saved.at[0], 0)
        steps.forward_chunk(
            sizes, actions.at[0, 0], values.at[0], tops.at[0], work, chunk=0
        )

    saved = (batch, sizes.chunks, sizes.rows, features)
    return pl.pallas_call(
        kernel,
        grid=(batch, sizes.chunks),
        in_specs=[_actions(sizes), _values(sizes, features), _bottom(features)],
        out_specs=[_values(sizes, features), _saved(sizes, features)],
        out_shape=[output_like(values), output_like(values, saved)],
        scratch_shapes=[pltpu.VMEM((2, sizes.rows, features), values.dtype)],
        interpret=interpret,
        name="stack_attention",
    )(actions, values, bottom)


def backward(
    actions: jax.Array,
    values: jax.Array,
    d_tops: jax.Array,
    saved: jax.Array,
    sizes: Plan,
    *,
    interpret: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of actions (B, C, 1, A K), values (B, C K, D), bottom (B, 1, D)."""
    batch, _, features = values.shape
    last = sizes.chunks - 1

    def kernel(
        actions, values, d_tops, saved, d_actions, d_values, d_bottom, work, lam
    ):
        @pl.when(pl.program_id(1) == 0)
        def _():
            steps.fill(sizes, lam, 0, jnp.zeros((1, features), values.dtype))
            steps.fill(sizes, lam, 1, jnp.zeros((1, features), values.dtype))

        steps.copy(sizes, saved.at[0], 0, work, 0)
        steps.backward_chunk(
            sizes,
            actions.at[0, 0],
            values.at[0],
            d_tops.at[0],
            d_actions.at[0, 0],
            d_values.at[0],
            work,
            lam,
            chunk=0,
        )

        @pl.when(pl.program_id(1) == last)
        def _():
            d_bottom[0] = steps.column_sum(sizes, lam, 0, features)

    rows = sizes.rows
    return pl.pallas_call(
        kernel,
        grid=(batch, sizes.chunks),
        in_specs=[
            _actions(sizes, last),
            _values(sizes, features, last),
            _values(sizes, features, last),
            _saved(sizes, features, last),
        ],
        out_specs=[
            _actions(sizes, last),
            _values(sizes, features, last),
            _bottom(features),
        ],
        out_shape=[
            output_like(actions),
            output_like(values),
            output_like(values, (batch, 1, features)),
        ],
        scratch_shapes=[
            pltpu.VMEM((sizes.steps, rows, features), values.dtype),
            pltpu.VMEM((2, rows, features), values.dtype),
        ],
        interpret=interpret,
        name="stack_attention_backward",
    )(actions, values, d_tops, saved)


def _order(last: int | None, chunk: Any) -> Any:
    """Chunks from the first on, or from the last one back."""
    return chunk if last is None else last - chunk


def _actions(sizes: Plan, last: int | None = None) -> pl.BlockSpec:
    return pl.BlockSpec(
        (1, 1, 1, sizes.numbers * sizes.steps),
        lambda b, c: (b, _order(last, c), 0, 0),
        memory_space=pltpu.SMEM,
    )


def _values(sizes: Plan, features: int, last: int | None = None) -> pl.BlockSpec:
    return pl.BlockSpec(
        (1, sizes.steps, features), lambda b, c: (b, _order(last, c), 0)
    )


def _saved(sizes: Plan, features: int, last: int | None = None) -> pl.BlockSpec:
    return pl.BlockSpec(
        (1, 1, sizes.rows, features), lambda b, c: (b, _order(last, c), 0, 0)
    )


def _bottom(features: int) -> pl.BlockSpec:
    return pl.BlockSpec((1, 1, features), lambda b, c: (b, 0, 0))
