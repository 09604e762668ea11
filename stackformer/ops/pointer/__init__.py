"""A stack with a pointer: memory by depth, written by the delta rule; see README.md."""

from stackformer.ops.pointer.chunkwise import pointer_stack
from stackformer.ops.pointer.step import (
    PointerState,
    init_pointer_state,
    pointer_step,
)

__all__ = [
    "PointerState",
    "init_pointer_state",
    "pointer_stack",
    "pointer_step",
]
