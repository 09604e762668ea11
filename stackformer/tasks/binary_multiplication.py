"""Binary multiplication: the product of two binary numbers."""

import jax
import jax.numpy as jnp

from stackformer.tasks.base import Length, Task
from stackformer.tasks.binary import END_CLASS, end_number, operands, split_operands
from stackformer.tasks.vocabulary import END


class BinaryMultiplication(Task):
    """The product of two numbers, all with the least significant bit first.

    The answer ends with "$", which fills the rest; |y| = |x|, and positions after the
    first "$" do not count. The numbers are drawn as in binary addition. As in the
    benchmark, a string of length 1 is "0" with the answer "$", and one of length 2 is
    a number uniform over 0, 1, 2 with the answer "0$".

    4 * 22 = 88:

    >>> BinaryMultiplication().answer("001*01101")
    '0001101$'
    """

    name = "binary_multiplication"
    level = "cs"
    input_symbols = ("0", "1", "*")
    output_symbols = ("0", "1", END)
    chance = 0.494

    def strings(
        self, key: jax.Array, batch_size: int, length: Length, max_length: int
    ) -> jax.Array:
        return operands(key, batch_size, length, max_length)

    def solve(self, inputs: jax.Array, length: Length) -> jax.Array:
        """A serial multiplier: bit k of the product is the carry plus sum_i a_i b_k-i.

        The second number passes the first one bit by bit through a shift register.
        """
        first, second = split_operands(inputs, length)

        def step(state, bit):
            register, carry = state
            register = jnp.concatenate([bit[:, None], register[:, :-1]], axis=1)
            carry = carry + jnp.sum(first * register, axis=1)
            return (register, carry // 2), carry % 2

        state = jnp.zeros_like(second), jnp.zeros_like(second[:, 0])
        _, product = jax.lax.scan(step, state, second.T)
        answer = end_number(product.T)
        short = (jnp.arange(inputs.shape[1]) + 1 < length)[None, :]
        short = jnp.broadcast_to(jnp.where(short, 0, END_CLASS), answer.shape)
        return jnp.where(length < 3, short, answer)
