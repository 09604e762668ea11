"""The public functions: shapes are checked once, here, and a form is chosen.

Dimension legend, for this folder:
  T positions (N + 1 for a string of N tokens: position 0 is the bottom, BOS)
  A actions (3; more with `max_pops`)
  D features of a value
  H elements that the stack remembers
"""

import enum
from typing import Literal, overload

import jax
import jax.numpy as jnp
from jax.experimental import checkify

from stackformer.checks import check_arrays
from stackformer.ops.stack_attention.form import Options
from stackformer.ops.stack_attention.forms import FORMS, select
from stackformer.ops.stack_attention.sharding import on_shards


class StackAction(enum.IntEnum):
    """The last axis of every `actions` array."""

    PUSH = 0
    POP = 1
    NOOP = 2


def stack_attention_weights(
    actions: jax.Array,
    *,
    implementation: str | None = None,
    chunk_size: int | None = None,
    max_depth: int | None = None,
    max_pops: int = 1,
    segment_ids: jax.Array | None = None,
    check: bool = False,
) -> jax.Array:
    """The stack attention matrix alpha of the paper.

    Row i is the distribution of the top of the stack after step i over positions
    0..i (equations 9 to 13 of the paper, "A Transformer with Stack Attention"):

      alpha_0 = e_0
      alpha_i = a_i(push) e_i + a_i(no-op) alpha_{i-1}
                + a_i(pop) (sum_{j=1}^{i-1} alpha_{i-1}(j) alpha_{j-1}
                            + alpha_{i-1}(0) alpha_0)

    Args:
      actions: probabilities of (push, pop, no-op), shape (..., T, 3), float32 or
        bfloat16. The first position is the bottom of the stack: its actions are
        ignored. Probabilities are used as they are; nothing re-normalises them.
      implementation: "reference", "scan", "chunkwise", "recurrent", "pallas", or None
        to choose by shape (`stackformer.ops.describe_dispatch` shows how). A form that
        cannot serve an option refuses it.
      chunk_size: the chunk length of the chunkwise form; None chooses.
      max_depth: the number of elements that the stack remembers; what is pushed deeper
        is forgotten, the bottom stands in its place. None is all. The chunkwise, the
        recurrent and the pallas form take it; their cost then grows linearly with T.
      max_pops: the largest number of elements that one step can pop. With K > 1
        the last axis has K + 2 entries: push, pop 1, no-op, pop 2, ..., pop K. The
        reference and the recurrent form take it.
      segment_ids: integers, shape (..., T): neighbours of one number are a string of
        their own, as if it had been given alone. Its first position is its bottom,
        whose actions are ignored. All forms take it.
      check: for debugging, check that every action distribution is non-negative
        and sums to one (1e-3; 2e-2 in bfloat16). Under `jax.jit` the caller must
        wrap the function in `jax.experimental.checkify.checkify`.

    Returns:
      alpha, shape (..., T, T), the dtype of `actions`; computed in float32.

    Forward mode (`jax.jvp`, `jax.jacfwd`, `jax.linearize`) wants
    implementation="recurrent"; reverse mode, and forward over reverse, work with all.

    Example:
      >>> import jax, stackformer
      >>> from stackformer import StackAction
      >>> string = [StackAction.NOOP, StackAction.PUSH, StackAction.PUSH,
      ...           StackAction.POP]
      >>> alpha = stackformer.stack_attention_weights(jax.nn.one_hot(string, 3))
      >>> print(alpha.argmax(-1))  # the position on top: bottom, 1, 2, 1 again
      [0 1 2 1]
    """
    options = Options(
        chunk_size=chunk_size,
        max_depth=max_depth,
        max_pops=max_pops,
        segment_ids=segment_ids is not None,
    )
    _check_actions(actions, max_pops)
    if check:
        _check_simplex(actions)
    starts = _starts(actions, segment_ids, first=True)
    choice = select(actions.shape[-2], None, options, implementation=implementation)
    form = FORMS[choice.implementation]
    alpha = on_shards(
        form.weights, _accumulator(actions), starts=starts, options=choice.options
    )
    return alpha.astype(actions.dtype)


@overload
def stack_attention(
    actions: jax.Array,
    values: jax.Array,
    *,
    implementation: str | None = ...,
    chunk_size: int | None = ...,
    max_depth: int | None = ...,
    max_pops: int = ...,
    segment_ids: jax.Array | None = ...,
    initial_state: jax.Array | None = ...,
    return_state: Literal[False] = ...,
    check: bool = ...,
) -> jax.Array: ...


@overload
def stack_attention(
    actions: jax.Array,
    values: jax.Array,
    *,
    implementation: str | None = ...,
    chunk_size: int | None = ...,
    max_depth: int | None = ...,
    max_pops: int = ...,
    segment_ids: jax.Array | None = ...,
    initial_state: jax.Array | None = ...,
    return_state: Literal[True],
    check: bool = ...,
) -> tuple[jax.Array, jax.Array]: ...


def stack_attention(
    actions: jax.Array,
    values: jax.Array,
    *,
    implementation: str | None = None,
    chunk_size: int | None = None,
    max_depth: int | None = None,
    max_pops: int = 1,
    segment_ids: jax.Array | None = None,
    initial_state: jax.Array | None = None,
    return_state: bool = False,
    check: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """What lies on top of the stack at every position: alpha @ values.

    Args:
      actions: as in `stack_attention_weights`, shape (..., T, 3).
      values: what a push puts on the stack, shape (..., T, D), with the same
        leading axes; the first position is the bottom, read from an empty stack.
      implementation: as in `stack_attention_weights`.
      chunk_size: as in `stack_attention_weights`.
      max_depth: as in `stack_attention_weights`.
      max_pops: as in `stack_attention_weights`.
      segment_ids: as in `stack_attention_weights`. With an initial state the first
        segment goes on with it.
      initial_state: the stack before position 0, shape (..., H + 1, D), from an earlier
        call or `stackformer.ops.init_stack_state`: position 0 is then a position as any
        other. None: position 0 is the bottom. The chunkwise and the recurrent form
        take it.
      return_state: return the stack after the last position too. Pieces of a string,
        each with the state of the one before, equal the whole, in every gradient.
      check: as in `stack_attention_weights`.

    Returns:
      The expected top, shape (..., T, D), the dtype of `values`; computed in
      float32. With `return_state` the pair of it and the state, (..., H + 1, D) in
      float32: the expected elements from the top down, and the bottom; H is
      `max_depth`, or else as many as there can be.

    Forward mode (`jax.jvp`, `jax.jacfwd`, `jax.linearize`) wants
    implementation="recurrent"; reverse mode, and forward over reverse, work with all.

    Example:
      >>> import jax, jax.numpy as jnp, stackformer
      >>> actions = jax.nn.one_hot(jnp.array([2, 0, 0, 1]), 3)  # -, push, push, pop
      >>> values = jnp.array([[0.0], [10.0], [20.0], [30.0]])
      >>> print(stackformer.stack_attention(actions, values)[:, 0])
      [ 0. 10. 20. 10.]

    In two pieces:
      >>> top, state = stackformer.stack_attention(
      ...     actions[:2], values[:2], return_state=True)
      >>> print(stackformer.stack_attention(
      ...     actions[2:], values[2:], initial_state=state)[:, 0])
      [20. 10.]
    """
    options = Options(
        chunk_size=chunk_size,
        max_depth=max_depth,
        max_pops=max_pops,
        segment_ids=segment_ids is not None,
        initial_state=initial_state is not None,
        return_state=return_state,
    )
    _check_actions(actions, max_pops)
    _check_values(actions, values)
    if check:
        _check_simplex(actions)
    choice = select(
        actions.shape[-2], values.shape[-1], options, implementation=implementation
    )
    dtype = jnp.promote_types(_accumulator(actions).dtype, values.dtype)
    if initial_state is not None:
        check_arrays(initial_state=initial_state)
        _check_state(values, initial_state)
        initial_state = initial_state.astype(dtype)
    top, state = on_shards(
        FORMS[choice.implementation].attend,
        actions.astype(dtype),
        values.astype(dtype),
        starts=_starts(actions, segment_ids, first=initial_state is None),
        initial_state=initial_state,
        options=choice.options,
        through_weights=choice.through_weights,
    )
    top = top.astype(values.dtype)
    if not return_state:
        return top
    assert state is not None
    return top, state


def _starts(
    actions: jax.Array, segment_ids: jax.Array | None, *, first: bool
) -> jax.Array | None:
    """True where a string begins, (..., T); `first` says whether position 0 does."""
    if segment_ids is None:
        return None
    check_arrays(segment_ids=segment_ids)
    if segment_ids.shape != actions.shape[:-1]:
        raise ValueError(
            f"`segment_ids` shape should be {actions.shape[:-1]}, that of `actions` "
            f"without its last axis, but got {segment_ids.shape}."
        )
    if not jnp.issubdtype(segment_ids.dtype, jnp.integer):
        raise ValueError(
            f"`segment_ids` dtype should be an integer type, but got "
            f"{segment_ids.dtype}."
        )
    changes = segment_ids[..., 1:] != segment_ids[..., :-1]
    widths = [(0, 0)] * (changes.ndim - 1) + [(1, 0)]
    return jnp.pad(changes, widths, constant_values=first)


def _accumulator(array: jax.Array) -> jax.Array:
    """Casts to the dtype of the recurrence: float32, or float64 where given."""
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


def _check_actions(actions: jax.Array, max_pops: int) -> None:
    if actions is None:
        raise TypeError("`actions` should be an array, but got None.")
    check_arrays(actions=actions)
    expected = f"(..., T, {max_pops + 2}) with T >= 1"
    if actions.ndim < 2 or actions.shape[-1] != max_pops + 2 or actions.shape[-2] < 1:
        raise ValueError(
            f"`actions` shape should be {expected} (probabilities of push, pop and "
            f"no-op for each position), but got {actions.shape}."
        )
    _check_floating("actions", actions)


def _check_values(actions: jax.Array, values: jax.Array) -> None:
    check_arrays(values=values)
    if values.ndim < 2 or values.shape[:-1] != actions.shape[:-1]:
        expected = ", ".join(map(str, actions.shape[:-1]))
        raise ValueError(
            f"`values` shape should be ({expected}, D), as `actions` has shape "
            f"{actions.shape}, but got {values.shape}."
        )
    _check_floating("values", values)


def _check_state(values: jax.Array, state: jax.Array) -> None:
    lead, features = values.shape[:-2], values.shape[-1]
    fits = state.ndim == values.ndim and state.shape[:-2] == lead
    if not fits or state.shape[-1] != features or state.shape[-2] < 2:
        expected = ", ".join(map(str, (*lead, "H + 1", features)))
        raise ValueError(
            f"`initial_state` shape should be ({expected}) with H >= 1, as `values` "
            f"has shape {values.shape}, but got {state.shape}."
        )
    _check_floating("initial_state", state)


def _check_floating(name: str, array: jax.Array) -> None:
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(
            f"`{name}` dtype should be a floating type such as float32 or bfloat16, "
            f"but got {array.dtype}."
        )


def _check_simplex(actions: jax.Array) -> None:
    wide = _accumulator(actions)[..., 1:, :]
    tolerance = 1e-3 if actions.dtype.itemsize >= 4 else 2e-2
    off = jnp.abs(wide.sum(-1) - 1.0).max(initial=0.0)
    lowest = wide.min(initial=1.0)
    checkify.check(
        (off <= tolerance) & (lowest >= 0.0),
        "`actions` should lie on the simplex, but a sum is off by {off} and the "
        "lowest probability is {lowest}; pass probabilities, not logits.",
        off=off,
        lowest=lowest,
    )
