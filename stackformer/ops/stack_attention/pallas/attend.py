"""Stack attention as one kernel: the stack stays in fast memory for all steps.

The recurrence of `recurrent.py` on a stack of H vectors. One program serves a string
(on a GPU: a string and some of its features) and walks through all positions, so there
is one launch where a scan has one or more for each position. The forward pass keeps
the stack before each chunk of K steps; the backward pass computes a chunk again.
"""

import functools
import importlib
from types import ModuleType

import jax
import jax.numpy as jnp

from stackformer.ops.stack_attention.dispatch import current_backend
from stackformer.ops.stack_attention.form import STATES, Form, Options
from stackformer.ops.stack_attention.recurrent import reachable_depth


def stack_attention_pallas(
    actions: jax.Array,
    values: jax.Array,
    *,
    max_depth: int | None = None,
    backend: str | None = None,
) -> jax.Array:
    """Computes alpha @ values without alpha.

    Args:
      actions: probabilities, shape (..., T, 3).
      values: shape (..., T, D), the same dtype, float32.
      max_depth: the number of elements that the stack remembers, or None.
      backend: "tpu" (Mosaic), "gpu" (Triton), or "cpu", the TPU's kernel interpreted;
        None is the present one.

    Returns:
      shape (..., T, D).
    """
    *batch, length, features = values.shape
    if length == 1 or values.size == 0:
        return values
    depth = reachable_depth(length, max_depth=max_depth)
    flat = actions.reshape(-1, length, 3), values.reshape(-1, length, features)
    tops: jax.Array = _attend(*flat, depth, backend or current_backend())
    return tops.reshape(*batch, length, features)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _attend(actions, values, depth, backend):
    return _forward(actions, values, depth, backend)[0]


def _forward(actions, values, depth, backend):
    kernels = _kernels(backend)
    sizes = kernels.plan(values.shape[1] - 1, values.shape[2], depth)
    by_chunk, pushed = _pad(actions, values, sizes.steps * sizes.chunks, sizes.steps)
    bottom = values[:, :1]
    interpret = backend == "cpu"
    tops, saved = kernels.forward(by_chunk, pushed, bottom, sizes, interpret=interpret)
    tops = jnp.concatenate([bottom, tops[:, : values.shape[1] - 1]], axis=1)
    return tops, (actions, values, saved)


def _backward(depth, backend, residuals, d_tops):
    actions, values, saved = residuals
    kernels = _kernels(backend)
    length = values.shape[1]
    sizes = kernels.plan(length - 1, values.shape[2], depth)
    padded = sizes.steps * sizes.chunks
    by_chunk, pushed = _pad(actions, values, padded, sizes.steps)
    d_padded = jnp.pad(d_tops[:, 1:], ((0, 0), (0, padded - length + 1), (0, 0)))
    d_chunks, d_pushed, d_bottom = kernels.backward(
        by_chunk, pushed, d_padded, saved, sizes, interpret=backend == "cpu"
    )
    d_actions = d_chunks.reshape(actions.shape[0], padded, 3)[:, : length - 1]
    d_actions = jnp.pad(d_actions, ((0, 0), (1, 0), (0, 0)))
    d_first = d_tops[:, :1] + d_bottom
    return d_actions, jnp.concatenate([d_first, d_pushed[:, : length - 1]], axis=1)


_attend.defvjp(_forward, _backward)


def _kernels(backend: str) -> ModuleType:
    """Imported late: Pallas takes a while, and few need it."""
    name = "gpu" if backend == "gpu" else "tpu"
    return importlib.import_module(f"stackformer.ops.stack_attention.pallas.{name}")


def _pad(actions, values, padded, steps):
    """Actions (B, C, 1, 3 K) and values (B, C K, D) of the steps; no-ops at the end."""
    batch, length, _ = actions.shape
    more = padded - length + 1
    noop = jnp.zeros((1, 1, 3), actions.dtype).at[..., 2].set(1.0)
    rest = jnp.broadcast_to(noop, (batch, more, 3))
    by_step = jnp.concatenate([actions[:, 1:], rest], axis=1)
    pushed = jnp.pad(values[:, 1:], ((0, 0), (0, more), (0, 0)))
    return by_step.reshape(batch, padded // steps, 1, 3 * steps), pushed


def _refuses(length: int, options: Options) -> str | None:
    del length
    return options.unsupported("chunk_size", "max_pops", "segment_ids", *STATES)


def _attend_to(
    actions: jax.Array, values: jax.Array, options: Options, *_: None
) -> tuple[jax.Array, None]:
    top = stack_attention_pallas(actions, values, max_depth=options.max_depth)
    return top, None


FORM = Form(refuses=_refuses, attend_to=_attend_to)
