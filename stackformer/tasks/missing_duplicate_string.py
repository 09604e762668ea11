"""Missing duplicate string: which symbol is missing from a string written twice?"""

import jax
import jax.numpy as jnp

from stackformer.tasks.base import Length, Task
from stackformer.tasks.sampling import below, uniform_symbols

_MISSING, _FILL = 2, 3


class MissingDuplicateString(Task):
    """A binary string twice in a row, with one "?"; the answer is what it hides.

    The string has length n // 2 and uniform symbols, the place of "?" is uniform over
    both copies, and a string of odd length ends in "_"; |y| = 1. As in the benchmark,
    the only string of length 1 is "1", with the answer 1.

    >>> MissingDuplicateString().answer("01100?10")
    '1'
    >>> MissingDuplicateString().answer("1011?1_")
    '0'
    """

    name = "missing_duplicate_string"
    level = "cs"
    input_symbols = ("0", "1", "?", "_")
    output_symbols = ("0", "1")
    chance = 0.5

    def output_length(self, length: Length) -> Length:
        return 1

    def strings(
        self, key: jax.Array, batch_size: int, length: Length, max_length: int
    ) -> jax.Array:
        symbol_key, place_key = jax.random.split(key)
        half = jnp.maximum(length // 2, 1)
        position = jnp.arange(max_length)
        symbols = uniform_symbols(symbol_key, batch_size, max_length, 2)
        symbols = symbols[:, position % half]
        missing = below(jax.random.bits(place_key, (batch_size, 1)), 2 * half)
        symbols = jnp.where(position[None, :] == missing, _MISSING, symbols)
        symbols = jnp.where((position >= 2 * half)[None, :], _FILL, symbols)
        return jnp.where(length == 1, 1, symbols)

    def solve(self, inputs: jax.Array, length: Length) -> jax.Array:
        half = jnp.maximum(length // 2, 1)
        missing = jnp.argmax(inputs == _MISSING, axis=1)
        other = jnp.where(missing < half, missing + half, missing - half)
        answer = jnp.take_along_axis(inputs, other[:, None], axis=1, mode="clip")
        return jnp.where(length == 1, 1, answer)
