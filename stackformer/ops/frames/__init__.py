"""The stack of frames: a pop that returns a value; see README.md of this folder."""

from stackformer.ops.frames.api import FORMS, stack_of_frames
from stackformer.ops.frames.members import frame_members, open_frames
from stackformer.ops.frames.recurrent import (
    FrameState,
    frame_step,
    init_frame_state,
    resize_frame_state,
)

__all__ = [
    "FORMS",
    "FrameState",
    "frame_members",
    "frame_step",
    "init_frame_state",
    "open_frames",
    "resize_frame_state",
    "stack_of_frames",
]
