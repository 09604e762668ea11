"""Differentiable stacks in transformers, in JAX."""

from stackformer.nn.stack import StackAttention as StackAttention
from stackformer.ops import StackAction as StackAction
from stackformer.ops import stack_attention as stack_attention
from stackformer.ops import stack_attention_weights as stack_attention_weights
