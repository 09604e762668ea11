"""Flax NNX modules."""

from stackformer.nn.attention import MultiHeadAttention as MultiHeadAttention
from stackformer.nn.blocks import FeedForward as FeedForward
from stackformer.nn.blocks import TransformerBlock as TransformerBlock
from stackformer.nn.cells import LSTMCell as LSTMCell
from stackformer.nn.cells import NoMemory as NoMemory
from stackformer.nn.cells import RNNCell as RNNCell
from stackformer.nn.ndstack_cell import NDStackMemory as NDStackMemory
from stackformer.nn.positions import POSITIONS as POSITIONS
from stackformer.nn.stack import StackAttention as StackAttention
from stackformer.nn.stack_cells import StackMemory as StackMemory
from stackformer.nn.tape_cell import TapeAction as TapeAction
from stackformer.nn.tape_cell import TapeMemory as TapeMemory
