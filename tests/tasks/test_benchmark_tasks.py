"""The plain Python side of the samplers' benchmark makes strings of the same tasks."""

import random

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmark_tasks import GENERATORS, measure
from stackformer import tasks


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_agree_with_the_tasks(name):
    rng = random.Random(1)
    pairs = [GENERATORS[name](rng, 12) for _ in range(40)]
    inputs = jnp.asarray([x for x, _ in pairs])
    answers = np.asarray([y for _, y in pairs]).reshape(40, -1)
    np.testing.assert_array_equal(tasks.get(name).solve(inputs, 12), answers)


def test_measure_reports_both_sides():
    rows = measure(batch_size=4, length=8, repeats=2)
    assert [row["task"] for row in rows] == ["SM", "MA", "SE"]
    for row in rows:
        assert row["jax_ms"] > 0
        assert row["ratio"] == row["python_ms"] / row["jax_ms"]
