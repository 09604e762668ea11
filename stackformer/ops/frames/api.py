"""The public function: shapes are checked once, here, and a form is chosen.

Legend: T positions, A = 3 actions, D features of an item, K items of a frame,
E features that F reads beside a frame.
"""

from collections.abc import Callable
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp

from stackformer.checks import check_arrays, check_choice, check_count
from stackformer.ops.frames.by_members import frames_by_levels, frames_by_pops
from stackformer.ops.frames.recurrent import FrameState, frames_recurrent
from stackformer.ops.frames.reference import Close, frames_reference

Array = jax.Array

# Those of `HARD` take the most probable action, without a gradient into the actions.
FORMS: dict[str, Callable[..., Any]] = {
    "reference": frames_reference,
    "recurrent": frames_recurrent,
    "by_pops": frames_by_pops,
    "by_levels": frames_by_levels,
}
HARD = ("by_pops", "by_levels")


@overload
def stack_of_frames(
    actions: Array,
    items: Array,
    close: Close,
    *,
    num_items: int,
    closing: Array | None = ...,
    segment_ids: Array | None = ...,
    initial_state: FrameState | None = ...,
    return_state: Literal[False] = ...,
    at: Array | None = ...,
    implementation: str | None = ...,
) -> Array: ...


@overload
def stack_of_frames(
    actions: Array,
    items: Array,
    close: Close,
    *,
    num_items: int,
    closing: Array | None = ...,
    segment_ids: Array | None = ...,
    initial_state: FrameState | None = ...,
    return_state: Literal[True],
    at: Array | None = ...,
    implementation: str | None = ...,
) -> tuple[Array, FrameState]: ...


def stack_of_frames(
    actions: Array,
    items: Array,
    close: Close,
    *,
    num_items: int,
    closing: Array | None = None,
    segment_ids: Array | None = None,
    initial_state: FrameState | None = None,
    return_state: bool = False,
    at: Array | None = None,
    implementation: str | None = None,
) -> Array | tuple[Array, FrameState]:
    """The list of items since a bracket was opened, at every position.

      no-op   frame <- frame + [item]
      push    stack <- stack + [frame],  frame <- []
      pop     frame <- top of the stack + [F(frame)],  the stack loses its top;
              on the empty stack a no-op

    A frame keeps its newest K items. Soft actions mix the three results linearly.

    Args:
      actions: probabilities of (push, pop, no-op), shape (..., T, 3). What position 0
        says is ignored: it is a no-op, and so is the first position of a segment.
      items: what a no-op adds, shape (..., T, D).
      close: F, `(frame (B, K, D), closing (B, E)) -> (B, D)`.
      num_items: K.
      closing: what F reads beside the frame, at the position of the pop, shape
        (..., T, E); the items by default.
      segment_ids: integers, shape (..., T): neighbours of one number are a string of
        their own, with an empty stack and an empty frame at its start.
      initial_state: what an earlier piece of the string left: position 0 is then a
        position as any other. The recurrent form takes it.
      return_state: return the stack after the last position too, with as many open
        frames as there can be (`resize_frame_state`). The recurrent form has it.
      at: the positions whose frames are wanted, integers of shape (..., M); all by
        default. With certain actions the others then cost little.
      implementation: "reference", "recurrent" (the default), or for certain actions
        "by_pops" or "by_levels", which take the most probable action.

    Returns:
      The frame after every position, shape (..., T, K, D), or (..., M, K, D), the
      newest item last; zeros where a frame has fewer items. With `return_state` the
      pair of it and the state.

    Example:
      >>> actions = jax.nn.one_hot(jnp.array([2, 0, 2, 2, 1]), 3)  # <bos> ( 1 2 )
      >>> items = jnp.array([[0.0], [9.0], [1.0], [2.0], [9.0]])
      >>> frames = stack_of_frames(
      ...     actions, items, lambda frame, _: frame.sum(-2), num_items=3)
      >>> print(frames[-1, :, 0])  # nothing, <bos>, the sum of the bracket
      [0. 0. 3.]
    """
    implementation = implementation or "recurrent"
    check_choice("implementation", implementation, FORMS)
    check_arrays(actions=actions, items=items)
    if items.ndim < 2 or actions.shape != (*items.shape[:-1], 3):
        raise ValueError(
            f"`actions` shape should be {(*items.shape[:-1], 3)}, as `items` has shape "
            f"{items.shape}, but got {actions.shape}."
        )
    check_count("num_items", num_items)
    closing = items if closing is None else closing
    for name, array in (("closing", closing[..., 0]), ("segment_ids", segment_ids)):
        if array is not None and array.shape != items.shape[:-1]:
            raise ValueError(
                f"`{name}` should have the leading axes {items.shape[:-1]} of `items`, "
                f"but got {array.shape}."
            )
    stateful = return_state or initial_state is not None
    if stateful and implementation != "recurrent":
        raise ValueError(
            "`implementation` should be 'recurrent' or None with a state, but got "
            f"{implementation!r}."
        )
    wide = jnp.promote_types(items.dtype, jnp.float32)
    lead = items.shape[:-2]

    def flat(array: Array) -> Array:
        return array.reshape(-1, *array.shape[len(lead) :])

    starts = jnp.zeros(items.shape[:-1], bool)
    if segment_ids is not None:
        starts = starts.at[..., 1:].set(segment_ids[..., 1:] != segment_ids[..., :-1])
    options: dict[str, Any] = {}
    if at is not None and implementation in HARD:
        options["at"] = flat(at)
    if implementation == "recurrent":
        options["return_state"] = return_state
    if initial_state is None:
        starts = starts.at[..., 0].set(True)
    else:
        _check_state(initial_state, (*lead, num_items, items.shape[-1]))
        state = jax.tree.map(lambda x: flat(x).astype(wide), initial_state)
        options["initial_state"] = state
    frames = FORMS[implementation](
        flat(actions).astype(wide),
        flat(items).astype(wide),
        flat(closing),
        close,
        num_items=num_items,
        starts=flat(starts),
        **options,
    )
    state = None
    if implementation == "recurrent":
        frames, state = frames
    if at is not None and implementation not in HARD:
        frames = jnp.take_along_axis(frames, flat(at)[:, :, None, None], axis=1)
    frames = frames.reshape(*lead, -1, *frames.shape[2:]).astype(items.dtype)
    if not return_state:
        return frames
    return frames, jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), state)


def _check_state(state: FrameState, shape: tuple[int, ...]) -> None:
    if state.frame.shape != shape:
        raise ValueError(
            f"`initial_state.frame` shape should be {shape}, but got "
            f"{state.frame.shape}."
        )
