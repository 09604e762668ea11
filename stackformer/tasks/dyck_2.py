"""Which brackets close a prefix of a Dyck-2 word: the README's example of a task."""

import jax
import jax.numpy as jnp

from stackformer.tasks.base import END, Task
from stackformer.tasks.sampling import position_bits

Array = jax.Array


class Dyck2(Task):
    """`([](` is closed by `))$`.

    Every symbol is, with equal probability, one of the two opening brackets, or half of
    the time, if a bracket is open, the one that closes it. It is not in the registry:
    its name is `--task=stackformer.tasks.dyck_2:Dyck2`.

    Example:
      >>> from stackformer import tasks
      >>> tasks.get("stackformer.tasks.dyck_2:Dyck2").answer("([](")
      '))$'
    """

    name, level, chance = "dyck_2", "dcf", 0.43
    input_symbols = ("(", "[", ")", "]")
    output_symbols = (")", "]", END)

    def output_length(self, length):
        return length + 1

    def strings(self, key, batch_size, length, max_length):
        def step(stack: Array, word: Array) -> tuple[Array, Array]:
            kind = (word & 1).astype(jnp.int32)
            close = ((word & 2) > 0) & (stack[0] < 2)
            return _move(stack, kind, close), jnp.where(close, 2 + stack[0], kind)

        bits = position_bits(key, batch_size, max_length)
        empty = jnp.full((max_length, batch_size), 2)
        return jax.lax.scan(step, empty, bits.T)[1].T

    def solve(self, inputs, length):
        def step(i: Array, stack: Array) -> Array:
            return _move(stack, inputs[:, i], inputs[:, i] >= 2)

        empty = jnp.full((inputs.shape[1] + 1, inputs.shape[0]), 2)
        return jax.lax.fori_loop(0, length, step, empty).T


def _move(stack: Array, kind: Array, close: Array) -> Array:
    """Push a kind (0 round, 1 square), or pop; row 0 is the top, 2 is empty."""
    pushed = jnp.concatenate([kind[None], stack[:-1]])
    popped = jnp.concatenate([stack[1:], jnp.full_like(stack[:1], 2)])
    return jnp.where(close[None], popped, pushed)
