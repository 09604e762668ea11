"""Duplicate string: write the input twice."""

import jax
import jax.numpy as jnp

from stackformer.tasks.base import Length, Task
from stackformer.tasks.sampling import uniform_symbols


class DuplicateString(Task):
    """The input, twice; |y| = 2 |x|.

    The symbols are independent and uniform over {0, 1}.

    >>> DuplicateString().answer("101")
    '101101'
    """

    name = "duplicate_string"
    level = "cs"
    input_symbols = ("0", "1")
    output_symbols = ("0", "1")
    chance = 0.5

    def output_length(self, length: Length) -> Length:
        return 2 * length

    def strings(
        self, key: jax.Array, batch_size: int, length: Length, max_length: int
    ) -> jax.Array:
        return uniform_symbols(key, batch_size, max_length, 2)

    def solve(self, inputs: jax.Array, length: Length) -> jax.Array:
        return inputs[:, jnp.arange(2 * inputs.shape[1]) % length]
