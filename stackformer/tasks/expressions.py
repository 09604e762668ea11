"""Bracketed expressions modulo m: grown left to right and evaluated on the device.

Both directions are one `lax.scan` over the positions with an explicit stack. Inside
this file a symbol is a code: 0..m-1 the digits, then + - * ( ) and a blank, which the
evaluation skips. B is the batch size, L the width of the arrays.

An expression of length k is

    k = 1: d    k = 2: -d    k = 3: (d)    k = 4: (-d)    k > 4: ( left op right )

with the digit d uniform, the length of the left part uniform over 1..k-4 and the
operator uniform: the distribution of Deletang et al. (2023).
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from stackformer.tasks.sampling import below

OPERATORS: tuple[str, ...] = ("+", "-", "*")
_SYMBOLS_AFTER_DIGITS = (*OPERATORS, "(", ")")


def digits(modulus: int) -> tuple[str, ...]:
    """The symbols 0..modulus-1.

    Raises:
        ValueError: the modulus is not in 2..1000.
    """
    if not isinstance(modulus, int) or not 2 <= modulus <= 1000:
        raise ValueError(f"`modulus` should be an int in 2..1000, but got {modulus!r}")
    return tuple(map(str, range(modulus)))


def code(symbol: str, modulus: int) -> int:
    """The code of a readable symbol; a symbol that is no expression's is a blank."""
    if symbol in _SYMBOLS_AFTER_DIGITS:
        return modulus + _SYMBOLS_AFTER_DIGITS.index(symbol)
    return int(symbol) if symbol.isdigit() else blank(modulus)


def blank(modulus: int) -> int:
    """The code that `evaluate` skips."""
    return modulus + len(_SYMBOLS_AFTER_DIGITS)


def _push(stack: jax.Array, item: jax.Array) -> jax.Array:
    return jnp.concatenate([item[None, :], stack[:-1]])


def _pop(stack: jax.Array) -> jax.Array:
    return jnp.concatenate([stack[1:], jnp.zeros_like(stack[:1])])


def _move(stack: jax.Array, item: jax.Array, push: jax.Array, pop: jax.Array):
    """Push an item, pop, or neither, per column of a (depth, B) stack; top in row 0."""
    moved = jnp.where(pop[None, :], _pop(stack), stack)
    return jnp.where(push[None, :], _push(stack, item), moved)


def grow(
    bits: jax.Array, length: int | jax.Array, modulus: int, num_operators: int
) -> jax.Array:
    """Random expressions of one length.

    Every step takes one item of work, emits one symbol and leaves at most two items:

        work               emits   leaves
        expression, k = 1  d
        expression, k = 2  -       expression of 1
        expression, k = 3  (       expression of 1, ")"
        expression, k = 4  (       expression of 2, ")"
        expression, k > 4  (       expression of the left length, op with the right
        op with a right    op      expression of the right length, ")"
        ")"                )

    An item is an int: k > 0 an expression, 0 a ")", -(3 * right + op) an operator
    with its right part. The next item is kept apart from the stack of the others,
    so that a step pushes one, pops one, or does neither.

    Args:
        bits: one word per symbol from `position_bits`, shape (B, L).
        length: length of the expressions, may be traced; at most L.
        modulus: m.
        num_operators: 2 for + and -, 3 for + - and *.

    Returns:
        Codes, shape (B, L) int32; what stands from `length` on is meaningless.
    """
    batch_size, width = bits.shape
    operator_0, opening, closing = modulus, modulus + 3, modulus + 4
    minus = operator_0 + OPERATORS.index("-")

    def step(state, word):
        work, stack = state
        splits = jnp.maximum(work - 4, 1)
        draw = below(word, num_operators * splits)
        operator, left = draw // splits, 1 + draw % splits
        right = work - 3 - left
        wait_operator, wait_right = -work % 3, -work // 3

        is_operator, is_closing = work < 0, work == 0
        is_digit, is_minus, is_split = work == 1, work == 2, work > 4
        emitted = jnp.where(is_digit, below(word, modulus), opening)
        emitted = jnp.where(is_minus, minus, emitted)
        emitted = jnp.where(is_closing, closing, emitted)
        emitted = jnp.where(is_operator, operator_0 + wait_operator, emitted)

        pop = is_digit | is_closing
        push = ~pop & ~is_minus
        following = jnp.where(is_split, left, work - 2)
        following = jnp.where(is_minus, 1, following)
        following = jnp.where(is_operator, wait_right, following)
        following = jnp.where(pop, stack[0], following)
        later = jnp.where(is_split, -(3 * right + operator), 0)
        return (following, _move(stack, later, push, pop)), emitted

    # A waiting item belongs to a bracket pair, which has at least three symbols.
    depth = width // 3 + 1
    work = jnp.full((batch_size,), length, jnp.int32)
    state = work, jnp.zeros((depth, batch_size), jnp.int32)
    _, emitted = jax.lax.scan(step, state, bits.T)
    return emitted.T


def evaluate(codes: jax.Array, modulus: int) -> jax.Array:
    """The values of expressions modulo m.

    Reads left to right with the usual precedence. A bracket level is (total, term,
    pending): the value so far is total + term, and the pending operator waits for its
    right side, to be negated if a sign came after the operator. "(" saves the level on
    the stack; ")" ends it and gives its value to the level below as if it were a digit.

    Args:
        codes: shape (B, L); blanks are skipped.
        modulus: m.

    Returns:
        Values in 0..m-1, shape (B,) int32.

    Example:
        >>> codes = [[code(s, 5) for s in "(1+2)*-3"]]
        >>> evaluate(jnp.asarray(codes), 5).tolist()
        [1]
    """
    batch_size, width = codes.shape
    first_operator, opening, closing = modulus, modulus + 3, modulus + 4
    minus, times = OPERATORS.index("-"), OPERATORS.index("*")

    def step(state, symbol):
        total, term, pending, after_value, stack = state
        opens, closes = symbol == opening, symbol == closing
        is_operator = (symbol >= first_operator) & (symbol < opening)
        is_value = (symbol < modulus) | closes
        value = jnp.where(closes, total + term, symbol)
        # pending is the operator, + 3 if the right side is to be negated.
        saved = (total * modulus + term) * 6 + pending
        total = jnp.where(closes, stack[0] // (6 * modulus), total)
        term = jnp.where(closes, stack[0] // 6 % modulus, term)
        pending = jnp.where(closes, stack[0] % 6, pending)

        operator = pending % 3
        value = jnp.where(pending >= 3, -value, value)
        signed = jnp.where(operator == minus, -value, value)
        multiply = operator == times
        new_total = jnp.where(multiply, total, total + term) % modulus
        new_term = jnp.where(multiply, term * value, signed) % modulus
        total = jnp.where(opens, 0, jnp.where(is_value, new_total, total))
        term = jnp.where(opens, 0, jnp.where(is_value, new_term, term))

        is_sign = (symbol == first_operator + minus) & ~after_value
        pending = jnp.where(is_operator & ~is_sign, symbol - first_operator, pending)
        pending = jnp.where(is_sign, (pending + 3) % 6, pending)
        pending = jnp.where(opens, 0, pending)
        after_value = (after_value | is_value) & ~opens & ~is_operator
        stack = _move(stack, saved, opens, closes)
        return (total, term, pending, after_value, stack), None

    zeros = jnp.zeros((batch_size,), jnp.int32)
    stack = jnp.zeros((width // 2 + 1, batch_size), jnp.int32)
    state = zeros, zeros, zeros, jnp.zeros((batch_size,), bool), stack
    (total, term, *_), _ = jax.lax.scan(step, state, codes.T)
    return (total + term) % modulus


def check_expression(symbols: Sequence[str]) -> None:
    """Raises `ValueError` unless this is an expression that `evaluate` can read.

    >>> check_expression("(1+2)*-3")
    >>> check_expression("(1+2")
    Traceback (most recent call last):
    ValueError: an expression should close its brackets, but got '(1+2'
    """
    depth, after_value, text = 0, False, "".join(symbols)
    for symbol in symbols:
        if symbol == "(" and not after_value:
            depth += 1
        elif symbol == ")" and after_value and depth:
            depth -= 1
        elif symbol in OPERATORS and (after_value or symbol == "-"):
            after_value = False
        elif symbol not in (*OPERATORS, "(", ")") and not after_value:
            after_value = True
        else:
            raise ValueError(
                f"an expression should not have {symbol!r} where it stands, but got "
                f"{text!r}"
            )
    if not after_value:
        raise ValueError(f"an expression should end with a value, but got {text!r}")
    if depth:
        raise ValueError(f"an expression should close its brackets, but got {text!r}")


def value_probabilities(modulus: int, max_length: int) -> np.ndarray:
    """The exact distribution of the value of `grow`'s expressions with + - and *.

    By recursion over the length: the parts of an expression are independent given
    their lengths.

    Returns:
        Probabilities of shape (max_length + 1, m); row k is for length k, row 0 unused.
    """
    d = np.arange(modulus)
    results = [(d[:, None] + d) % modulus, (d[:, None] - d) % modulus]
    results.append(d[:, None] * d % modulus)
    rows = np.full((max(max_length, 4) + 1, modulus), 1 / modulus)
    for length in range(5, max_length + 1):
        left, right = rows[1 : length - 3], rows[length - 4 : 0 : -1]
        joint = (left.T @ right).ravel() / (length - 4)
        rows[length] = sum(np.bincount(r.ravel(), joint, modulus) for r in results) / 3
    return rows[: max_length + 1]
