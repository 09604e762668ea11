"""Pictures of what a stack does. Functions take NumPy arrays; no model is needed."""

from stackformer.viz.curves import plot_length_generalization
from stackformer.viz.explore import ExplorerPage, explore
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
    "action_string",
    "depth_distribution",
    "describe_stack",
    "explore",
    "hard_stacks",
    "most_probable_actions",
    "plot_actions",
    "plot_length_generalization",
    "plot_stack_attention",
    "short_symbols",
]
