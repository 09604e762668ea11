"""A stack for actions that are certain: positions in a ring, constant work a step.

Where every action is one-hot a superposition stack holds one value at each depth, and
`stack_step` moves all of them. A plain stack of positions moves one integer: a step
costs O(D) however deep the stack is, and gives the same tops.
"""

import dataclasses

import jax
import jax.numpy as jnp

from stackformer.checks import check_count


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HardStackState:
    """A stack of positions, and what was read at them.

    Attributes:
      slots: positions that were pushed, a ring of H, shape (..., H), int32.
      head: the slot of the top, shape (...), int32.
      height: elements on the stack, at most H, shape (...), int32.
      values: the values of all positions so far, shape (..., T, D).
    """

    slots: jax.Array
    head: jax.Array
    height: jax.Array
    values: jax.Array


def init_hard_state(
    batch_shape: tuple[int, ...],
    max_length: int,
    features: int,
    *,
    max_depth: int | None = None,
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> HardStackState:
    """The state before position 0.

    Args:
      batch_shape: the leading axes.
      max_length: T, the number of positions that will be read at most.
      features: D.
      max_depth: H, the number of elements that the stack remembers; what is pushed
        deeper is forgotten, the bottom stands in its place. None is all of them.
      dtype: of the values.

    Example:
      >>> state = init_hard_state((), max_length=4, features=1)
      >>> for index, action in enumerate([2, 0, 0, 1]):  # -, push, push, pop
      ...     value = jnp.array([10.0 * index])
      ...     state, top = hard_stack_step(state, jnp.array(action), value, index)
      >>> top.item()
      10.0
    """
    for name, number in (("max_length", max_length), ("max_depth", max_depth)):
        if number is not None:
            check_count(name, number)
    depth = max(max_length - 1, 1)
    depth = depth if max_depth is None else min(depth, max_depth)
    return HardStackState(
        slots=jnp.zeros((*batch_shape, depth), jnp.int32),
        head=jnp.zeros(batch_shape, jnp.int32),
        height=jnp.zeros(batch_shape, jnp.int32),
        values=jnp.zeros((*batch_shape, max_length, features), dtype),
    )


def hard_stack_step(
    state: HardStackState,
    action: jax.Array,
    value: jax.Array,
    index: int | jax.Array,
) -> tuple[HardStackState, jax.Array]:
    """Executes one action: `stack_step` on a one-hot distribution.

    Args:
      state: from `init_hard_state` or the step before.
      action: 0 push, 1 pop, 2 no-op, and k + 1 for k >= 2 pops; shape (...), integer.
      value: what a push puts on top, shape (..., D).
      index: the scalar position, counted from 0. Position 0 is the bottom: its action
        is ignored, and it reads itself.

    Returns:
      The new state, and the top, shape (..., D), the dtype of `value`.
    """
    if action.shape != state.head.shape:
        raise ValueError(
            f"`action` shape should be {state.head.shape} as the state's, but got "
            f"{action.shape}."
        )
    if value.shape != (*action.shape, state.values.shape[-1]):
        raise ValueError(
            f"`value` shape should be {(*action.shape, state.values.shape[-1])} as the "
            f"state's, but got {value.shape}."
        )
    index = jnp.asarray(index, jnp.int32)
    values = jax.lax.dynamic_update_index_in_dim(
        state.values, value.astype(state.values.dtype), index, state.values.ndim - 2
    )
    state, top = _move(dataclasses.replace(state, values=values), action, index)
    return state, _read_row(values, top).astype(value.dtype)


def hard_stack_read(
    state: HardStackState, actions: jax.Array, values: jax.Array
) -> tuple[HardStackState, jax.Array]:
    """A string from its start: `hard_stack_step` at all positions.

    Only integers go step by step, the values are read at once.

    Args:
      state: from `init_hard_state`.
      actions: shape (..., T), integer; T at most the state's `max_length`.
      values: shape (..., T, D).

    Returns:
      The state after T positions, and the tops, shape (..., T, D).

    Example:
      >>> state = init_hard_state((), max_length=4, features=1)
      >>> values = jnp.array([[0.0], [10.0], [20.0], [30.0]])
      >>> state, tops = hard_stack_read(state, jnp.array([2, 0, 0, 1]), values)
      >>> print(tops[:, 0])
      [ 0. 10. 20. 10.]
    """
    length = actions.shape[-1]
    buffer = state.values.at[..., :length, :].set(values.astype(state.values.dtype))
    held = dataclasses.replace(state, values=jnp.zeros((0,)))

    def step(held, inputs):
        return _move(held, *inputs)

    indices = jnp.arange(length, dtype=jnp.int32)
    inputs = (jnp.moveaxis(actions, -1, 0), indices)
    held, tops = jax.lax.scan(step, held, inputs)
    tops = jnp.moveaxis(tops, 0, -1)
    read = jnp.take_along_axis(buffer, tops[..., None], axis=-2)
    return dataclasses.replace(held, values=buffer), read.astype(values.dtype)


def _move(state, action, index):
    """Executes an action on the positions; the new state and the position on top."""
    depth = state.slots.shape[-1]
    push = (action == 0) & (index > 0)
    several = jnp.where(action > 2, action - 1, 0).astype(jnp.int32)
    pops = jnp.where(action == 1, 1, several) * (index > 0)
    pops = jnp.minimum(pops, state.height)
    head = (state.head + push - pops) % depth
    height = jnp.minimum(state.height + push - pops, depth)
    # A slot beyond the ring is written nowhere.
    slots = _write(state.slots, jnp.where(push, head, depth), index)
    top = jnp.where(height > 0, _read(slots, head), 0)
    return dataclasses.replace(state, slots=slots, head=head, height=height), top


def _write(slots, slot, position):
    def one(slots, slot):
        return slots.at[slot].set(position, mode="drop")

    return jnp.vectorize(one, signature="(h),()->(h)")(slots, slot)


def _read(slots, slot):
    return jnp.take_along_axis(slots, slot[..., None], axis=-1)[..., 0]


def _read_row(values, position):
    return jnp.take_along_axis(values, position[..., None, None], axis=-2)[..., 0, :]
