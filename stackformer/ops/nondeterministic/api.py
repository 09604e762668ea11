"""The public function: shapes are checked once, here, and a form is chosen."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from stackformer.checks import check_choice
from stackformer.ops.nondeterministic.recurrent import LOG_ZERO, Transitions
from stackformer.ops.nondeterministic.reference import nondeterministic_reference
from stackformer.ops.nondeterministic.scan import nondeterministic_scan

Array = jax.Array
FORMS: dict[str, Callable[..., Array]] = {
    "reference": nondeterministic_reference,
    "scan": nondeterministic_scan,
}


def nondeterministic_stack(
    transitions: Array,
    values: Array,
    *,
    num_states: int,
    num_symbols: int,
    mask: Array | None = None,
    segment_ids: Array | None = None,
    implementation: str = "scan",
) -> Array:
    """The top of the stack in expectation over all runs of a weighted automaton.

    The automaton begins in state 0 with one element on its stack, the symbol 0 with the
    vector of position 0. Every further position takes a transition: a push puts a
    symbol with this position's vector on top, a replace changes the symbol on top and
    keeps its vector, a pop takes the top away, where something lies below. All of them
    may change the state. A run weighs the product of its transitions.

    Legend: T positions, Q states, S symbols, D features of a vector.

    Args:
      transitions: log weights, shape (..., T, count) with `Transitions.count` of them;
        those of position 0 are ignored. A constant at a position changes nothing.
      values: vectors, shape (..., T, D).
      num_states: Q.
      num_symbols: S.
      mask: False where a position changes nothing, shape (..., T).
      segment_ids: integers, shape (..., T): neighbours of one number are a string of
        their own, and its first position is its bottom.
      implementation: "scan", or "reference", plain loops for short strings.

    Returns:
      P(state, symbol) E[vector | state, symbol] after every position, shape
      (..., T, Q, S, D). Time is O(T^3 Q^3 S^2), memory O(T^2 Q^2 S^2).

    Example, two pushes and a pop uncover the first of them:
      >>> logs = jnp.log(jnp.array([[1, 1, 1], [1, 0, 0], [1, 0, 0], [0, 1, 0.0]]))
      >>> values = jnp.array([[0.0], [1.0], [2.0], [3.0]])
      >>> top = nondeterministic_stack(logs, values, num_states=1, num_symbols=1)
      >>> print(top[:, 0, 0, 0])
      [0. 1. 2. 1.]
    """
    check_choice("implementation", implementation, FORMS)
    lead = values.shape[:-1]
    expected = (*lead, Transitions.count(num_states, num_symbols))
    if values.ndim < 2 or transitions.shape != expected:
        raise ValueError(
            f"`transitions` shape should be {expected}, as `values` has shape "
            f"{values.shape}, but got {transitions.shape}."
        )
    for name, array in (("mask", mask), ("segment_ids", segment_ids)):
        if array is not None and array.shape != lead:
            raise ValueError(
                f"`{name}` shape should be {lead}, that of `values` without its last "
                f"axis, but got {array.shape}."
            )
    keep = jnp.ones(lead, bool) if mask is None else mask
    starts = jnp.zeros(lead, bool)
    if segment_ids is not None:
        starts = starts.at[..., 1:].set(segment_ids[..., 1:] != segment_ids[..., :-1])
    # -inf, a transition that cannot be, would make gradients NaN.
    wide = jnp.promote_types(transitions.dtype, jnp.float32)
    transitions = jnp.maximum(transitions.astype(wide), LOG_ZERO)

    def flat(array: Array) -> Array:
        return array.reshape(-1, *array.shape[len(lead) - 1 :])

    readings = FORMS[implementation](
        flat(transitions),
        flat(values).astype(wide),
        keep=flat(keep),
        starts=flat(starts.at[..., 0].set(True)),
        num_states=num_states,
        num_symbols=num_symbols,
    )
    return readings.reshape(*lead, *readings.shape[2:]).astype(values.dtype)
