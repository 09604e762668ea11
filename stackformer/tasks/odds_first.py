"""Odds first: the symbols at odd positions, then those at even positions."""

import jax
import jax.numpy as jnp

from stackformer.tasks.base import Length, Task
from stackformer.tasks.sampling import uniform_symbols


class OddsFirst(Task):
    """x_1 x_3 x_5 .. x_2 x_4 x_6 ..; |y| = |x|.

    The symbols are independent and uniform over {0, 1}. The positions count from 1, as
    in the benchmark's definition and examples; its code puts the two halves the other
    way round.

    >>> OddsFirst().answer("00110101")
    '01000111'
    >>> OddsFirst().answer("110")
    '101'
    """

    name = "odds_first"
    level = "cs"
    input_symbols = ("0", "1")
    output_symbols = ("0", "1")
    chance = 0.5

    def strings(
        self, key: jax.Array, batch_size: int, length: Length, max_length: int
    ) -> jax.Array:
        return uniform_symbols(key, batch_size, max_length, 2)

    def solve(self, inputs: jax.Array, length: Length) -> jax.Array:
        position = jnp.arange(inputs.shape[1])
        odds = (length + 1) // 2
        source = jnp.where(position < odds, 2 * position, 2 * (position - odds) + 1)
        return inputs[:, jnp.minimum(source, inputs.shape[1] - 1)]
