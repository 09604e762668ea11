"""Binary addition: the sum of two binary numbers."""

import jax
import jax.numpy as jnp

from stackformer.tasks.base import Length, Task
from stackformer.tasks.binary import add, end_number, operands, split_operands
from stackformer.tasks.vocabulary import END


class BinaryAddition(Task):
    """The sum of two numbers, all with the least significant bit first.

    The answer ends with "$", which fills the rest; |y| = |x| + 1, and positions after
    the first "$" do not count. The first number's length is uniform over 1..n-2 and
    each number uniform over the nonzero numbers of its length, so it may end in zeros.
    As in the benchmark, a string of length 1 is "0" and one of length 2 is a number
    uniform over 0, 1, 2; the answer is the number itself.

    4 + 22 = 26:

    >>> BinaryAddition().answer("001+01101")
    '01011$'
    """

    name = "binary_addition"
    level = "cs"
    input_symbols = ("0", "1", "+")
    output_symbols = ("0", "1", END)
    chance = 0.5

    def output_length(self, length: Length) -> Length:
        return length + 1

    def strings(
        self, key: jax.Array, batch_size: int, length: Length, max_length: int
    ) -> jax.Array:
        return operands(key, batch_size, length, max_length)

    def solve(self, inputs: jax.Array, length: Length) -> jax.Array:
        first, second = split_operands(inputs, length)
        total = jnp.where(length < 3, inputs, add(first, second))
        return end_number(jnp.pad(total, ((0, 0), (0, 1))))
