"""Numbers as rows of bits, of any length: what the binary tasks have in common.

B is the batch size, W the number of bits; least significant bit first.
"""

import jax
import jax.numpy as jnp

from stackformer.tasks.sampling import below, nonzero_binary, position_bits

OPERATOR = 2
END_CLASS = 2


def operands(
    key: jax.Array, batch_size: int, length: int | jax.Array, max_length: int
) -> jax.Array:
    """Strings "first operator second" of two positive numbers, shape (B, max_length).

    The length of the first number is uniform over 1..length-2; each number is uniform
    over the nonzero numbers of its length. As in the benchmark, a string shorter than
    3 is one number, uniform over 0..2**length-2.
    """
    bit_key, split_key = jax.random.split(key)
    bits = position_bits(bit_key, batch_size, max_length)
    choice = jax.random.bits(split_key, (batch_size, 1))
    split = 1 + below(choice, jnp.maximum(length - 2, 1))
    first = nonzero_binary(bits, jnp.zeros_like(split), split)
    second = nonzero_binary(bits, split + 1, length - 1 - split)
    position = jnp.arange(max_length)[None, :]
    string = jnp.where(position == split, OPERATOR, first + second)
    short = below(choice, jnp.where(length == 1, 1, 3))
    return jnp.where(length < 3, short >> jnp.minimum(position, 1) & 1, string)


def split_operands(
    inputs: jax.Array, length: int | jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The two numbers of "first operator second", each (B, L), padded with zeros."""
    position = jnp.arange(inputs.shape[1])[None, :]
    split = jnp.argmax(inputs == OPERATOR, axis=1)[:, None]
    first = jnp.where(position < split, inputs, 0)
    source = position + split + 1
    second = jnp.take_along_axis(inputs, source, axis=1, mode="clip")
    return first, jnp.where(source < length, second, 0)


def from_below(decides: jax.Array, value: jax.Array) -> jax.Array:
    """For each position, the value at the nearest deciding position before it.

    This is how a carry travels: a position where it is neither made nor stopped hands
    on the one that it gets. 0 where no position before decides.

    Args:
      decides: (B, W) bool.
      value: (B, W) bool.

    Returns:
      (B, W) int32 of 0 and 1.
    """
    width = decides.shape[1]
    marked = 2 * (1 + jnp.arange(width))[None, :] + value
    latest = jax.lax.cummax(jnp.where(decides, marked, 0), axis=1)
    return jnp.pad(latest[:, :-1], ((0, 0), (1, 0))) % 2


def add(a: jax.Array, b: jax.Array) -> jax.Array:
    """The lowest W bits of a + b; 1 + 1 makes a carry and 0 + 0 stops one."""
    total = a + b
    return (total + from_below(total != 1, total == 2)) % 2


def subtract(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The lowest W bits of a - b, and whether a >= b as a (B, 1) bool."""
    difference = a - b
    decides, negative = difference != 0, difference < 0
    borrow = from_below(decides, negative)
    last = jnp.where(decides[:, -1:], negative[:, -1:], borrow[:, -1:] == 1)
    return (difference - borrow) % 2, ~last


def end_number(bits: jax.Array) -> jax.Array:
    """Replace the zeros after the last 1 by END_CLASS; 0 itself keeps one digit."""
    position = jnp.arange(bits.shape[1])[None, :]
    last_one = jnp.max(jnp.where(bits == 1, position, 0), axis=1, keepdims=True)
    return jnp.where(position <= last_one, bits, END_CLASS)
