"""Compute square root: the integer part of the root of a binary number."""

import jax
import jax.numpy as jnp

from stackformer.tasks.base import Length, Task
from stackformer.tasks.binary import subtract
from stackformer.tasks.sampling import nonzero_binary, position_bits


class ComputeSqrt(Task):
    """The floor of the square root, most significant bit first; |y| = ceil(|x| / 2).

    The number is uniform over 1..2**n-1 and may begin with zeros, as may the root.

    37 has the root 6.08, 7 the root 2.65:

    >>> ComputeSqrt().answer("100101")
    '110'
    >>> ComputeSqrt().answer("111")
    '10'
    """

    name = "compute_sqrt"
    level = "cs"
    input_symbols = ("0", "1")
    output_symbols = ("0", "1")
    chance = 0.506

    def output_length(self, length: Length) -> Length:
        return (length + 1) // 2

    def strings(
        self, key: jax.Array, batch_size: int, length: Length, max_length: int
    ) -> jax.Array:
        bits = position_bits(key, batch_size, max_length)
        start = jnp.zeros((batch_size, 1), jnp.int32)
        return nonzero_binary(bits, start, jnp.full_like(start, length))

    def solve(self, inputs: jax.Array, length: Length) -> jax.Array:
        """The schoolbook root: two bits of the number give one bit of the root.

        With r the remainder and q the root so far, each step appends the next two bits
        to r and compares it with 4 q + 1; if that fits it is taken off and the new bit
        of q is 1. Here r and q have the least significant bit first.
        """
        batch_size, width = inputs.shape
        steps = self.output_length(width)
        # The first pair is (0, x_1) if the length is odd.
        offset = length % 2
        padded = jnp.pad(inputs, ((0, 0), (1, 2)))
        pairs = padded[:, 1 - offset + jnp.arange(2 * steps)]
        pairs = pairs.T.reshape(steps, 2, batch_size)

        def step(state, pair):
            remainder, root = state
            remainder = _append(_append(remainder, pair[0]), pair[1])
            zero, one = jnp.zeros_like(pair[0]), jnp.ones_like(pair[0])
            less, fits = subtract(remainder, _append(_append(root, zero), one))
            remainder = jnp.where(fits, less, remainder)
            bit = fits[:, 0].astype(jnp.int32)
            return (remainder, _append(root, bit)), bit

        start = jnp.zeros((batch_size, steps + 3), jnp.int32)
        _, root = jax.lax.scan(step, (start, start), pairs)
        return root.T


def _append(number: jax.Array, bit: jax.Array) -> jax.Array:
    """2 * number + bit."""
    return jnp.concatenate([bit[:, None], number[:, :-1]], axis=1)
