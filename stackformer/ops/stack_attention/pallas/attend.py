"""Stack attention as one kernel: the stack stays in fast memory for all steps.

The recurrence of `recurrent.py` on a stack of H vectors. One program serves a string
(on a GPU: a string and some of its features) and walks through all positions, so there
is one launch where a scan has one or more for each position. The forward pass keeps
the stack before each chunk of K steps; the backward pass computes a chunk again.

Nothing differentiates a kernel: a second derivative is that of `recurrent.py`.
"""

import functools
import importlib
from types import ModuleType

import jax
import jax.numpy as jnp

from stackformer.ops.stack_attention.dispatch import current_backend
from stackformer.ops.stack_attention.form import STATES, Form, Options
from stackformer.ops.stack_attention.recurrent import (
    reachable_depth,
    stack_attention_recurrent,
)


def stack_attention_pallas(
    actions: jax.Array,
    values: jax.Array,
    *,
    max_depth: int | None = None,
    starts: jax.Array | None = None,
    backend: str | None = None,
) -> jax.Array:
    """Computes alpha @ values without alpha.

    Args:
      actions: probabilities, shape (..., T, 3).
      values: shape (..., T, D), the same dtype, float32.
      max_depth: the number of elements that the stack remembers, or None.
      starts: True where a string of its own begins, shape (..., T), or None.
      backend: "tpu" (Mosaic), "gpu" (Triton), or "cpu", the TPU's kernel interpreted;
        None is the present one.

    Returns:
      shape (..., T, D). Its gradient is a kernel too; further derivatives are computed
      as those of the recurrent form, in its time and memory.
    """
    *batch, length, features = values.shape
    if length == 1 or values.size == 0:
        return values
    depth = reachable_depth(length, max_depth=max_depth)
    if starts is not None:
        # Nothing of what lay there stays, and the fourth number lays the value there.
        reset = starts[..., None]
        actions = jnp.where(reset, 0.0, actions)
        actions = jnp.concatenate([actions, reset.astype(actions.dtype)], axis=-1)
    numbers = actions.shape[-1]
    flat = actions.reshape(-1, length, numbers), values.reshape(-1, length, features)
    tops: jax.Array = _attend(depth, backend or current_backend(), *flat)
    return tops.reshape(*batch, length, features)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(depth, backend, actions, values):
    return _forward(depth, backend, actions, values)[0]


def _attend_fwd(depth, backend, actions, values):
    tops, saved = _forward(depth, backend, actions, values)
    return tops, (actions, values, saved)


def _attend_bwd(depth, backend, residuals, d_tops):
    return _backward(depth, backend, *residuals, d_tops)


_attend.defvjp(_attend_fwd, _attend_bwd)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _forward(depth, backend, actions, values):
    """Tops, and the stacks before each chunk, which `_backward` alone reads."""
    kernels = _kernels(backend)
    sizes = kernels.plan(*_sizes(actions, values, depth))
    by_chunk, pushed = _pad(actions, values, sizes.steps * sizes.chunks, sizes.steps)
    bottom = values[:, :1]
    interpret = backend == "cpu"
    tops, saved = kernels.forward(by_chunk, pushed, bottom, sizes, interpret=interpret)
    tops = jnp.concatenate([bottom, tops[:, : values.shape[1] - 1]], axis=1)
    return tops, saved


@_forward.defjvp
def _forward_jvp(depth, backend, primals, tangents):
    out = tops, saved = _forward(depth, backend, *primals)
    _, d_tops = jax.jvp(functools.partial(_steps, depth), primals, tangents)
    # What `_backward` is, it is of actions and values: it does not ask for this one.
    return out, (d_tops.astype(tops.dtype), jnp.zeros_like(saved))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _backward(depth, backend, actions, values, saved, d_tops):
    """Gradients of actions and values."""
    kernels = _kernels(backend)
    sizes = kernels.plan(*_sizes(actions, values, depth))
    batch, length, numbers = actions.shape
    padded = sizes.steps * sizes.chunks
    by_chunk, pushed = _pad(actions, values, padded, sizes.steps)
    d_padded = jnp.pad(d_tops[:, 1:], ((0, 0), (0, padded - length + 1), (0, 0)))
    d_chunks, d_pushed, d_bottom = kernels.backward(
        by_chunk, pushed, d_padded, saved, sizes, interpret=backend == "cpu"
    )
    d_actions = d_chunks.reshape(batch, padded, numbers)[:, : length - 1]
    d_actions = jnp.pad(d_actions, ((0, 0), (1, 0), (0, 0)))
    d_first = d_tops[:, :1] + d_bottom
    return d_actions, jnp.concatenate([d_first, d_pushed[:, : length - 1]], axis=1)


@_backward.defjvp
def _backward_jvp(depth, backend, primals, tangents):
    actions, values, _, d_tops = primals

    def gradient(actions, values, d_tops):
        _, pull = jax.vjp(functools.partial(_steps, depth), actions, values)
        return pull(d_tops)

    changes = tangents[0], tangents[1], tangents[3]
    _, out = jax.jvp(gradient, (actions, values, d_tops), changes)
    return _backward(depth, backend, *primals), out


def _steps(depth: int, actions: jax.Array, values: jax.Array) -> jax.Array:
    """The same in the recurrent form, which can be differentiated at will."""
    starts = actions[..., 3] > 0.5 if actions.shape[-1] == 4 else None
    tops, _ = stack_attention_recurrent(
        actions[..., :3], values, max_depth=depth, starts=starts
    )
    return tops


def _kernels(backend: str) -> ModuleType:
    """Imported late: Pallas takes a while, and few need it."""
    name = "gpu" if backend == "gpu" else "tpu"
    return importlib.import_module(f"stackformer.ops.stack_attention.pallas.{name}")


def _sizes(actions, values, depth) -> tuple[int, int, int, int]:
    """What a plan is made of: steps, features, H and the numbers of a step."""
    return values.shape[1] - 1, values.shape[2], depth, actions.shape[2]


def _pad(actions, values, padded, steps):
    """Actions (B, C, 1, A K) and values (B, C K, D) of the steps; no-ops at the end."""
    batch, length, numbers = actions.shape
    more = padded - length + 1
    noop = jnp.zeros((1, 1, numbers), actions.dtype).at[..., 2].set(1.0)
    rest = jnp.broadcast_to(noop, (batch, more, numbers))
    by_step = jnp.concatenate([actions[:, 1:], rest], axis=1)
    pushed = jnp.pad(values[:, 1:], ((0, 0), (0, more), (0, 0)))
    return by_step.reshape(batch, padded // steps, 1, numbers * steps), pushed


def _refuses(length: int, options: Options) -> str | None:
    del length
    return options.unsupported("chunk_size", "max_pops", *STATES)


def _attend_to(
    actions: jax.Array,
    values: jax.Array,
    options: Options,
    starts: jax.Array | None = None,
    *_: None,
) -> tuple[jax.Array, None]:
    depth = options.max_depth
    top = stack_attention_pallas(actions, values, max_depth=depth, starts=starts)
    return top, None


FORM = Form(
    refuses=_refuses, attend_to=_attend_to, forward_mode=False, interpreted=True
)
