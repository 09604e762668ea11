"""The nondeterministic stack with vectors over whole strings, and one step of it."""

import dataclasses

import jax
import jax.numpy as jnp

from stackformer.ops.history_scan import history_scan
from stackformer.ops.nondeterministic.recurrent import (
    Transitions,
    init_ndstack,
    ndstack_step,
    read_vectors,
)

Array = jax.Array


def nondeterministic_scan(
    transitions: Array,
    values: Array,
    *,
    keep: Array,
    starts: Array,
    num_states: int,
    num_symbols: int,
) -> Array:
    """What is read at every position, in logarithms and with little memory.

    The backward pass computes every step again from the rows before it
    (`history_scan`): it keeps T rows and not T copies of them.

    Args:
      transitions: log weights of `Transitions.count` transitions, shape (B, T, count).
      values: the vectors of elements pushed at each position, shape (B, T, D).
      keep: False where a position changes nothing, shape (B, T).
      starts: True where a string begins, shape (B, T), and at position 0.
      num_states: Q.
      num_symbols: S.

    Returns:
      P(state, symbol) E[vector | state, symbol], shape (B, T, Q, S, D).
    """
    batch, length, features = values.shape
    sizes = (num_states, num_symbols)
    dtype = transitions.dtype

    def step(params, alpha, last, node, inputs):
        flat, value, kept, begins = inputs
        reading = read_vectors(alpha, last, features)
        table = Transitions.split(flat, *sizes).where(kept > 0)
        alpha, base, mix = ndstack_step(alpha, last, node, table, value)
        first = init_ndstack(batch, length + 1, *sizes, value=value, dtype=dtype)
        begins = begins > 0
        alpha = jnp.where(begins[:, None, None], first[0], alpha)
        base = jnp.where(begins[:, None, None, None], first[1], base)
        mix = jnp.where(begins[:, None, None, None, None], 0, mix)
        return alpha, base, mix, reading

    # A step sees the row before it: step n reads position n - 1, and a last one, which
    # moves nothing that is read, the last position.
    def after(array: Array) -> Array:
        array = jnp.moveaxis(array.astype(dtype), 1, 0)
        return jnp.roll(array, -1, axis=0)

    alpha, first = init_ndstack(
        batch, length + 1, *sizes, value=values[:, 0].astype(dtype), dtype=dtype
    )
    inputs = tuple(map(after, (transitions, values, keep, starts)))
    readings = history_scan(step, (), alpha, first, inputs)
    return jnp.moveaxis(readings, 0, 1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NDStackState:
    """The stack between two positions.

    Attributes:
      alpha: log weights of state and symbol on top, shape (B, Q, S).
      rows: of all nodes so far, shape (B, S, N, Q, Q S N + D).
    """

    alpha: Array
    rows: Array


def init_ndstack_state(
    batch_size: int,
    num_nodes: int,
    num_states: int,
    num_symbols: int,
    features: int,
    *,
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> NDStackState:
    """The state before position 0 of a string of at most `num_nodes` positions."""
    alpha, row = init_ndstack(
        batch_size,
        num_nodes,
        num_states,
        num_symbols,
        value=jnp.zeros((batch_size, features), dtype),
        dtype=dtype,
    )
    rows = jnp.zeros((*row.shape[:2], num_nodes, *row.shape[2:]), dtype)
    return NDStackState(alpha, rows)


def nondeterministic_step(
    state: NDStackState, transitions: Array, value: Array, index: Array
) -> tuple[NDStackState, Array]:
    """Position `index` of `nondeterministic_scan`.

    Args:
      state: from `init_ndstack_state` or the step before.
      transitions: log weights, shape (B, count).
      value: shape (B, D).
      index: the scalar position; 0 is the bottom.

    Returns:
      The new state, and what is read, shape (B, Q, S, D).
    """
    batch, *sizes = state.alpha.shape
    dtype = state.alpha.dtype
    nodes = state.rows.shape[2]
    last = jax.lax.dynamic_index_in_dim(
        state.rows, jnp.maximum(index - 1, 0), axis=2, keepdims=False
    )
    table = Transitions.split(transitions.astype(dtype), *sizes)
    value = value.astype(dtype)
    alpha, row, mix = ndstack_step(state.alpha, last, index, table, value)
    row += jnp.einsum("bykur,bykuf->byrf", mix, state.rows)
    first = init_ndstack(batch, nodes, *sizes, value=value, dtype=dtype)
    alpha = jnp.where(index == 0, first[0], alpha)
    row = jnp.where(index == 0, first[1], row)
    rows = jax.lax.dynamic_update_index_in_dim(state.rows, row, index, axis=2)
    return NDStackState(alpha, rows), read_vectors(alpha, row, value.shape[-1])
