"""What a train step costs with each kind of stack, against the one without."""

import dataclasses
from typing import Any

import jax
from flax import nnx

from stackformer import models, tasks
from stackformer.commands.benchmark.models import make_train_step
from stackformer.commands.benchmark.timing import Contestant, machine, measure
from stackformer.commands.tables.cells import Table
from stackformer.commands.tables.stacks import signature
from stackformer.training.records import write_json

_REPEATS, _SECONDS = 10, 60.0


def measure_costs(table: Table) -> None:
    """Times a train step of every column in turn, and writes `table.costs`.

    The strings are of RS, as many as in a step of the runs, as long as the longest in
    training, and as the longest in testing.
    """
    assert table.costs is not None
    task = tasks.get("RS")
    first = {cell.column: cell.expected for cell in reversed(table.cells)}
    one = table.cells[0].expected
    measured = []
    for length in (one["train_length"], one["test_length"]):
        sample = task.sample(jax.random.key(0), one["batch_size"], length)
        framed = tasks.frame(task, sample, "mlm")
        contestants = [
            Contestant(column, *make_train_step(_model(first[column], task), framed))
            for column in table.columns
        ]
        label = f"train step, {framed.tokens.shape[1]} positions"
        timings = measure(contestants, repeats=_REPEATS, seconds=_SECONDS, label=label)
        measured.append(
            {
                "positions": framed.tokens.shape[1],
                "batch_size": one["batch_size"],
                "timings": {k: dataclasses.asdict(v) for k, v in timings.items()},
            }
        )
    content = {"of": signature(table), "machine": machine(), "measured": measured}
    write_json(table.costs, content)


def _model(config: dict[str, Any], task: tasks.Task) -> nnx.Module:
    return models.build(
        config["model"],
        task,
        config["model_config"],
        stack=config["stack"],
        rngs=nnx.Rngs(0),
    )
