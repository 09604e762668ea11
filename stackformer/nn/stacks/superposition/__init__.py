"""The stack of the paper: a superposition of stacks, moved by soft actions."""

from stackformer.nn.stacks.superposition.config import SuperpositionConfig
from stackformer.nn.stacks.superposition.module import SharedActions, StackAttention

__all__ = ["SharedActions", "StackAttention", "SuperpositionConfig"]
