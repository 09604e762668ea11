"""The stack of frames: a pop that returns a value."""

from stackformer.nn.stacks.frames.config import FramesConfig
from stackformer.nn.stacks.frames.module import FrameStack

__all__ = ["FrameStack", "FramesConfig"]
