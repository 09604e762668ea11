"""The fused kernels for a GPU (Triton).

The grid is (strings, groups of features). Triton has no scratch that can be read at an
offset, so the stack lies in global memory, where the caches hold it, and all threads of
a program wait for each other after each step.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from stackformer.ops.stack_attention.pallas import steps
from stackformer.ops.stack_attention.pallas.outputs import output_like
from stackformer.ops.stack_attention.pallas.steps import Plan

# Features of a program, and rows that it moves at once: powers of two, for Triton.
_FEATURES = 16
_ROWS = 128
_WARPS = 4


def plan(length: int, features: int, depth: int, numbers: int) -> Plan:
    """Sizes for `length` steps: about sqrt(length) chunks, K a power of two."""
    del features
    size = 8
    while size * size < length:
        size *= 2
    block = min(_ROWS, pl.next_power_of_2(depth + 1))
    blocks = -(-(depth + 1) // block)
    chunks = -(-length // size)
    return Plan(depth, size, chunks, block, blocks, plgpu.debug_barrier, numbers)


def forward(
    actions: jax.Array,
    values: jax.Array,
    bottom: jax.Array,
    sizes: Plan,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Tops (B, C K, D), and the stack before each chunk (B, C, rows, D padded)."""
    features = values.shape[-1]
    values, bottom = _pad_features(values), _pad_features(bottom)
    batch, length, padded = values.shape

    def kernel(actions, values, bottom, tops, saved, work):
        steps.fill(sizes, work, 0, bottom[...])

        def chunk(c, carry):
            steps.copy(sizes, work, 0, saved, c)
            steps.forward_chunk(sizes, actions, values, tops, work, chunk=c)
            return carry

        jax.lax.fori_loop(0, sizes.chunks, chunk, 0)

    rows = sizes.rows
    shapes = [(batch, n, rows, padded) for n in (sizes.chunks, 2)]
    tops, saved, _ = pl.pallas_call(
        kernel,
        grid=(batch, padded // _FEATURES),
        in_specs=[_actions(actions), _rows(length), _rows(1)],
        out_specs=[_rows(length), _stacks(shapes[0]), _stacks(shapes[1])],
        out_shape=[output_like(values), *(output_like(values, s) for s in shapes)],
        compiler_params=plgpu.CompilerParams(num_warps=_WARPS, num_stages=1),
        interpret=interpret,
        name="stack_attention",
    )(actions, values, bottom)
    return tops[..., :features], saved


def backward(
    actions: jax.Array,
    values: jax.Array,
    d_tops: jax.Array,
    saved: jax.Array,
    sizes: Plan,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of actions (B, C, 1, A K), values (B, C K, D), bottom (B, 1, D)."""
    features = values.shape[-1]
    values, d_tops = _pad_features(values), _pad_features(d_tops)
    batch, length, padded = values.shape
    groups = padded // _FEATURES

    def kernel(
        actions, values, d_tops, saved, d_actions, d_values, d_bottom, work, lam
    ):
        zero = jnp.zeros((1, _FEATURES), values.dtype)
        steps.fill(sizes, lam, 0, zero)
        steps.fill(sizes, lam, 1, zero)

        def chunk(i, carry):
            c = sizes.chunks - 1 - i
            steps.copy(sizes, saved, c, work, 0)
            steps.backward_chunk(
                sizes, actions, values, d_tops, d_actions, d_values, work, lam, chunk=c
            )
            return carry

        jax.lax.fori_loop(0, sizes.chunks, chunk, 0)
        d_bottom[...] = steps.column_sum(sizes, lam, 0, _FEATURES)

    rows = sizes.rows
    work, lam = ((batch, n, rows, padded) for n in (sizes.steps, 2))
    # Each group of features has its own part of the gradient of the actions.
    parts = (batch, groups, sizes.chunks, sizes.numbers * sizes.steps)
    d_parts, d_values, d_bottom, _, _ = pl.pallas_call(
        kernel,
        grid=(batch, groups),
        in_specs=[
            _actions(actions),
            _rows(length),
            _rows(length),
            _stacks(saved.shape),
        ],
        out_specs=[
            pl.BlockSpec((None, None, *parts[2:]), lambda b, g: (b, g, 0, 0)),
            _rows(length),
            _rows(1),
            _stacks(work),
            _stacks(lam),
        ],
        out_shape=[
            output_like(values, parts),
            output_like(values),
            output_like(values, (batch, 1, padded)),
            output_like(values, work),
            output_like(values, lam),
        ],
        compiler_params=plgpu.CompilerParams(num_warps=_WARPS, num_stages=1),
        interpret=interpret,
        name="stack_attention_backward",
    )(actions, values, d_tops, saved)
    d_actions = d_parts.sum(1)[:, :, None]
    return d_actions, d_values[..., :features], d_bottom[..., :features]


def _pad_features(array: jax.Array) -> jax.Array:
    more = -array.shape[-1] % _FEATURES
    return jnp.pad(array, ((0, 0), (0, 0), (0, more)))


def _actions(actions: jax.Array) -> pl.BlockSpec:
    _, chunks, _, numbers = actions.shape
    return pl.BlockSpec((None, chunks, None, numbers), lambda b, g: (b, 0, 0, 0))


def _rows(length: int) -> pl.BlockSpec:
    return pl.BlockSpec((None, length, _FEATURES), lambda b, g: (b, 0, g))


def _stacks(shape: tuple[int, ...]) -> pl.BlockSpec:
    return pl.BlockSpec((None, *shape[1:3], _FEATURES), lambda b, g: (b, 0, 0, g))
