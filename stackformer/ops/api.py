"""The public functions: shapes are checked once, here, and a form is chosen.

Dimension legend, for this folder:
  T positions (N + 1 for a string of N tokens: position 0 is the bottom, BOS)
  A actions (3; more with `max_pops`)
  D features of a value
  H elements that the stack remembers
"""

import enum

import jax
import jax.numpy as jnp
from jax.experimental import checkify

from stackformer.ops.chunkwise import (
    stack_attention_chunkwise,
    stack_attention_weights_chunkwise,
)
from stackformer.ops.dispatch import Choice, choose
from stackformer.ops.recurrent import stack_attention_recurrent
from stackformer.ops.reference import stack_attention_weights_reference
from stackformer.ops.scan import stack_attention_weights_scan


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
      implementation: "reference", "scan", "chunkwise", "recurrent", or None to choose
        by shape (`stackformer.ops.describe_dispatch` shows how).
      chunk_size: the chunk length of the chunkwise form; None chooses.
      max_depth: the number of elements that the stack remembers; what is pushed deeper
        is forgotten, the bottom stands in its place. None is all. The chunkwise and
        the recurrent form take it; their cost then grows linearly with T.
      max_pops: the largest number of elements that one step can pop. With K > 1
        the last axis has K + 2 entries: push, pop 1, no-op, pop 2, ..., pop K. The
        reference and the recurrent form take it.
      check: for debugging, check that every action distribution is non-negative
        and sums to one (1e-3; 2e-2 in bfloat16). Under `jax.jit` the caller must
        wrap the function in `jax.experimental.checkify.checkify`.

    Returns:
      alpha, shape (..., T, T), the dtype of `actions`; computed in float32.

    Example:
      >>> import jax, stackformer
      >>> from stackformer import StackAction
      >>> string = [StackAction.NOOP, StackAction.PUSH, StackAction.PUSH,
      ...           StackAction.POP]
      >>> alpha = stackformer.stack_attention_weights(jax.nn.one_hot(string, 3))
      >>> print(alpha.argmax(-1))  # the position on top: bottom, 1, 2, 1 again
      [0 1 2 1]
    """
    _check_actions(actions, max_pops)
    if check:
        _check_simplex(actions)
    choice = choose(
        actions.shape[-2],
        None,
        implementation=implementation,
        chunk_size=chunk_size,
        max_depth=max_depth,
        max_pops=max_pops,
    )
    weights = _weights(_accumulator(actions), choice, max_depth, max_pops)
    return weights.astype(actions.dtype)


def stack_attention(
    actions: jax.Array,
    values: jax.Array,
    *,
    implementation: str | None = None,
    chunk_size: int | None = None,
    max_depth: int | None = None,
    max_pops: int = 1,
    check: bool = False,
) -> jax.Array:
    """What lies on top of the stack at every position: alpha @ values.

    Args:
      actions: as in `stack_attention_weights`, shape (..., T, 3).
      values: what a push puts on the stack, shape (..., T, D), with the same
        leading axes; the first position is the bottom, read from an empty stack.
      implementation: as in `stack_attention_weights`.
      chunk_size: as in `stack_attention_weights`.
      max_depth: as in `stack_attention_weights`.
      max_pops: as in `stack_attention_weights`.
      check: as in `stack_attention_weights`.

    Returns:
      The expected top, shape (..., T, D), the dtype of `values`; computed in
      float32.

    Example:
      >>> import jax, jax.numpy as jnp, stackformer
      >>> actions = jax.nn.one_hot(jnp.array([2, 0, 0, 1]), 3)  # -, push, push, pop
      >>> values = jnp.array([[0.0], [10.0], [20.0], [30.0]])
      >>> print(stackformer.stack_attention(actions, values)[:, 0])
      [ 0. 10. 20. 10.]
    """
    _check_actions(actions, max_pops)
    _check_values(actions, values)
    if check:
        _check_simplex(actions)
    choice = choose(
        actions.shape[-2],
        values.shape[-1],
        implementation=implementation,
        chunk_size=chunk_size,
        max_depth=max_depth,
        max_pops=max_pops,
    )
    dtype = jnp.promote_types(_accumulator(actions).dtype, values.dtype)
    wide_actions, wide_values = actions.astype(dtype), values.astype(dtype)
    if choice.through_weights:
        weights = _weights(wide_actions, choice, max_depth, max_pops)
        top = jnp.matmul(weights, wide_values, precision=jax.lax.Precision.HIGHEST)
    elif choice.implementation == "chunkwise":
        top = stack_attention_chunkwise(
            wide_actions,
            wide_values,
            chunk_size=choice.chunk_size,
            max_depth=max_depth,
        )
    else:
        top = stack_attention_recurrent(
            wide_actions, wide_values, max_depth=max_depth, max_pops=max_pops
        )
    return top.astype(values.dtype)


def _weights(
    actions: jax.Array, choice: Choice, max_depth: int | None, max_pops: int
) -> jax.Array:
    if choice.implementation == "reference":
        return stack_attention_weights_reference(actions, max_pops=max_pops)
    if choice.implementation == "scan":
        return stack_attention_weights_scan(actions)
    if choice.implementation == "chunkwise":
        return stack_attention_weights_chunkwise(
            actions, chunk_size=choice.chunk_size, max_depth=max_depth
        )
    length = actions.shape[-2]
    positions = jnp.broadcast_to(
        jnp.eye(length, dtype=actions.dtype), (*actions.shape[:-1], length)
    )
    return stack_attention_recurrent(
        actions, positions, max_depth=max_depth, max_pops=max_pops
    )


def _accumulator(array: jax.Array) -> jax.Array:
    """Casts to the dtype of the recurrence: float32, or float64 where given."""
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


def _check_actions(actions: jax.Array, max_pops: int) -> None:
    if not isinstance(max_pops, int) or max_pops < 1:
        raise ValueError(f"`max_pops` should be an integer >= 1, but got {max_pops!r}.")
    expected = f"(..., T, {max_pops + 2}) with T >= 1"
    if actions.ndim < 2 or actions.shape[-1] != max_pops + 2 or actions.shape[-2] < 1:
        raise ValueError(
            f"`actions` shape should be {expected} (probabilities of push, pop and "
            f"no-op for each position), but got {actions.shape}."
        )
    _check_floating("actions", actions)


def _check_values(actions: jax.Array, values: jax.Array) -> None:
    if values.ndim < 2 or values.shape[:-1] != actions.shape[:-1]:
        expected = ", ".join(map(str, actions.shape[:-1]))
        raise ValueError(
            f"`values` shape should be ({expected}, D), as `actions` has shape "
            f"{actions.shape}, but got {values.shape}."
        )
    _check_floating("values", values)


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
