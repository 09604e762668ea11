"""Dropout whose random numbers cost next to nothing on a CPU."""

import jax
import jax.numpy as jnp
from flax import nnx


def forward_key(rngs: nnx.Rngs | None) -> jax.Array | None:
    """One key for all that is random in a forward pass; None makes nothing random.

    Example:
      >>> forward_key(None) is None
      True
    """
    if rngs is None:
        return None
    if "dropout" not in rngs and "default" not in rngs:
        raise ValueError(
            f"`rngs` should have a 'dropout' stream, but got streams {sorted(rngs)}; "
            "pass nnx.Rngs(dropout=key), or rngs=None to switch dropout off."
        )
    return rngs.dropout()


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zeroes each entry with probability `rate` and scales up the rest; None: identity.

    An entry's 32 random bits are a hash of its index, keyed by two words drawn from
    `key`: JAX's own generator (threefry) would cost about ten times as much, a fifth of
    a training step on two CPU cores. Good enough to choose what to drop; for anything
    else draw from `jax.random`. `rate` is exact to 2^-32.

    Example:
      >>> dropped = dropout(jnp.ones((4, 1000)), 0.1, jax.random.key(0))
      >>> 0.95 < float(dropped.mean()) < 1.05
      True
    """
    threshold = round(rate * 2**32)
    if key is None or threshold == 0:
        return x
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    bits = _mix(_mix(_indices(x.shape) ^ first) + second)
    scaled = x * jnp.asarray(1.0 / (1.0 - rate), x.dtype)
    return jnp.where(bits >= jnp.uint32(threshold), scaled, jnp.zeros((), x.dtype))


def _indices(shape):
    """Row-major index of every entry, modulo 2^32."""
    indices, stride = jnp.zeros(shape, jnp.uint32), 1
    for axis in reversed(range(len(shape))):
        along = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        indices = indices + along * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    return indices


def _mix(bits):
    """A permutation of the 32-bit words that spreads every bit (lowbias32, Wellons)."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)
