"""The stack of frames one position at a time: soft actions, and decoding."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from stackformer.checks import check_count
from stackformer.ops.frames.reference import Close
from stackformer.ops.stack_attention.recurrent import reachable_depth, state_depth

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FrameState:
    """What is remembered: the current frame, and the stack of open ones.

    Attributes:
      frame: (..., K, D), the newest item last.
      stack: (..., H, K, D), the frame that a pop returns to first.
      full: (..., H), the probability that there is such a frame.
    """

    frame: Array
    stack: Array
    full: Array


def init_frame_state(
    batch_shape: tuple[int, ...],
    num_items: int,
    features: int,
    *,
    depth: int,
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> FrameState:
    """The empty stack with an empty frame; H = `depth` open frames are remembered."""
    check_count("depth", depth)
    shape = (*batch_shape, num_items, features)
    return FrameState(
        frame=jnp.zeros(shape, dtype),
        stack=jnp.zeros((*batch_shape, depth, num_items, features), dtype),
        full=jnp.zeros((*batch_shape, depth), dtype),
    )


def resize_frame_state(state: FrameState, depth: int) -> FrameState:
    """The same stack, of which `depth` open frames are remembered.

    With fewer than before the lowest are forgotten, with more there is room for others.

    Example:
      >>> state = init_frame_state((2,), 3, 4, depth=5)
      >>> resize_frame_state(state, 2).stack.shape
      (2, 2, 3, 4)
    """

    def resized(x: Array, axis: int) -> Array:
        x = jax.lax.slice_in_dim(x, 0, min(depth, x.shape[axis]), axis=axis)
        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, depth - x.shape[axis])
        return jnp.pad(x, widths)

    axis = state.full.ndim - 1
    return FrameState(
        state.frame, resized(state.stack, axis), resized(state.full, axis)
    )


def frame_step(
    state: FrameState, actions: Array, item: Array, closing: Array, close: Close
) -> tuple[FrameState, Array]:
    """Executes one position's actions.

    Args:
      state: from `init_frame_state` or the step before.
      actions: probabilities of push, pop and no-op, shape (..., 3).
      item: what a no-op adds to the frame, shape (..., D).
      closing: what `close` reads beside the frame, shape (..., E).
      close: F.

    Returns:
      The new state, and its frame, shape (..., K, D).
    """
    pop, noop = actions[..., 1, None, None], actions[..., 2, None, None]
    there = state.full[..., 0, None, None]
    shifted = _append(state.frame, item)
    value = close(state.frame, closing) * there[..., 0]
    closed = _append(state.stack[..., 0, :, :], value) + (1.0 - there) * shifted
    frame = noop * shifted + pop * closed
    stack = _mixed(actions, state.stack, state.frame[..., None, :, :], axis=-3)
    one = jnp.ones_like(state.full[..., :1])
    full = _mixed(actions, state.full, one, axis=-1)
    return FrameState(frame, stack, full), frame


def _append(frame: Array, item: Array) -> Array:
    return jnp.concatenate([frame[..., 1:, :], item[..., None, :]], axis=-2)


def _mixed(actions: Array, stack: Array, pushed: Array, *, axis: int) -> Array:
    """push [pushed, stack] + no-op stack + pop [stack without its top, 0]."""
    shape = actions.shape[:-1] + (1,) * -axis
    push, pop, noop = (actions[..., a].reshape(shape) for a in range(3))
    depth = stack.shape[axis]
    first = jax.lax.slice_in_dim(stack, 0, depth - 1, axis=stack.ndim + axis)
    rest = jax.lax.slice_in_dim(stack, 1, depth, axis=stack.ndim + axis)
    up = jnp.concatenate([pushed, first], axis=axis)
    down = jnp.concatenate([rest, jnp.zeros_like(pushed)], axis=axis)
    return push * up + noop * stack + pop * down


def frames_recurrent(
    actions: Array,
    items: Array,
    closing: Array,
    close: Close,
    *,
    num_items: int,
    starts: Array,
    initial_state: FrameState | None = None,
    return_state: bool = False,
) -> tuple[Array, FrameState]:
    """`frame_step` as a `lax.scan` over positions; arguments as in `stack_of_frames`.

    The gradient keeps the stack at about sqrt(T) positions and computes the others
    again.
    """
    batch, length, features = items.shape
    # A frame that more pushes than half of the positions have buried never returns.
    depth = state_depth(length, None) if return_state else reachable_depth(length)
    if initial_state is None:
        state = init_frame_state(
            (batch,), num_items, features, depth=depth, dtype=items.dtype
        )
    else:
        depth = state_depth(length, None, initial_state.full.shape[-1])
        state = resize_frame_state(initial_state, depth)
    noop = jnp.array([[0.0, 0.0, 1.0]], actions.dtype)

    def step(state: FrameState, inputs: tuple[Array, ...]) -> tuple[FrameState, Array]:
        actions, item, closing, begins = inputs
        keep = 1.0 - begins.astype(item.dtype)
        state = jax.tree.map(
            lambda x: x * keep.reshape(-1, *(1,) * (x.ndim - 1)), state
        )
        actions = jnp.where(begins[:, None], noop, actions)
        return frame_step(state, actions, item, closing, close)

    @jax.checkpoint
    def segment(state: FrameState, inputs: tuple[Array, ...]):
        return jax.lax.scan(step, state, inputs)

    inputs = tuple(jnp.moveaxis(x, 1, 0) for x in (actions, items, closing, starts))
    size = max(math.isqrt(length), 1)
    whole = length - length % size
    parts = tuple(x[:whole].reshape(-1, size, *x.shape[1:]) for x in inputs)
    state, frames = jax.lax.scan(segment, state, parts)
    state, last = segment(state, tuple(x[whole:] for x in inputs))
    frames = jnp.concatenate([frames.reshape(whole, *last.shape[1:]), last])
    return jnp.moveaxis(frames, 0, 1), state
