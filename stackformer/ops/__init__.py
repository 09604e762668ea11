"""Pure functions, one folder for each op."""

from stackformer.ops.stack_attention import (
    StackAction,
    describe_dispatch,
    init_stack_state,
    resize_stack_state,
    stack_attention,
    stack_attention_weights,
    stack_step,
)

__all__ = [
    "StackAction",
    "describe_dispatch",
    "init_stack_state",
    "resize_stack_state",
    "stack_attention",
    "stack_attention_weights",
    "stack_step",
]
