"""The nondeterministic stack: all runs of a weighted pushdown automaton at once."""

from stackformer.ops.nondeterministic.api import nondeterministic_stack
from stackformer.ops.nondeterministic.recurrent import (
    Transitions,
    init_ndstack,
    ndstack_step,
)
from stackformer.ops.nondeterministic.scan import (
    NDStackState,
    init_ndstack_state,
    nondeterministic_step,
)

__all__ = [
    "NDStackState",
    "Transitions",
    "init_ndstack",
    "init_ndstack_state",
    "ndstack_step",
    "nondeterministic_stack",
    "nondeterministic_step",
]
