"""RS: reverse a string."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stackformer.tasks.base import Task
from stackformer.tasks.sampling import uniform_symbols


class ReverseString(Task):
    """The reverse of the input.

    The symbols are independent and uniform over {a, b}; |y| = |x|.

    >>> ReverseString().answer("abb")
    'bba'
    """

    name = "reverse_string"
    short_name = "RS"
    level = "dcf"
    input_symbols = ("a", "b")
    output_symbols = ("a", "b")
    chance = 0.5

    def strings(self, key, batch_size, length, max_length) -> jax.Array:
        return uniform_symbols(key, batch_size, max_length, 2)

    def solve(self, inputs, length) -> jax.Array:
        source = length - 1 - jnp.arange(inputs.shape[1])
        return inputs[:, jnp.maximum(source, 0)]
