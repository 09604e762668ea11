"""Recurrent cells: controllers and the memories they steer."""

from stackformer.nn.cells.controllers import LSTMCell, NoMemory, RNNCell
from stackformer.nn.cells.nondeterministic import NDStackMemory
from stackformer.nn.cells.stack import StackMemory
from stackformer.nn.cells.tape import TapeAction, TapeMemory

__all__ = [
    "LSTMCell",
    "NDStackMemory",
    "NoMemory",
    "RNNCell",
    "StackMemory",
    "TapeAction",
    "TapeMemory",
]
