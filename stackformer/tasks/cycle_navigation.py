"""Cycle navigation: where does a walk on a circle of five places end?"""

import jax
import jax.numpy as jnp

from stackformer.tasks.base import Length, Task
from stackformer.tasks.sampling import uniform_symbols

_CYCLE = 5


class CycleNavigation(Task):
    """The last place of a walk that begins at place 0 of 0..4; |y| = 1.

    "<" goes one place back, "." stays, ">" goes one place on; the moves are
    independent and uniform.

    >>> CycleNavigation().answer("><.<<")
    '3'
    >>> CycleNavigation().answer(">>><")
    '2'
    """

    name = "cycle_navigation"
    level = "regular"
    input_symbols = ("<", ".", ">")
    output_symbols = tuple(map(str, range(_CYCLE)))
    chance = 0.2

    def output_length(self, length: Length) -> Length:
        return 1

    def strings(
        self, key: jax.Array, batch_size: int, length: Length, max_length: int
    ) -> jax.Array:
        return uniform_symbols(key, batch_size, max_length, 3)

    def solve(self, inputs: jax.Array, length: Length) -> jax.Array:
        inside = jnp.arange(inputs.shape[1])[None, :] < length
        moves = jnp.where(inside, inputs - 1, 0)
        return jnp.sum(moves, axis=1, keepdims=True) % _CYCLE
