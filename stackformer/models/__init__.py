"""Sequence models: the stack transformer, its decoding, and the baselines."""

from stackformer.models.outputs import Aux as Aux
from stackformer.models.supervision import action_loss as action_loss
from stackformer.models.transformer import DecodeCache as DecodeCache
from stackformer.models.transformer import StackTransformer as StackTransformer
from stackformer.models.transformer_config import TransformerConfig as TransformerConfig
