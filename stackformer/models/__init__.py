"""Sequence models: the stack transformer, its decoding, and the baselines."""

from stackformer.models.build import MODELS as MODELS
from stackformer.models.build import build as build
from stackformer.models.describe import count_parameters as count_parameters
from stackformer.models.describe import describe as describe
from stackformer.models.generate import generate as generate
from stackformer.models.gpt2 import GPT2 as GPT2
from stackformer.models.gpt2 import GPT2Config as GPT2Config
from stackformer.models.outputs import Aux as Aux
from stackformer.models.pretrained import load_pretrained as load_pretrained
from stackformer.models.pretrained import save_pretrained as save_pretrained
from stackformer.models.recurrent import (
    NDStackRecurrentConfig as NDStackRecurrentConfig,
)
from stackformer.models.recurrent import RecurrentConfig as RecurrentConfig
from stackformer.models.recurrent import RecurrentModel as RecurrentModel
from stackformer.models.recurrent import StackRecurrentConfig as StackRecurrentConfig
from stackformer.models.recurrent import TapeRecurrentConfig as TapeRecurrentConfig
from stackformer.models.roberta import Roberta as Roberta
from stackformer.models.roberta import RobertaConfig as RobertaConfig
from stackformer.models.supervision import action_loss as action_loss
from stackformer.models.transformer import DecodeCache as DecodeCache
from stackformer.models.transformer import StackTransformer as StackTransformer
from stackformer.models.transformer_config import TransformerConfig as TransformerConfig
