"""Modular arithmetic without brackets."""

import jax
import jax.numpy as jnp

from stackformer.tasks.base import Length, Task
from stackformer.tasks.expressions import (
    OPERATORS,
    blank,
    check_expression,
    digits,
    evaluate,
)
from stackformer.tasks.sampling import below, position_bits


class ModularArithmetic(Task):
    """The value of an expression without brackets, modulo 5; |y| = 1.

    Digits and operators take turns, each uniform; multiplication binds stronger. Such
    an expression has odd length: as in the benchmark, who asks for an even length n
    gets strings of length n - 1 (so `sample.length` is n - 1), and a length of 2
    gives a digit.

    >>> ModularArithmetic().answer("1+2*3")
    '2'
    >>> ModularArithmetic().answer("0*1+4*3-2")
    '0'
    """

    name = "modular_arithmetic"
    level = "regular"

    def __init__(self, modulus: int = 5):
        self.modulus = modulus
        self.output_symbols = digits(modulus)
        self.input_symbols = (*self.output_symbols, *OPERATORS)
        self.chance = 1 / modulus

    def output_length(self, length: Length) -> Length:
        return 1

    def string_length(self, length: Length) -> Length:
        return length - (length + 1) % 2

    def strings(
        self, key: jax.Array, batch_size: int, length: Length, max_length: int
    ) -> jax.Array:
        bits = position_bits(key, batch_size, max_length)
        is_digit = (jnp.arange(max_length) % 2 == 0)[None, :]
        operators = self.modulus + below(bits, len(OPERATORS))
        return jnp.where(is_digit, below(bits, self.modulus), operators)

    def solve(self, inputs: jax.Array, length: Length) -> jax.Array:
        inside = jnp.arange(inputs.shape[1])[None, :] < length
        codes = jnp.where(inside, inputs, blank(self.modulus))
        return evaluate(codes, self.modulus)[:, None]

    def check_form(self, symbols: list[str]) -> None:
        check_expression(symbols)
