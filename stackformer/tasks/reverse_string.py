"""RS: reverse a string."""

import jax
import jax.numpy as jnp

from stackformer.tasks.base import Length, Task
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

    def strings(
        self, key: jax.Array, batch_size: int, length: Length, max_length: int
    ) -> jax.Array:
        return uniform_symbols(key, batch_size, max_length, 2)

    def solve(self, inputs: jax.Array, length: Length) -> jax.Array:
        source = length - 1 - jnp.arange(inputs.shape[1])
        return inputs[:, jnp.maximum(source, 0)]
