"""Training: one state, one step, one loop, one evaluation, one kind of checkpoint."""

from stackformer.training.errors import Interrupted, NonFiniteLossError, UserError
from stackformer.training.evaluation import make_measure
from stackformer.training.loop import TrainOptions, train
from stackformer.training.mesh import Placement, parse_mesh
from stackformer.training.problem import Measure, Problem, Validation
from stackformer.training.records import RunFolder
from stackformer.training.state import TrainState, parameters

__all__ = [
    "Interrupted",
    "Measure",
    "NonFiniteLossError",
    "Placement",
    "Problem",
    "RunFolder",
    "TrainOptions",
    "TrainState",
    "UserError",
    "Validation",
    "make_measure",
    "parameters",
    "parse_mesh",
    "train",
]
