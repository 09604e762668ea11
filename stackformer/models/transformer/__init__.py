"""The stack transformer of the paper."""

from stackformer.models.transformer.config import TransformerConfig
from stackformer.models.transformer.model import StackTransformer

__all__ = [
    "StackTransformer",
    "TransformerConfig",
]
