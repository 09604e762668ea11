"""Even pairs: is the number of 01 and 10 even?"""

import jax

from stackformer.tasks.base import Length, Task
from stackformer.tasks.sampling import uniform_symbols


class EvenPairs(Task):
    """Whether the pairs 01 and 10 together occur an even number of times; |y| = 1.

    The symbols are independent and uniform over {0, 1}. The number of changes is even
    exactly if the first and the last symbol are equal.

    >>> EvenPairs().answer("001110")
    'even'
    >>> EvenPairs().answer("0101001")
    'odd'
    """

    name = "even_pairs"
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
        return (inputs[:, 0] ^ inputs[:, length - 1])[:, None]
