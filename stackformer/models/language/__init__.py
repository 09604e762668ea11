"""GPT-2 and RoBERTa with stacks."""

from stackformer.models.language.gpt2 import GPT2, GPT2Config
from stackformer.models.language.roberta import Roberta, RobertaConfig

__all__ = [
    "GPT2",
    "GPT2Config",
    "Roberta",
    "RobertaConfig",
]
