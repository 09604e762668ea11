"""A scan whose steps mix the rows of all steps before, at the memory of those rows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# step(params, carry, last, index, x) -> (carry, base, mix, y)
HistoryStep = Callable[
    [Any, Any, jax.Array, jax.Array, Any], tuple[Any, jax.Array, jax.Array, Any]
]


def history_scan(
    step: HistoryStep, params: Any, carry: Any, first: jax.Array, xs: Any
) -> Any:
    """Scans a step whose result also holds a weighted sum of all earlier results.

    A row is a set of R vectors of F features, and row n is

      row_n[r] = base_n[r] + sum_{m < n, u} mix_n[m, u, r] row_m[u]

    where `base_n` and `mix_n` come from `step`, which sees the row before, not the
    history. `jax.lax.scan` alone would keep a copy of the history for every step of the
    backward pass. But rows never change once written, and the gradient of row m is

      d row_m[u] = (from step m + 1) + sum_{n > m, r} mix_n[m, u, r] d row_n[r]

    so the backward pass keeps one history of rows, one of their gradients and the
    mixes: no more than that, and as many passes over them as there are steps.

    Legend: L leading axes, R vectors in a row, F features, N rows, T = N - 1 steps.

    Args:
      step: pure function, `step(params, carry, last, index, x)` gives (carry, base,
        mix, y) with `last` (*L, R, F) the row `index` - 1, base (*L, R, F) and mix
        (*L, N, R, R), zero from `index` on in the axis N. It must not close over
        traced values.
      params: pytree that `step` depends on.
      carry: pytree, the initial carry.
      first: row 0, shape (*L, R, F).
      xs: pytree of floating-point arrays (T, ...).

    Returns:
      ys, stacked over the T steps.

    Example, each row the sum of all before it:
      >>> def step(params, carry, last, index, x):
      ...     mix = (jnp.arange(5) < index).astype(float)[:, None, None]
      ...     return carry, jnp.zeros((1, 1)), mix, last[0, 0]
      >>> print(history_scan(step, (), (), jnp.ones((1, 1)), jnp.zeros(4)))
      [1. 1. 2. 4.]
    """
    return _run(step, params, carry, first, xs)


def _forward(step, params, carry, first, xs):
    steps = jax.tree.leaves(xs)[0].shape[0]
    history = jnp.zeros((*first.shape[:-2], steps + 1, *first.shape[-2:]), first.dtype)
    history = _write(history, first, 0)

    def body(state, inputs):
        carry, last, history = state
        index, x = inputs
        new_carry, base, mix, y = step(params, carry, last, index, x)
        row = base + _transpose(_flat(mix, -3)) @ _flat(history, -3)
        return (new_carry, row, _write(history, row, index)), (y, carry, mix)

    (_, _, history), (ys, carries, mixes) = jax.lax.scan(
        body, (carry, first, history), (1 + jnp.arange(steps), xs)
    )
    return ys, (params, carries, history, mixes, xs)


def _run_primal(step, params, carry, first, xs):
    return _forward(step, params, carry, first, xs)[0]


def _run_bwd(step, residuals, d_ys):
    params, carries, history, mixes, xs = residuals
    rows = history.shape[-3]
    mixes = jnp.pad(mixes, [(1, 0)] + [(0, 0)] * (mixes.ndim - 1))  # row 0 takes none
    earlier = jnp.arange(rows).reshape((1,) * (history.ndim - 3) + (rows, 1, 1))

    def body(state, inputs):
        d_carry, d_params, d_row, d_history = state
        index, carry, x, d_y = inputs
        (_, _, mix, _), pullback = jax.vjp(
            lambda params, carry, last, x: step(params, carry, last, index, x),
            params,
            carry,
            _read(history, index - 1, axis=-3),
            x,
        )
        # The history must come first: the other order is ten times slower on CPU.
        d_mix = (_flat(history, -3) @ _transpose(d_row)).reshape(mix.shape)
        d_mix = jnp.where(earlier < index, d_mix, 0)
        d_step, d_carry, d_last, d_x = pullback((d_carry, d_row, d_mix, d_y))
        # What this row and the later ones took from the row before.
        taken = jnp.moveaxis(_read(mixes, index - 1, axis=-3), (0, -1), (-3, -2))
        d_row = d_last + _transpose(_flat(taken, -3)) @ _flat(d_history, -3)
        d_params = jax.tree.map(jnp.add, d_params, d_step)
        return (d_carry, d_params, d_row, _write(d_history, d_row, index - 1)), d_x

    state = (
        jax.tree.map(lambda c: jnp.zeros_like(c[0]), carries),
        jax.tree.map(jnp.zeros_like, params),
        jnp.zeros_like(_read(history, 0, axis=-3)),
        jnp.zeros_like(history),
    )
    (d_carry, d_params, d_first, _), d_xs = jax.lax.scan(
        body, state, (1 + jnp.arange(rows - 1), carries, xs, d_ys), reverse=True
    )
    return d_params, d_carry, d_first, d_xs


_run = jax.custom_vjp(_run_primal, nondiff_argnums=(0,))
_run.defvjp(_forward, _run_bwd)


def _flat(array, axis):
    """Joins `axis` and the one after it."""
    axis += array.ndim
    return array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])


def _transpose(array):
    return jnp.swapaxes(array, -1, -2)


def _read(array, index, axis):
    return jax.lax.dynamic_index_in_dim(array, index, array.ndim + axis, keepdims=False)


def _write(history, row, index):
    return jax.lax.dynamic_update_index_in_dim(history, row, index, history.ndim - 3)
