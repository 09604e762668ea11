"""Stack attention as pure functions, one file for each form; see README.md."""

from stackformer.ops.api import StackAction as StackAction
from stackformer.ops.api import stack_attention as stack_attention
from stackformer.ops.api import stack_attention_weights as stack_attention_weights
from stackformer.ops.dispatch import describe_dispatch as describe_dispatch
from stackformer.ops.recurrent import init_stack_state as init_stack_state
from stackformer.ops.recurrent import stack_step as stack_step
