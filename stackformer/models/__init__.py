"""Sequence models: the stack transformer, its decoding, and the baselines."""

from stackformer.models.balance import balance_loss
from stackformer.models.build import MODELS, build
from stackformer.models.describe import count_parameters, describe
from stackformer.models.generate import generate
from stackformer.models.huggingface import load_pretrained, save_pretrained
from stackformer.models.language import GPT2, GPT2Config, Roberta, RobertaConfig
from stackformer.models.layers import DecodeCache
from stackformer.models.outputs import Aux
from stackformer.models.recurrent import (
    NDStackRecurrentConfig,
    RecurrentConfig,
    RecurrentModel,
    StackRecurrentConfig,
    TapeRecurrentConfig,
)
from stackformer.models.supervision import action_entropies, action_loss
from stackformer.models.transformer import StackTransformer, TransformerConfig

__all__ = [
    "GPT2",
    "MODELS",
    "Aux",
    "DecodeCache",
    "GPT2Config",
    "NDStackRecurrentConfig",
    "RecurrentConfig",
    "RecurrentModel",
    "Roberta",
    "RobertaConfig",
    "StackRecurrentConfig",
    "StackTransformer",
    "TapeRecurrentConfig",
    "TransformerConfig",
    "action_entropies",
    "action_loss",
    "balance_loss",
    "build",
    "count_parameters",
    "describe",
    "generate",
    "load_pretrained",
    "save_pretrained",
]
