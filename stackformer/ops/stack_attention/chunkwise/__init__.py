"""The chunkwise form: small tables for each chunk, moved by dense products."""

from stackformer.ops.stack_attention.chunkwise.attend import (
    FORM,
    stack_attention_chunkwise,
)

__all__ = ["FORM", "stack_attention_chunkwise"]
