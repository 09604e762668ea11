"""The specification of the stack with a pointer, in plain loops."""

import jax
import jax.numpy as jnp

Array = jax.Array


def pointer_stack_reference(
    actions: Array, values: Array, *, max_depth: int, starts: Array
) -> Array:
    """One string: actions (T, 3), values (T, D), starts (T,) to readings (T, D)."""
    rows = jnp.arange(max_depth + 1)
    memory = jnp.zeros((max_depth + 1, values.shape[1]), values.dtype)
    pointer, readings = jnp.zeros((), values.dtype), []
    for i in range(len(values)):
        begins = starts[i]
        pointer = jnp.clip(pointer + actions[i, 0] - actions[i, 1], 0.0, max_depth)
        pointer = jnp.where(begins, 0.0, pointer)
        memory = jnp.where(begins, 0.0, memory)
        strength = jnp.where(begins, 1.0, actions[i, 0])
        key = jnp.maximum(0.0, 1.0 - jnp.abs(pointer - rows))
        error = values[i] - key @ memory
        memory = memory + strength * key[:, None] * error[None, :]
        readings.append(key @ memory)
    return jnp.stack(readings)
