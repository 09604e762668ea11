"""The balance term: actions that are brackets, learned from strings without answers."""

import jax
import jax.numpy as jnp

from stackformer.models.outputs import Aux
from stackformer.models.supervision import action_counts

# The imbalance that counts as none, and the price of an action at every position.
_NONE, _PRICE = 1e-3, 1.0


def balance_loss(
    aux: Aux, *, mask: jax.Array | None = None, explore: jax.Array | float = 0.0
) -> jax.Array:
    """How far the actions are from being the brackets of a balanced language.

    Actions are brackets if in every string they close all that they open, and never
    close what was not opened; of such actions, those are wanted that act often, and not
    equally often in all strings, at a price for each. With p_i and o_i the
    probabilities of push and pop, v_i = p_i - o_i, a_i = p_i + o_i, D_i = v_1 + .. +
    v_i the depth, n the length of a string, E and Std over strings:

        wrong = E[(D_n² + sum_i relu(-D_i)² + (1 - explore) sum_i (a_i - v_i²)) / n]
        work  = Std[sum_i v_i²] / E[n]
        loss  = log(wrong + 0.001) - log(work) + E[mean_i a_i]

    D_n² + sum_i (a_i - v_i²) is the expectation of (pushes - pops)² where actions are
    sampled; its second part is zero if and only if all actions are certain. With
    explore = 1 wrong / work does not depend on the scale of v: it finds the null space
    of the strings' symbol counts while actions are soft. With explore going to 0 they
    become certain, and no-op where little is gained: a symbol that each string has once
    gains nothing.

    It is a prior on the language, for strings that have brackets; it knows nothing of
    answers, nor of which symbols are brackets.

    Args:
      aux: of a forward pass with return_aux="actions" (or True).
      mask: True at real positions, shape (B, T). Strings should be of many lengths.
      explore: 1 while searching, 0 to have the actions decided.

    Returns:
      A scalar, the mean over the layers with one stack of three actions.
    """
    losses = [
        _balance(
            jax.nn.softmax(logits), action_counts(logits.shape[:-1], aux, mask), explore
        )
        for logits in aux.action_logits
        if logits is not None and logits.ndim == 3 and logits.shape[-1] == 3
    ]
    if not losses:
        raise ValueError(
            "`aux` should have the logits of a stack with push, pop and no-op, but has "
            "none; call the model with return_aux='actions'."
        )
    return jnp.mean(jnp.stack(losses))


def _balance(
    actions: jax.Array, counts: jax.Array, explore: jax.Array | float
) -> jax.Array:
    push, pop = actions[..., 0] * counts, actions[..., 1] * counts
    v, a = push - pop, push + pop
    n = jnp.maximum(counts.sum(1), 1.0)
    depth = jnp.cumsum(v, axis=1)
    below = jnp.sum(jax.nn.relu(-depth) ** 2 * counts, axis=1)
    uncertain = jnp.sum(a - v**2, axis=1)
    wrong = jnp.mean((depth[:, -1] ** 2 + below + (1.0 - explore) * uncertain) / n)
    # The variance of one kind of string is 0, where a root has no gradient.
    work = jnp.sqrt(jnp.var(jnp.sum(v**2, axis=1)) + 1e-10) / jnp.mean(n)
    price = _PRICE * jnp.mean(a.sum(1) / n)
    return jnp.log(wrong + _NONE) - jnp.log(work + 1e-6) + price
