"""SE: solve an equation modulo 5 for its one unknown."""

import jax
import jax.numpy as jnp
import numpy as np

from stackformer.tasks.base import Length, Task
from stackformer.tasks.expressions import (
    blank,
    check_expression,
    code,
    digits,
    evaluate,
    grow,
)
from stackformer.tasks.sampling import below, position_bits

_AFTER_DIGITS = ("+", "-", "(", ")", "z", "=")


class SolveEquation(Task):
    """The digit that the unknown z stands for; |y| = 1.

    A string of length n is an expression of length n - 2 with + and - only (grown as
    `tasks.expressions` says), in which one digit is replaced by z, then "=" and the
    value of the expression. The digit replaced is the first at or cyclically after a
    uniform position. The answers are uniform. As in the benchmark, strings of length
    1 and 2 are "0" and "00" with the answer 0. "=" is the paper's congruence sign.

    >>> SolveEquation().answer("((1+z)+2)=2")
    '4'
    >>> SolveEquation().answer("(3-z)=4")
    '4'
    """

    name = "solve_equation"
    short_name = "SE"
    level = "dcf"

    def __init__(self, modulus: int = 5):
        self.modulus = modulus
        self.output_symbols = digits(modulus)
        self.input_symbols = (*self.output_symbols, *_AFTER_DIGITS)
        self.chance = 1 / modulus

    def output_length(self, length: Length) -> Length:
        return 1

    def strings(
        self, key: jax.Array, batch_size: int, length: Length, max_length: int
    ) -> jax.Array:
        symbol_key, place_key = jax.random.split(key)
        bits = position_bits(symbol_key, batch_size, max_length)
        position = jnp.arange(max_length)[None, :]
        size = jnp.maximum(length - 2, 1)
        codes = grow(bits, size, self.modulus, num_operators=2)
        codes = jnp.where(position < size, codes, blank(self.modulus))
        value = evaluate(codes, self.modulus)

        start = below(jax.random.bits(place_key, (batch_size, 1)), size)
        distance = (position - start) % size
        distance = jnp.where(codes < self.modulus, distance, max_length)
        unknown = jnp.argmin(distance, axis=1)[:, None]

        to_symbol = np.zeros(blank(self.modulus) + 1, np.int32)
        for index, symbol in enumerate(self.input_symbols):
            to_symbol[code(symbol, self.modulus)] = index
        symbols = jnp.asarray(to_symbol)[codes]
        symbols = jnp.where(position == unknown, self._index("z"), symbols)
        symbols = jnp.where(position == size, self._index("="), symbols)
        symbols = jnp.where(position == size + 1, value[:, None], symbols)
        return jnp.where(length < 3, 0, symbols)

    def solve(self, inputs: jax.Array, length: Length) -> jax.Array:
        """The left side is v + c z with c = 1 or -1, so z = c (right - v)."""
        position = jnp.arange(inputs.shape[1])[None, :]
        table = [code(symbol, self.modulus) for symbol in self.input_symbols]
        on_left = position < length - 2
        codes = jnp.where(on_left, jnp.asarray(table)[inputs], blank(self.modulus))
        is_unknown = inputs == self._index("z")
        trials = [jnp.where(is_unknown, digit, codes) for digit in (0, 1)]
        at_0, at_1 = jnp.split(evaluate(jnp.concatenate(trials), self.modulus), 2)
        right = inputs[:, jnp.maximum(length - 1, 0)]
        answer = (at_1 - at_0) * (right - at_0) % self.modulus
        return jnp.where(length < 3, 0, answer)[:, None]

    def check_form(self, symbols: list[str]) -> None:
        if symbols in (["0"], ["0", "0"]):
            return
        left, equals, right = symbols[:-2], symbols[-2:-1], symbols[-1:]
        digit = right[0] in self.output_symbols
        if equals != ["="] or not digit or left.count("z") != 1:
            raise ValueError(
                "an equation should be an expression with one z, = and a digit, but "
                f"got {''.join(symbols)!r}"
            )
        check_expression(left)

    def _index(self, symbol: str) -> int:
        return self.input_symbols.index(symbol)
