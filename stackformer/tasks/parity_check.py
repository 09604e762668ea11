"""Parity check: is the number of 1s even?"""

import jax
import jax.numpy as jnp

from stackformer.tasks.base import Length, Task
from stackformer.tasks.sampling import uniform_symbols


class ParityCheck(Task):
    """Whether the symbol 1 occurs an even number of times; |y| = 1.

    The symbols are independent and uniform over {0, 1}.

    >>> ParityCheck().answer("1010100")
    'odd'
    >>> ParityCheck().answer("01111")
    'even'
    """

    name = "parity_check"
    level = "regular"
    input_symbols = ("0", "1")
    output_symbols = ("even", "odd")
    chance = 0.5

    def output_length(self, length: Length) -> Length:
        return 1

    def strings(
        self, key: jax.Array, batch_size: int, length: Length, max_length: int
    ) -> jax.Array:
        return uniform_symbols(key, batch_size, max_length, 2)

    def solve(self, inputs: jax.Array, length: Length) -> jax.Array:
        return jnp.sum(inputs, axis=1, keepdims=True) % 2
