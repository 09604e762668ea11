"""From action logits to the actions that move a stack: mixed, sampled or hard."""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer.ops.stack_attention.api import StackAction

Array = jax.Array
Sampling = Literal["soft", "gumbel", "straight_through"]
SAMPLINGS: tuple[Sampling, ...] = ("soft", "gumbel", "straight_through")


def choose_actions(
    logits: Array,
    *,
    sampling: Sampling = "soft",
    temperature: float = 1.0,
    rngs: nnx.Rngs | None = None,
    hard: bool | Array = False,
) -> Array:
    """Actions that sum to one, with a gradient into the logits whatever is chosen.

        soft              q = softmax(z)
        straight_through  one_hot(argmax q) + q - stop_gradient(q)
        gumbel            the same with z + Gumbel noise in place of z, which makes the
                          action a sample of softmax(z); without `rngs` there is no
                          noise

    Hard actions make a real stack (Theorem 1 of the paper), with the gradient of the
    superposition.

    Args:
      logits: z, shape (..., A).
      sampling: see above.
      temperature: divides z (with its noise) in q, so it acts on the gradient alone
        where the action is hard.
      rngs: draws the noise; stream "actions".
      hard: straight_through in place of soft; may be traced.

    Returns:
      Shape (..., A), float32 or the logits' wider dtype.

    Example:
      >>> print(choose_actions(jnp.array([0.0, 2.0, 1.0]), hard=True))
      [0. 1. 0.]
    """
    if sampling == "gumbel" and rngs is not None:
        logits = logits + jax.random.gumbel(rngs.actions(), logits.shape, logits.dtype)
    soft = jax.nn.softmax(logits if temperature == 1.0 else logits / temperature)
    if sampling == "soft" and isinstance(hard, bool) and not hard:
        return soft
    largest = jnp.argmax(logits, axis=-1)
    one_hot = jax.nn.one_hot(largest, logits.shape[-1], dtype=soft.dtype)
    straight = one_hot + (soft - jax.lax.stop_gradient(soft))
    if sampling == "soft" and not isinstance(hard, bool):
        return jnp.where(hard, straight, soft)
    return straight


def noop_outside(inside: Array, actions: Array) -> Array:
    """The actions, a no-op where `inside`, of their shape without the last axis, is
    False.

    Example:
      >>> print(noop_outside(jnp.array([True, False]), jnp.ones((2, 3)) / 4))
      [[0.25 0.25 0.25]
       [0.   0.   1.  ]]
    """
    noop = jax.nn.one_hot(StackAction.NOOP, actions.shape[-1], dtype=actions.dtype)
    noop = noop.reshape((1,) * (actions.ndim - 1) + noop.shape)
    return jnp.where(inside[..., None], actions, noop)


def entropy(logits: Array) -> Array:
    """Of softmax(logits), in nats, shape (...).

    Example:
      >>> print(entropy(jnp.zeros(3)), entropy(jnp.array([100.0, 0.0, 0.0])))
      1.0986123 0.0
    """
    log_p = jax.nn.log_softmax(logits)
    return jnp.sum(-jnp.exp(log_p) * log_p, axis=-1)
