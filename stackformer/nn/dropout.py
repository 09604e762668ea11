"""Dropout whose random bits are cheap on a CPU."""

import jax
import jax.numpy as jnp
from flax import nnx

_LEVELS = 1 << 16


def dropout_key(rngs: nnx.Rngs | None, rate: float) -> jax.Array | None:
    """One key for a whole forward pass, or None where nothing is to be dropped.

    Example:
      >>> dropout_key(None, 0.1) is None
      True
    """
    if rngs is None or rate == 0.0:
        return None
    if "dropout" not in rngs and "default" not in rngs:
        raise ValueError(
            "`rngs` should have a 'dropout' stream, but got streams "
            f"{sorted(rngs)}; pass nnx.Rngs(dropout=key), or rngs=None to switch "
            "dropout off."
        )
    return rngs.dropout()


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zeroes each entry with probability `rate` and scales up the rest; None: identity.

    Sixteen random bits decide each entry, two entries share one random word: `rate` is
    rounded to a multiple of 2^-16 (0.1 becomes 0.100006) and what is left is divided by
    the rounded probability of being kept, so the expectation is exact.

    Example:
      >>> dropped = dropout(jnp.ones((4, 1000)), 0.1, jax.random.key(0))
      >>> 0.95 < float(dropped.mean()) < 1.05
      True
    """
    threshold = round(rate * _LEVELS)
    if key is None or threshold == 0:
        return x
    *batch, features = x.shape
    words = jax.random.bits(key, (*batch, (features + 1) // 2), jnp.uint32)
    bits = jnp.concatenate([words & 0xFFFF, words >> 16], axis=-1)[..., :features]
    scale = jnp.asarray(_LEVELS / (_LEVELS - threshold), x.dtype)
    return jnp.where(bits >= threshold, x * scale, jnp.zeros((), x.dtype))
