"""The nondeterministic stack: all runs of a weighted pushdown automaton at once."""

from stackformer.ops.nondeterministic.recurrent import (
    Transitions,
    init_ndstack,
    ndstack_step,
)

__all__ = [
    "Transitions",
    "init_ndstack",
    "ndstack_step",
]
