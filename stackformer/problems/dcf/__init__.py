"""Length generalization on formal languages."""

from stackformer.problems.dcf.config import DCFConfig
from stackformer.problems.dcf.problem import make_problem, run
from stackformer.problems.dcf.shipping import load, shipped
from stackformer.problems.dcf.trained import TrainedModel, load_config, load_run

__all__ = [
    "DCFConfig",
    "TrainedModel",
    "load",
    "load_config",
    "load_run",
    "make_problem",
    "run",
    "shipped",
]
