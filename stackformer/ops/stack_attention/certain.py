"""Stack attention whose actions may be certain: then positions move, not values.

The gradient is that of `stack_attention` in any case, so a model that takes its most
probable actions can be trained straight through; only the value is computed otherwise.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from stackformer.ops.stack_attention.api import stack_attention
from stackformer.ops.stack_attention.hard import hard_stack_read, init_hard_state
from stackformer.ops.stack_attention.sharding import on_shards


def attend_certain(
    certain: bool | jax.Array, actions: jax.Array, values: jax.Array, **options: Any
) -> jax.Array:
    """`stack_attention`, by a plain stack of positions where all actions are certain.

    Args:
      certain: whether every action is one-hot, a bool or a traced scalar.
      actions: shape (..., T, A).
      values: shape (..., T, D).
      **options: of `stack_attention`, without segments and states.

    Returns:
      Shape (..., T, D).

    Example:
      >>> actions = jax.nn.one_hot(jnp.array([2, 0, 0, 1]), 3)  # -, push, push, pop
      >>> values = jnp.array([[0.0], [10.0], [20.0], [30.0]])
      >>> print(attend_certain(True, actions, values)[:, 0])
      [ 0. 10. 20. 10.]
    """
    return _attend(jnp.asarray(certain), actions, values, tuple(options.items()))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attend(certain, actions, values, options):
    named = dict(options)

    def soft(actions, values):
        return stack_attention(actions, values, **named)

    def hard(actions, values):
        return on_shards(_read, actions, values, max_depth=named.get("max_depth"))[0]

    return jax.lax.cond(certain, hard, soft, actions, values)


def _forward(certain, actions, values, options):
    return jax.vjp(functools.partial(stack_attention, **dict(options)), actions, values)


def _backward(options, vjp, d_out):
    return (None, *vjp(d_out))


_attend.defvjp(_forward, _backward)


def _read(*, actions, values, max_depth):
    *lead, length, features = values.shape
    state = init_hard_state(
        tuple(lead), length, features, max_depth=max_depth, dtype=values.dtype
    )
    chosen = jnp.argmax(actions, axis=-1).astype(jnp.int32)
    return hard_stack_read(state, chosen, values)[1], None
