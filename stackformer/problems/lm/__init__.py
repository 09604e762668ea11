"""Language modeling on chunks of text."""

from stackformer.problems.lm.config import LMConfig
from stackformer.problems.lm.problem import load_config, load_model, make_problem

__all__ = [
    "LMConfig",
    "load_config",
    "load_model",
    "make_problem",
]
