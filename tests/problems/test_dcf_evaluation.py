"""Accuracy over lengths against direct computations."""

import dataclasses
import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stackformer import models, tasks, training
from stackformer.data import dcf as frozen
from stackformer.problems.dcf import evaluation as dcf_evaluation
from stackformer.problems.dcf import problem as dcf
from stackformer.problems.dcf.config import DCFConfig
from stackformer.problems.dcf.evaluation import LengthEvaluation
from stackformer.problems.dcf.memory import check_memory
from stackformer.problems.dcf.presets import preset_values
from stackformer.tasks.sampling import frozen_key
from stackformer.training import memory
from stackformer.training.state import create_state


def config_of(task="RS", model="stack_transformer", **changes) -> DCFConfig:
    values = preset_values("smoke", task, model)
    return DCFConfig(task=task, model=model, preset="smoke", **{**values, **changes})


def setting(config):
    placement = training.Placement.create()
    problem = dcf.make_problem(config)
    params = create_state(problem, config.seeds, placement).params
    return problem.graph, params, placement


def model_of(graph, params, index) -> nnx.Module:
    return nnx.merge(graph, jax.tree.map(lambda leaf: leaf[index], params))


def strings(task, length, config) -> tasks.Sample:
    """The strings of a length, as documented: those of the frozen set."""
    return dict(frozen.draw(task, [length], config.test_strings))[length]


@pytest.mark.parametrize("task_name", ["RS", "SM"])
def test_mlm_equals_a_direct_count(task_name):
    config = config_of(task_name, seeds=(0, 1))
    graph, params, placement = setting(config)
    evaluation = LengthEvaluation(config, graph, placement)
    task = tasks.get(task_name)
    token, string = evaluation.at_length(params, 5)
    sample = strings(task, 5, config)
    framed = tasks.frame(task, sample, "mlm")
    for seed in (0, 1):
        logits = model_of(graph, params, seed)(framed.tokens)
        right = np.asarray(logits.argmax(-1) == framed.targets)
        mask = np.asarray(framed.target_mask)
        np.testing.assert_allclose(token[seed], right[mask].mean())
        np.testing.assert_allclose(string[seed], (right | ~mask).all(axis=1).mean())


def test_alm_decodes_what_the_model_itself_writes():
    config = config_of(mode="alm", test_strings=8)
    graph, params, placement = setting(config)
    token, _ = LengthEvaluation(config, graph, placement).at_length(params, 4)
    task = tasks.get("RS")
    sample = strings(task, 4, config)
    model = jax.jit(lambda tokens: model_of(graph, params, 0)(tokens))
    framed = tasks.frame(task, sample, "alm")
    tokens = np.asarray(framed.tokens).copy()
    tokens[:, 6:] = tasks.PAD
    written = np.zeros((8, 4), np.int32)
    for j in range(4):  # BOS x SEP stands at positions 0..5
        written[:, j] = np.asarray(model(tokens)[:, 5 + j]).argmax(-1)
        if j < 3:
            tokens[:, 6 + j] = task.output_tokens[written[:, j]]
    np.testing.assert_allclose(token[0], (written == sample.outputs).mean())
    # With or without a pass over the right answers first, the classes are the same.
    sample = jax.tree.map(jnp.asarray, sample)
    for spare in (True, False):
        classes = dcf_evaluation.predict(
            model_of(graph, params, 0), task, "alm", sample, False, spare=spare
        )
        np.testing.assert_array_equal(classes, written)


def test_a_given_test_set_is_used():
    config = config_of()
    graph, params, placement = setting(config)
    task = tasks.get("RS")
    test_set = {
        n: jax.tree.map(np.asarray, strings(task, n, config)) for n in range(1, 13)
    }
    drawn = LengthEvaluation(config, graph, placement).at_length(params, 5)
    given = LengthEvaluation(config, graph, placement, test_set=test_set)
    np.testing.assert_allclose(given.at_length(params, 5), drawn)
    flipped = dataclasses.replace(test_set[5], outputs=1 - test_set[5].outputs)
    other = LengthEvaluation(
        config, graph, placement, test_set={**test_set, 5: flipped}
    )
    np.testing.assert_allclose(other.at_length(params, 5)[0], 1 - drawn[0])
    del test_set[12]
    with pytest.raises(training.UserError, match=r"1\.\.11 without 12"):
        LengthEvaluation(config, graph, placement, test_set=test_set)


def test_strings_do_not_depend_on_how_far_one_measures():
    config = config_of(seeds=(0, 1))
    graph, params, placement = setting(config)
    longer = dataclasses.replace(config, test_length=200)
    near = LengthEvaluation(config, graph, placement)
    far = LengthEvaluation(longer, graph, placement)
    assert far._batch_size(200) < near._batch_size(12) == 32
    np.testing.assert_allclose(
        far.at_length(params, 9), near.at_length(params, 9), atol=0.01
    )


def test_many_strings_come_in_blocks(monkeypatch):
    """Block 0 has the frozen strings; further ones are drawn one block at a time."""
    config = config_of(model="rnn", test_strings=24)
    graph, params, placement = setting(config)
    frozen_24 = LengthEvaluation(config, graph, placement).at_length(params, 5)
    monkeypatch.setattr(dcf_evaluation, "FROZEN_STRINGS", 8)
    sizes = []
    sample = tasks.Task.sample
    monkeypatch.setattr(
        tasks.Task, "sample", lambda self, *a: sizes.append(a[1]) or sample(self, *a)
    )
    blocks = [
        LengthEvaluation(
            dataclasses.replace(config, test_strings=n), graph, placement
        ).at_length(params, 5)
        for n in (8, 13, 16)
    ]
    assert set(sizes) == {8}
    task = tasks.get("RS")
    rows = [
        np.asarray(sample(task, frozen_key(task.name, 5, b), 8, 5).inputs)
        for b in (0, 1)
    ]
    np.testing.assert_array_equal(rows[0], strings(task, 5, config).inputs[:8])
    assert not (rows[0] == rows[1]).all()
    model = model_of(graph, params, 0)
    inputs = np.concatenate(rows)
    framed = tasks.frame(
        task,
        tasks.Sample(
            jnp.asarray(inputs),
            jnp.asarray(inputs[:, ::-1]),
            jnp.ones((16, 5), bool),
            jnp.int32(5),
        ),
        "mlm",
    )
    right = np.asarray(model(framed.tokens).argmax(-1) == framed.targets)[:, 6:]
    for (token, string), n in zip(blocks, (8, 13, 16), strict=True):
        np.testing.assert_allclose(token[0], right[:n].mean())
        np.testing.assert_allclose(string[0], right[:n].all(axis=1).mean())
    assert frozen_24[0].shape == (1,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("test_length", 10**9),
        ("train_length", 10**8),
        ("batch_size", 10**11),
    ],
)
def test_what_cannot_fit_is_refused_with_a_figure(name, value):
    changes = {"test_length": 10**9} if name == "train_length" else {}
    config = config_of(**{**changes, name: value})
    with pytest.raises(training.UserError, match=rf"`{name}` should be .* [TPE]iB"):
        check_memory(config)
    check_memory(config_of(test_strings=10**8))


def test_what_a_model_needs_for_one_string_is_counted(monkeypatch):
    monkeypatch.setattr(memory, "machine_bytes", lambda: 24 * 2**30)
    with pytest.raises(training.UserError, match=r"`test_length` should be .* maps"):
        check_memory(config_of(test_length=40_000))
    with pytest.raises(training.UserError, match=r"`test_length` should be .* states"):
        config = config_of(model="rnn", model_config={"hidden_size": 256})
        check_memory(dataclasses.replace(config, test_length=10**7, test_strings=1))
    check_memory(config_of(test_length=2_000))
    # A stack of frames alone has no attention maps.
    frames = {"attention": False, "stack_first": True}
    brackets = dict(task="MA", stack="frames", model_config=frames)
    check_memory(config_of(**brackets, test_length=80_000))


def test_at_most_8_programs_for_lengths_1_to_100(caplog):
    config = config_of(
        model="rnn",
        train_length=40,
        test_length=100,
        test_strings=2,
        test_buckets=DCFConfig.test_buckets,
    )
    graph, params, placement = setting(config)
    evaluation = LengthEvaluation(config, graph, placement)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        runs = evaluation.run(params, progress=False)
    assert len(runs[0]["per_length"]) == 100
    compiled = re.findall(r"Finished XLA compilation of (\S+)", caplog.text)
    assert 1 <= len(compiled) <= 8, compiled


def test_at_most_6_shapes_for_training_lengths_1_to_40():
    for preset in ("quick", "paper"):
        config = DCFConfig(task="RS", **preset_values(preset, "RS", "rnn"))
        problem = dcf.make_problem(config)
        assert len(problem.buckets) <= 6 and problem.buckets[-1] == 40


def test_loss_counts_only_scored_positions():
    logits = jnp.log(jnp.array([[[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]]]))
    targets = jnp.array([[0, 0, 1]])
    mask = jnp.array([[True, True, False]])
    loss, metrics = dcf.masked_loss(logits, targets, mask)
    np.testing.assert_allclose(loss, -np.log([0.9, 0.2]).mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics["accuracy"], 0.5)


def test_paper_preset_is_the_papers():
    for task, batch_size, steps in (
        ("RS", 32, 100_000),
        ("SM", 32, 100_000),
        ("MA", 128, 1_000_000),
        ("SE", 128, 1_000_000),
    ):
        values = preset_values("paper", task, "stack_transformer")
        config = DCFConfig(task=task, preset="paper", **values)
        assert (config.batch_size, config.steps) == (batch_size, steps)
        assert (config.learning_rate, config.schedule) == (1e-4, "constant")
        assert (config.clip_norm, config.test_strings) == (1.0, 512)
        assert (config.train_length, config.test_length) == (40, 100)
        assert config.curriculum == "uniform" and config.model_config == {}


@pytest.mark.slow
@pytest.mark.parametrize("task", tasks.names())
def test_every_task_trains_and_is_measured(task, tmp_path):
    config = config_of(task, model="rnn", steps=5)
    with training.RunFolder(tmp_path, config.to_json()) as folder:
        placement = training.Placement.create()
        results = dcf.run(config, folder, placement, progress=False)
    assert 0 <= results["mean"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "mode", "pos"),
    [
        *((name, "mlm", "none") for name in models.MODELS),
        *(("stack_transformer", "mlm", p) for p in ("sincos", "relative", "rotary")),
        *(("stack_transformer", "alm", p) for p in ("none", "rotary", "alibi")),
        ("transformer", "alm", "relative"),
    ],
)
def test_every_model_mode_and_encoding_trains(model, mode, pos, tmp_path):
    config = config_of("SM", model=model, mode=mode, pos=pos, steps=5)
    with training.RunFolder(tmp_path, config.to_json()) as folder:
        placement = training.Placement.create()
        results = dcf.run(config, folder, placement, progress=False)
    assert 0 <= results["mean"] <= 1
