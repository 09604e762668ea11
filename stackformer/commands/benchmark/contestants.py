"""The kernels that are compared, and the check that each must pass first."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stackformer.ops import stack_attention
from stackformer.ops.stack_attention.dispatch import current_backend
from stackformer.ops.stack_attention.form import Options
from stackformer.ops.stack_attention.forms import FORMS

Kernel = Callable[[jax.Array, jax.Array], jax.Array]
# What a form is called in tables and pictures, where its name alone says too little.
LABELS = {"reference": "unrolled loop", "scan": "scan, custom VJP"}
BOUND = 64
TOLERANCE = 2e-4
_NOT_QUICK = ("reference", "recurrent")
_SMALL = (2, 97, 8)  # batch, length, features of the first check


def scan_by_autodiff(actions: jax.Array, values: jax.Array) -> jax.Array:
    """The paper's recurrence as a scan; JAX differentiates it, keeping every step."""

    def weights(actions):
        length = actions.shape[0]

        def step(alpha, inputs):
            i, (push, pop, noop) = inputs
            top = alpha[i - 1]
            below = jnp.roll(top, -1).at[-1].set(0.0).at[0].add(top[0])
            row = push * (jnp.arange(length) == i) + pop * (below @ alpha) + noop * top
            return alpha.at[i].set(row), None

        alpha = jnp.zeros((length, length)).at[0, 0].set(1.0)
        return jax.lax.scan(step, alpha, (jnp.arange(1, length), actions[1:]))[0]

    return jax.vmap(weights)(actions) @ values


def form(**options: Any) -> Kernel:
    """A form of the library's kernel."""
    return functools.partial(stack_attention, **options)


def softmax_attention(heads: int, fused: bool) -> Kernel:
    """Causal softmax attention on q = k = v = values, without projections.

    Args:
      heads: their number.
      fused: `jax.nn.dot_product_attention`; otherwise products and a softmax.
    """

    def attend(actions: jax.Array, values: jax.Array) -> jax.Array:
        del actions
        split = values.reshape(*values.shape[:2], heads, -1)
        if fused:
            out = jax.nn.dot_product_attention(split, split, split, is_causal=True)
        else:
            length = values.shape[1]
            scores = jnp.einsum("bthd,bshd->bhts", split, split)
            scores = scores * split.shape[-1] ** -0.5
            causal = jnp.tril(jnp.ones((length, length), bool))[None, None]
            scores = jnp.where(causal, scores, jnp.finfo(scores.dtype).min)
            out = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), split)
        return out.reshape(values.shape)

    return attend


def stack_kernels(
    length: int, *, quick: bool, bounded: bool = True
) -> dict[str, Kernel]:
    """The kernels worth timing at T = length; the slowest only where they end.

    Every form of the registry takes part: with several chunk sizes where it takes one,
    and once more with a stack of bounded depth.
    """
    kernels: dict[str, Kernel] = {}
    for name, contestant in FORMS.items():
        label = LABELS.get(name, name)
        if contestant.longest is not None and length > contestant.longest:
            continue
        if contestant.interpreted and current_backend() == "cpu":
            continue
        chunked = contestant.refuses(length, Options(chunk_size=16)) is None
        sizes = _chunk_sizes(length, quick) if chunked else ()
        for size in sizes:
            kernels[f"{label} b={size}"] = form(implementation=name, chunk_size=size)
        if not chunked and not (quick and name in _NOT_QUICK):
            kernels[label] = form(implementation=name)
        deep = contestant.refuses(length, Options(max_depth=BOUND)) is None
        if bounded and chunked and deep and length > (1000 if quick else 2 * BOUND):
            kernels[f"{label}, max_depth={BOUND}"] = form(
                implementation=name, max_depth=BOUND
            )
    if length <= 201 and not quick:
        kernels["scan, autodiff"] = scan_by_autodiff
    if not quick:
        kernels["implementation=None"] = form()
    return kernels


def _chunk_sizes(length: int, quick: bool) -> tuple[int, ...]:
    if quick:  # the best of them, where a figure needs it
        return (16,) if length in (201, 513) else ()
    if length <= 201:
        return (8, 16, 32)
    return (16, 32) if length < 1000 else (32, 64)


def with_gradient(kernel: Kernel) -> Callable[..., tuple[jax.Array, ...]]:
    """Forward and backward: the gradients at the actions and the values."""

    def gradient(actions, values, cotangent):
        tops, pull = jax.vjp(kernel, actions, values)
        return tops, *pull(cotangent)

    return gradient


def random_inputs(batch: int, length: int, features: int) -> tuple[jax.Array, ...]:
    """Actions, values and a cotangent."""
    keys = jax.random.split(jax.random.key(0), 3)
    actions = jax.nn.softmax(jax.random.normal(keys[0], (batch, length, 3)))
    values, cotangent = (
        jax.random.normal(key, (batch, length, features)) for key in keys[1:]
    )
    return actions, values, cotangent


def error_against_reference(kernel: Kernel, *, max_depth: int | None = None) -> float:
    """The largest error of a kernel in its tops and gradients, at a small size.

    The expected ones are the reference's, or, for a bounded stack, those of the
    recurrent form with this depth.
    """
    got = jax.jit(with_gradient(kernel))(*random_inputs(*_SMALL))
    pairs = zip(got, _expected(max_depth), strict=True)
    return max(error(found, wanted) for found, wanted in pairs)


@functools.cache
def _expected(max_depth):
    if max_depth is None:
        kernel = form(implementation="reference")
    else:
        kernel = form(implementation="recurrent", max_depth=max_depth)
    return jax.jit(with_gradient(kernel))(*random_inputs(*_SMALL))


def exact_tops(inputs, max_depth: int | None = None) -> jax.Array:
    """The tops at a timed shape, by the recurrent form."""
    exact = form(implementation="recurrent", max_depth=max_depth)
    return jax.jit(exact)(*inputs[:2])


def error(got: jax.Array, wanted: jax.Array) -> float:
    """The largest difference, relative where the wanted numbers are large."""
    found, right = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    return float(np.abs(found - right).max() / max(1.0, np.abs(right).max()))
