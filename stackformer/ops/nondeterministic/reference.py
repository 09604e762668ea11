"""The nondeterministic stack as it is defined, in plain loops: the specification."""

import jax
import jax.numpy as jnp

from stackformer.ops.nondeterministic.recurrent import Transitions

Array = jax.Array


def nondeterministic_reference(
    transitions: Array,
    values: Array,
    *,
    keep: Array,
    starts: Array,
    num_states: int,
    num_symbols: int,
) -> Array:
    """What is read at every position; arguments as in `nondeterministic_scan`.

    Lang's algorithm with plain weights, which is right as long as products of T of them
    are floats. gamma[i, n][q, x, r, y] and zeta, the same with the vector on top, sum
    the runs from node i, in state q with x on top, to node n, in state r with y
    directly above that x; the node -1 is a ground below the bottom.
    """
    length = values.shape[1]
    letters = (num_states, num_symbols)
    greatest = transitions.max(axis=-1, keepdims=True)
    weights = transitions - greatest
    ground = jnp.zeros((1, *letters, *letters)).at[0, 0, 0, 0, 0].set(1.0)
    alpha, gamma, zeta, readings = {}, {}, {}, []
    for n in range(length):
        table = jax.tree.map(
            jnp.exp,
            Transitions.split(weights[:, n], *letters).where(keep[:, n]),
        )
        begins = starts[:, n, None, None, None, None]
        for i in range(-1, n):
            new = jnp.zeros_like(table.push)
            vector = jnp.zeros((*new.shape, values.shape[-1]))
            if i == n - 1 and n > 0:
                new += table.push
                vector += table.push[..., None] * _vector(values[:, n])
            if i < n - 1:
                new += jnp.einsum("bqxsz,bszry->bqxry", gamma[i, n - 1], table.replace)
                vector += jnp.einsum(
                    "bqxszd,bszry->bqxryd", zeta[i, n - 1], table.replace
                )
            for k in range(i + 1, n - 1):
                popped = jnp.einsum("buysz,bszr->buyr", gamma[k, n - 1], table.pop)
                new += jnp.einsum("bqxuy,buyr->bqxry", gamma[i, k], popped)
                vector += jnp.einsum("bqxuyd,buyr->bqxryd", zeta[i, k], popped)
            first = ground if i == -1 else jnp.zeros_like(ground)
            gamma[i, n] = jnp.where(begins, first, new)
            zeta[i, n] = jnp.where(
                begins[..., None], first[..., None] * _vector(values[:, n]), vector
            )
        alpha[n] = sum(
            jnp.einsum("bqx,bqxry->bry", alpha[i], gamma[i, n])
            if i >= 0
            else gamma[i, n][:, 0, 0]
            for i in range(-1, n)
        )
        reading = sum(
            jnp.einsum("bqx,bqxryd->bryd", alpha[i], zeta[i, n])
            if i >= 0
            else zeta[i, n][:, 0, 0]
            for i in range(-1, n)
        )
        total = jnp.sum(alpha[n], axis=(1, 2))
        readings.append(reading / total[:, None, None, None])
    return jnp.stack(readings, axis=1)


def _vector(value: Array) -> Array:
    return value[:, None, None, None, None, :]
