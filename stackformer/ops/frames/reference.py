"""The stack of frames as it is defined, in plain loops: the specification."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Array = jax.Array
Close = Callable[[Array, Array], Array]


def frames_reference(
    actions: Array,
    items: Array,
    closing: Array,
    close: Close,
    *,
    num_items: int,
    starts: Array,
) -> Array:
    """The frame after every position; arguments as in `stack_of_frames`.

    With soft actions everything is an expectation: `full[j]` is the probability that
    the stack has more than j elements, `stack[j]` and `frame` are sums weighted by
    probabilities, so that an element that may not be there counts less.
    """
    batch, length, _ = items.shape
    frame = jnp.zeros((batch, num_items, items.shape[-1]), items.dtype)
    stack = [jnp.zeros_like(frame) for _ in range(length)]
    full = [jnp.zeros(batch, items.dtype) for _ in range(length)]
    noop_only = jnp.array([0.0, 0.0, 1.0], items.dtype)
    frames = []
    for i in range(length):
        begins = starts[:, i]
        frame = jnp.where(begins[:, None, None], 0.0, frame)
        stack = [jnp.where(begins[:, None, None], 0.0, s) for s in stack]
        full = [jnp.where(begins, 0.0, p) for p in full]
        a = jnp.where(begins[:, None], noop_only[None, :], actions[:, i])
        push, pop, noop = a[:, 0], a[:, 1], a[:, 2]

        shifted = _append(frame, items[:, i])
        value = close(frame, closing[:, i]) * full[0][:, None]
        closed = _append(stack[0], value) + (1.0 - full[0])[:, None, None] * shifted
        new_frame = _scale(noop, shifted) + _scale(pop, closed)
        above, below = [frame, *stack[:-1]], [*stack[1:], jnp.zeros_like(frame)]
        stack = [
            _scale(push, up) + _scale(noop, same) + _scale(pop, down)
            for up, same, down in zip(above, stack, below, strict=True)
        ]
        full = [
            push * up + noop * same + pop * down
            for up, same, down in zip(
                [jnp.ones(batch), *full[:-1]],
                full,
                [*full[1:], jnp.zeros(batch)],
                strict=True,
            )
        ]
        frame = new_frame
        frames.append(frame)
    return jnp.stack(frames, axis=1)


def _append(frame: Array, item: Array) -> Array:
    """The frame with one more item at its end; the oldest falls out."""
    return jnp.concatenate([frame[:, 1:], item[:, None]], axis=1)


def _scale(weight: Array, frame: Array) -> Array:
    return weight[:, None, None] * frame
