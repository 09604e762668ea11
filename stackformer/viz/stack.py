"""What a soft stack holds, computed from its action probabilities alone.

Everything here is plain NumPy on one string: `actions` has shape (T, A), row i holds
the probabilities of the actions at position i in the order push, pop, no-op, then
"pop 2", "pop 3", ... if the stack may pop several elements at once. Position 0 is the
bottom of the stack; its row is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from stackformer.checks import check_count

if TYPE_CHECKING:
    import jax

# An array of one layer, or a sequence with one entry a layer.
Layers: TypeAlias = "np.ndarray | jax.Array | Sequence[ArrayLike]"

PUSH, POP, NOOP = 0, 1, 2

_NAMES = ("push", "pop", "no-op")
_MARKS = ("+", "-", ".")


def action_names(num_actions: int) -> tuple[str, ...]:
    """Readable names of the actions on the last axis of an `actions` array.

    >>> action_names(4)
    ('push', 'pop', 'no-op', 'pop 2')
    """
    return _NAMES + tuple(f"pop {k}" for k in range(2, num_actions - 1))


def check_actions(actions: ArrayLike, name: str = "actions") -> np.ndarray:
    """`actions` as a float64 array (T, A), or a ValueError that says why not."""
    array = np.asarray(actions, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] < 1 or array.shape[1] < 3:
        raise ValueError(
            f"{name} should have shape (T, A) with A >= 3 (push, pop, no-op, ...), "
            f"one string and one stack, but got {array.shape}; index the batch first."
        )
    rows = array[1:]  # position 0 is ignored everywhere, so it may hold anything
    if not np.all(np.isfinite(rows)) or np.any(rows < -1e-4):
        raise ValueError(f"{name} should be finite probabilities, not logits.")
    sums = rows.sum(axis=-1)
    if rows.size and np.max(np.abs(sums - 1.0)) > 1e-2:
        worst = int(np.argmax(np.abs(sums - 1.0)))
        raise ValueError(
            f"{name} should sum to one at every position >= 1, but position "
            f"{worst + 1} sums to {sums[worst]:.4g}; apply a softmax to logits first."
        )
    return array


def _pops(num_actions: int) -> list[tuple[int, int]]:
    """Pairs (index on the action axis, number of elements popped)."""
    return [(POP, 1)] + [(a, a - 1) for a in range(3, num_actions)]


def depth_distribution(actions: ArrayLike, depth: int | None = None) -> np.ndarray:
    r"""Exact distribution of every element of the soft stack after every step.

    Read the actions as independent random choices on a real stack that rests on
    infinitely many copies of the bottom. Then `Z[i, k, n]` is the probability that,
    after step i, the k-th element from the top (k = 0 is the top) is position n:

    .. math::
        Z_i[k] = p_i Z_{i-1}[k-1] + n_i Z_{i-1}[k] + o_i Z_{i-1}[k+1],
        \quad Z_i[0] = p_i e_i + n_i Z_{i-1}[0] + o_i Z_{i-1}[1]

    `Z[:, 0]` is the stack attention of the paper. An action that pops m elements adds
    its probability times `Z_{i-1}[k+m]`.

    Args:
        actions: (T, A) action probabilities of one stack on one string.
        depth: how many elements from the top to return, default T. What is returned
            is exact either way.

    Returns:
        (T, depth, T) float64 array; every `Z[i, k]` sums to one.

    >>> push, pop = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]
    >>> Z = depth_distribution([push, push, push, pop])
    >>> Z[2, :3].argmax(axis=-1).tolist()  # after two pushes: 2 on 1 on the bottom
    [2, 1, 0]
    >>> Z[3, :3].argmax(axis=-1).tolist()  # the pop removed 2
    [1, 0, 0]
    """
    actions = check_actions(actions)
    T, num_actions = actions.shape
    depth = len(actions) if depth is None else depth
    check_count("depth", depth)
    # Row T of the working stack stands for every deeper one: it is always the bottom.
    state = np.zeros((T + 1, T))
    state[:, 0] = 1.0
    result = np.empty((T, depth, T))

    def record(i: int) -> None:
        kept = min(depth, T + 1)
        result[i, :kept] = state[:kept]
        result[i, kept:] = state[T]

    record(0)
    for i in range(1, T):
        pushed = np.empty_like(state)
        pushed[1:] = state[:-1]
        pushed[0] = 0.0
        pushed[0, i] = 1.0
        new = actions[i, PUSH] * pushed + actions[i, NOOP] * state
        for a, count in _pops(num_actions):
            if count > T:
                popped = np.broadcast_to(state[T], state.shape)
            else:
                popped = np.vstack([state[count:], np.repeat(state[T:], count, 0)])
            new += actions[i, a] * popped
        state = new
        record(i)
    return result


def most_probable_actions(actions: ArrayLike) -> np.ndarray:
    """The most probable action string: argmax at each position, shape (T,).

    Actions are independent given the hidden states, so position by position is exact.
    Position 0 has no action; it gets no-op.

    >>> most_probable_actions([[0, 0, 1], [0.9, 0.1, 0.0], [0.2, 0.8, 0.0]]).tolist()
    [2, 0, 1]
    """
    choice = np.argmax(check_actions(actions), axis=-1)
    choice[0] = NOOP
    return choice


def action_string(choice: Sequence[int] | np.ndarray) -> str:
    """One mark for each position >= 1: `+` push, `-` pop, `.` no-op, a digit: pop many.

    >>> action_string([2, 0, 0, 1, 2])
    '++-.'
    """
    marks = [_MARKS[a] if a < 3 else f"{a - 1}" for a in list(choice)[1:]]
    return "".join(mark if len(mark) == 1 else f"({mark})" for mark in marks)


def hard_stacks(choice: Sequence[int] | np.ndarray) -> list[tuple[int, ...]]:
    """The stack that hard actions produce, after every position, bottom first.

    The bottom itself is not listed; popping an empty stack leaves it empty.

    >>> hard_stacks([2, 0, 0, 1, 1, 1])
    [(), (1,), (1, 2), (1,), (), ()]
    """
    stack: tuple[int, ...] = ()
    stacks: list[tuple[int, ...]] = [stack]
    for i, action in enumerate(list(choice)[1:], start=1):
        if action == PUSH:
            stack = (*stack, i)
        elif action != NOOP:
            count = 1 if action == POP else int(action) - 1
            stack = stack[: max(0, len(stack) - count)]
        stacks.append(stack)
    return stacks


def describe_stack(tokens: Sequence[str], actions: ArrayLike, title: str = "") -> str:
    """The most probable actions and the hard stack they produce, as a text table.

    >>> push, pop = [0.9, 0.1, 0.0], [0.2, 0.8, 0.0]
    >>> print(describe_stack(["bottom", "a", "M"], [push, push, pop], "Layer 1"))
    Layer 1: +-   (+ push, - pop, . no-op)
      position  token   action  probability  stack, bottom to top
             0  bottom                       (empty)
             1  a       push           0.90  a1
             2  M       pop            0.80  (empty)
    """
    actions = check_actions(actions)
    tokens = list(tokens)
    if len(tokens) != len(actions):
        raise ValueError(
            f"tokens should have one entry for each of the {len(actions)} positions "
            f"of actions, but got {len(tokens)}."
        )
    choice = most_probable_actions(actions)
    names = action_names(actions.shape[1])
    width = max(5, *(len(token) for token in tokens))
    lines = [
        f"{title + ': ' if title else ''}{action_string(choice)}   "
        "(+ push, - pop, . no-op" + (", digit: pops)" if len(names) > 3 else ")"),
        f"  position  {'token':<{width}}  action  probability  stack, bottom to top",
    ]
    for i, stack in enumerate(hard_stacks(choice)):
        held = " ".join(f"{tokens[n]}{n}" for n in stack) or "(empty)"
        name = "" if i == 0 else names[choice[i]]
        probability = "" if i == 0 else f"{actions[i, choice[i]]:.2f}"
        lines.append(
            f"  {i:>8}  {tokens[i]:<{width}}  {name:<6}  {probability:>11}  {held}"
        )
    return "\n".join(lines)
