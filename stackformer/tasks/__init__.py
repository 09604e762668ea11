"""Formal-language tasks whose strings are drawn on the device.

`get` gives a task by name, `names` lists them, `register` adds one; a task's
`sample` draws strings with their answers and `frame` turns them into the token
sequences of the paper's two settings. Token ids: see `tasks.vocabulary`.
"""

from stackformer.tasks.base import LEVELS, Sample, Task
from stackformer.tasks.framing import MODES, Framed, frame
from stackformer.tasks.registry import get, names, register
from stackformer.tasks.vocabulary import BOS, END, MASK, PAD, SEP

__all__ = [
    "BOS",
    "END",
    "LEVELS",
    "MASK",
    "MODES",
    "PAD",
    "SEP",
    "Framed",
    "Sample",
    "Task",
    "frame",
    "get",
    "names",
    "register",
]
