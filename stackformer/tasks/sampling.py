"""Random draws whose values do not depend on how far a string is padded.

`jax.random.bits(key, (batch, max_length))` gives other bits when `max_length`
changes. Here position i has its own key, so that a string of length n is the same
string whether it is drawn alone or inside an array of any greater width.

B is the batch size and L the width of the array.
"""

import zlib

import jax
import jax.numpy as jnp
import numpy as np

# Of the frozen test strings.
FROZEN_SEED = 0
# Strings of one length that are drawn at once; more come in further blocks.
FROZEN_STRINGS = 512


def frozen_key(
    task_name: str, length: int | jax.Array, block: int | jax.Array = 0
) -> jax.Array:
    """The key of a block of test strings of a task and a length.

    Block 0 has the strings of the frozen test set; every block has a key of its own,
    so that any number of strings can be drawn without holding more than one block.
    """
    key = jax.random.fold_in(
        jax.random.key(FROZEN_SEED), zlib.crc32(task_name.encode())
    )
    key = jax.random.fold_in(key, length)
    data = jax.random.key_data(key)
    further = jax.random.key_data(jax.random.fold_in(key, block))
    chosen = jnp.where(jnp.equal(block, 0), data, further)
    return jax.random.wrap_key_data(chosen, impl=jax.random.key_impl(key))


def position_bits(key: jax.Array, batch_size: int, max_length: int) -> jax.Array:
    """Independent uniform 32-bit words, shape (B, L) uint32; column i knows no L.

    Example:
      >>> key = jax.random.key(0)
      >>> wide, narrow = position_bits(key, 2, 9), position_bits(key, 2, 5)
      >>> bool((wide[:, :5] == narrow).all())
      True
    """
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(max_length))
    return jax.vmap(lambda k: jax.random.bits(k, (batch_size,)), out_axes=1)(keys)


def below(bits: jax.Array, bound: int | jax.Array) -> jax.Array:
    """Uniform integers in 0..bound-1 from 32-bit words, as int32.

    The remainder favours small values by less than bound / 2**32, which is below
    one in ten million for every bound used here.
    """
    bound = jnp.asarray(bound).astype(jnp.uint32)
    return (bits % jnp.broadcast_to(bound, bits.shape)).astype(jnp.int32)


def uniform_symbols(
    key: jax.Array, batch_size: int, max_length: int, num_symbols: int
) -> jax.Array:
    """Independent uniform symbols 0..num_symbols-1, shape (B, L) int32."""
    return below(position_bits(key, batch_size, max_length), num_symbols)


# By the number of bits left: the greatest 32-bit word for which a first 1 comes now.
# Integers, so that every device draws the same numbers.
_FIRST_ONE = np.asarray(
    [0, *(2 ** (31 + k) // (2**k - 1) - 1 for k in range(1, 34))], np.uint32
)


def nonzero_binary(bits: jax.Array, start: jax.Array, length: jax.Array) -> jax.Array:
    """Binary strings in part of an array: uniform over all but the all-zero one.

    The string fills positions start..start+length-1 of each row. A bit with k bits
    left (itself included) and only zeros before it is 1 with probability
    2**(k-1) / (2**k - 1); a bit after the first 1 is fair. That is the uniform
    distribution over the 2**length - 1 nonzero numbers of this many bits.

    Args:
      bits: words from `position_bits`, shape (B, L).
      start: first position of each row's string, shape (B, 1).
      length: length of each row's string, shape (B, 1).

    Returns:
      int32 array of shape (B, L), zero outside the string.
    """
    position = jnp.arange(bits.shape[1])[None, :] - start
    inside = (position >= 0) & (position < length)
    left = jnp.clip(length - position, 1, len(_FIRST_ONE) - 1)
    may_be_first = inside & (bits <= jnp.asarray(_FIRST_ONE)[left])
    first = jnp.argmax(may_be_first, axis=1, keepdims=True) - start
    fair = (bits < jnp.uint32(2**31)) & (position > first)
    return (inside & ((position == first) | fair)).astype(jnp.int32)
