"""Pictures of what a stack does. Functions take NumPy arrays; no model is needed."""

from stackformer.viz.curves import plot_length_generalization
from stackformer.viz.explore import ExplorerPage, explore
from stackformer.viz.frames import (
    FrameStep,
    describe_frames,
    explore_frames,
    frame_steps,
    plot_frames,
)
from stackformer.viz.maps import plot_actions, plot_stack_attention
from stackformer.viz.stack import (
    NOOP,
    POP,
    PUSH,
    action_string,
    depth_distribution,
    describe_stack,
    hard_stacks,
    most_probable_actions,
)
from stackformer.viz.symbols import short_symbols

__all__ = [
    "NOOP",
    "POP",
    "PUSH",
    "ExplorerPage",
    "FrameStep",
    "action_string",
    "depth_distribution",
    "describe_frames",
    "describe_stack",
    "explore",
    "explore_frames",
    "frame_steps",
    "hard_stacks",
    "most_probable_actions",
    "plot_actions",
    "plot_frames",
    "plot_length_generalization",
    "plot_stack_attention",
    "short_symbols",
]
