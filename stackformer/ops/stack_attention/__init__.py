"""Stack attention as pure functions, one file for each form; see README.md."""

from stackformer.ops.stack_attention.api import (
    StackAction,
    stack_attention,
    stack_attention_weights,
)
from stackformer.ops.stack_attention.forms import describe_dispatch
from stackformer.ops.stack_attention.recurrent import (
    init_stack_state,
    resize_stack_state,
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
