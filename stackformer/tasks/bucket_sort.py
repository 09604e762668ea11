"""Bucket sort: the symbols of the input in increasing order."""

import jax
import jax.numpy as jnp

from stackformer.tasks.base import Length, Task
from stackformer.tasks.sampling import uniform_symbols

_SYMBOLS = tuple(map(str, range(5)))


class BucketSort(Task):
    """The symbols of the input, sorted; |y| = |x|.

    The symbols are independent and uniform over {0, 1, 2, 3, 4}.

    >>> BucketSort().answer("10204112")
    '00111224'
    """

    name = "bucket_sort"
    level = "cs"
    input_symbols = _SYMBOLS
    output_symbols = _SYMBOLS
    chance = 0.2

    def strings(
        self, key: jax.Array, batch_size: int, length: Length, max_length: int
    ) -> jax.Array:
        return uniform_symbols(key, batch_size, max_length, len(_SYMBOLS))

    def solve(self, inputs: jax.Array, length: Length) -> jax.Array:
        inside = jnp.arange(inputs.shape[1])[None, :] < length
        return jnp.sort(jnp.where(inside, inputs, len(_SYMBOLS)), axis=1)
