"""MA: the value of a bracketed expression modulo 5."""

import jax
import jax.numpy as jnp

from stackformer.tasks.base import Length, Task
from stackformer.tasks.expressions import (
    OPERATORS,
    blank,
    check_expression,
    digits,
    evaluate,
    grow,
    value_probabilities,
)
from stackformer.tasks.sampling import position_bits


class ModularArithmeticBrackets(Task):
    """The value of an expression with brackets, modulo 5; |y| = 1.

    The expressions grow as `tasks.expressions` says, with three operators. They do
    not end in the congruence sign that the paper prints after them: the benchmark's
    strings have none (its input layer merely has room for one), and a constant last
    symbol says nothing.

    A product of two parts is 0 more often than other values, so the answer 0 has
    probability 0.299 at the lengths 42..100.

    >>> task = ModularArithmeticBrackets()
    >>> task.answer("((1+2)*3)")
    '4'
    >>> task.answer("(-3)")
    '2'
    """

    name = "modular_arithmetic_brackets"
    short_name = "MA"
    level = "dcf"

    def __init__(self, modulus: int = 5):
        self.modulus = modulus
        self.output_symbols = digits(modulus)
        self.input_symbols = (*self.output_symbols, *OPERATORS, "(", ")")
        probabilities = value_probabilities(modulus, 100)[41:]
        self.chance = float(probabilities.mean(axis=0).max())

    def output_length(self, length: Length) -> Length:
        return 1

    def strings(
        self, key: jax.Array, batch_size: int, length: Length, max_length: int
    ) -> jax.Array:
        bits = position_bits(key, batch_size, max_length)
        return grow(bits, length, self.modulus, num_operators=3)

    def solve(self, inputs: jax.Array, length: Length) -> jax.Array:
        inside = jnp.arange(inputs.shape[1])[None, :] < length
        codes = jnp.where(inside, inputs, blank(self.modulus))
        return evaluate(codes, self.modulus)[:, None]

    def check_form(self, symbols: list[str]) -> None:
        check_expression(symbols)
