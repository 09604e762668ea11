"""The step and the loop, on a small problem."""

import dataclasses
import json
import logging
import re

import jax
import numpy as np
import pytest
from toy_problem import run, toy_measure, toy_problem

from stackformer import training
from stackformer.training.state import abstract_state, create_state
from stackformer.training.step import make_block


def params_of(state: training.TrainState, seed: int = 0) -> list[np.ndarray]:
    return [np.asarray(leaf[seed]) for leaf in jax.tree.leaves(state.params)]


def metrics_of(path) -> list[dict]:
    return [json.loads(line) for line in (path / "metrics.jsonl").open()]


def train(path, problem, **options):
    with training.RunFolder(path, {}) as folder:
        options = training.TrainOptions(progress=False, **options)
        return training.train(problem, options, folder=folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Seeds 3 and 0 trained together for 40 steps."""
    path = tmp_path_factory.mktemp("finished")
    return path, run(path, seeds=(3, 0), steps=40)


def test_loss_falls_and_is_recorded(finished):
    path, state = finished
    records = metrics_of(path)
    assert [record["step"] for record in records] == list(range(5, 41, 5))
    assert int(state.step) == 40
    for seed in (0, 1):
        assert records[-1]["loss"][seed] < 0.7 * records[0]["loss"][seed]
    timing = [json.loads(line) for line in (path / "timing.jsonl").open()]
    assert all(line["steps_per_second"] > 0 for line in timing)
    assert list((path / "tensorboard").glob("events*"))


def test_a_seed_alone_is_the_same_as_in_company(finished, tmp_path):
    path, together = finished
    alone = run(tmp_path, seeds=(0,), steps=40)
    for a, b in zip(params_of(alone), params_of(together, 1), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    for a, b in zip(metrics_of(tmp_path), metrics_of(path), strict=True):
        np.testing.assert_allclose(a["loss"][0], b["loss"][1], rtol=1e-5)
        assert abs(a["loss"][0] - b["loss"][0]) > 1e-4  # the other seed differs


def test_grouping_of_steps_does_not_matter(finished, tmp_path):
    _, together = finished
    other = run(tmp_path, seeds=(3, 0), steps=40, steps_per_dispatch=7)
    for a, b in zip(params_of(other), params_of(together), strict=True):
        np.testing.assert_array_equal(a, b)


def test_interrupted_and_resumed_is_identical_to_the_bit(
    finished, tmp_path, monkeypatch
):
    path, together = finished
    calls = iter([False, True, False, False, True])
    with monkeypatch.context() as patch:
        patch.setattr(
            training.signals.StopRequest, "requested", lambda self: next(calls)
        )
        for step in (10, 25):
            with pytest.raises(training.Interrupted) as stop:
                run(tmp_path, seeds=(3, 0), steps=40, checkpoint_every=1000)
            assert stop.value.step == step
    # A crash after a checkpoint leaves records that the resumed run writes again.
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "loss": [9, 9]}\n{"step": 3')
    resumed = run(tmp_path, seeds=(3, 0), steps=40)
    for a, b in zip(params_of(resumed), params_of(together), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(
        jax.tree.leaves(resumed.opt_state),
        jax.tree.leaves(together.opt_state),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    assert (tmp_path / "metrics.jsonl").read_bytes() == (
        path / "metrics.jsonl"
    ).read_bytes()


def test_one_program_for_all_blocks_and_a_donated_state(caplog):
    problem = toy_problem()
    placement = training.Placement.create()
    abstract = abstract_state(problem, (0,), placement)
    block = make_block(problem, problem.graph, placement, abstract, 6)
    state = create_state(problem, (0,), placement)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for stop in (6, 8, 14):
            old, (state, history) = state, block(state, (), np.int32(stop))
            assert int(state.step) == stop
            assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old.params))
        assert history["loss"].shape == (6, 1)
    compiled = re.findall(r"Finished XLA compilation of (\S+)", caplog.text)
    assert compiled.count("jit(block)") == 1, compiled


def test_non_finite_loss_names_step_seed_and_checkpoint(tmp_path):
    problem = toy_problem(bad_step=22)
    with pytest.raises(training.NonFiniteLossError) as error:
        train(
            tmp_path,
            problem,
            steps=40,
            seeds=(4, 5),
            steps_per_dispatch=5,
            checkpoint_every=10,
        )
    message = str(error.value)
    assert "at step 23, seed 4" in message
    assert "last good checkpoint: step 20" in message
    assert metrics_of(tmp_path)[-1]["step"] == 20


def test_events_are_closed_when_training_fails(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(
        training.events.Events, "close", lambda self: closed.append(self)
    )
    with pytest.raises(training.NonFiniteLossError):
        train(tmp_path, toy_problem(bad_step=2), steps=5, steps_per_dispatch=5)
    assert len(closed) == 1


def test_early_stopping_keeps_the_best_of_each_seed(tmp_path):
    validation = training.Validation(
        every=4,
        measure=toy_measure(),
        score=lambda sums: sums["error"] / sums["count"],
        patience=2,
    )
    problem = toy_problem(validation=validation, lr=0.3)
    options = {"steps": 200, "steps_per_dispatch": 6}
    both = train(tmp_path / "both", problem, seeds=(0, 1), **options)
    assert int(both.step) < 200
    for seed in (0, 1):
        alone = train(tmp_path / str(seed), problem, seeds=(seed,), **options)
        assert int(alone.best.step[0]) == int(both.best.step[seed])
        assert int(alone.step) <= int(both.step)
        for a, b in zip(
            jax.tree.leaves(training.parameters(alone)),
            jax.tree.leaves(training.parameters(both)),
            strict=True,
        ):
            np.testing.assert_allclose(a[0], b[seed], rtol=1e-4, atol=1e-5)
        scores = {
            record["step"]: record["validation"]["score"][0]
            for record in metrics_of(tmp_path / str(seed))
            if "validation" in record
        }
        best = min(scores, key=scores.get)
        assert best == int(alone.best.step[0])
        assert int(alone.step) == best + 2 * 4
        np.testing.assert_allclose(alone.best.score[0], scores[best], rtol=1e-6)


@pytest.mark.parametrize("seeds", [(1,), (0, 1)])
def test_measure_adds_over_batches(seeds):
    problem = toy_problem()
    state = create_state(problem, seeds, training.Placement.create())
    graph = problem.graph
    measure = toy_measure()
    program = training.make_measure(measure, graph, training.Placement.create())
    sums = program(state.params, ())
    assert sums["error"].shape == (len(seeds),)
    model = jax.tree.map(lambda leaf: leaf[-1], state.params)
    model = training.state.nnx.merge(graph, model)
    expected = sum(
        float(measure.count(model, measure.batch((), i))["error"]) for i in range(2)
    )
    np.testing.assert_allclose(sums["error"][-1], expected, rtol=1e-5)


def test_options_are_checked():
    with pytest.raises(
        training.UserError, match="`steps` should be at least 1, but got 0"
    ):
        training.TrainOptions(steps=0)
    with pytest.raises(training.UserError, match="differ"):
        dataclasses.replace(training.TrainOptions(steps=1), seeds=(1, 1))
