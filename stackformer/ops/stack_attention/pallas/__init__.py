"""The fused form: one kernel that keeps the stack in fast memory for all steps."""

from stackformer.ops.stack_attention.pallas.attend import (
    FORM,
    stack_attention_pallas,
)

__all__ = ["FORM", "stack_attention_pallas"]
