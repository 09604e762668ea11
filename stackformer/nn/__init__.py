"""Flax NNX modules."""

from stackformer.nn.attention import MultiHeadAttention
from stackformer.nn.block import TransformerBlock
from stackformer.nn.cells import (
    LSTMCell,
    NDStackMemory,
    NoMemory,
    RNNCell,
    StackMemory,
    TapeAction,
    TapeMemory,
)
from stackformer.nn.feed_forward import FeedForward
from stackformer.nn.positions import POSITIONS
from stackformer.nn.stacks import (
    STACKS,
    Stack,
    StackAttention,
    StackConfig,
    StackOutput,
    SuperpositionConfig,
    stack_config,
)

__all__ = [
    "POSITIONS",
    "STACKS",
    "FeedForward",
    "LSTMCell",
    "MultiHeadAttention",
    "NDStackMemory",
    "NoMemory",
    "RNNCell",
    "Stack",
    "StackAttention",
    "StackConfig",
    "StackMemory",
    "StackOutput",
    "SuperpositionConfig",
    "TapeAction",
    "TapeMemory",
    "TransformerBlock",
    "stack_config",
]
