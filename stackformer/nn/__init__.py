"""Flax NNX modules."""

from stackformer.nn.stack import StackAttention as StackAttention
