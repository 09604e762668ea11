"""Phases, the curriculum by accuracy, hard scores, answers to strings."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stackformer import tasks, training
from stackformer.problems import dcf
from stackformer.problems.dcf.config import DCFConfig
from stackformer.problems.dcf.evaluation import LengthEvaluation
from stackformer.problems.dcf.lengths import Curriculum
from stackformer.problems.dcf.phases import Phase
from stackformer.problems.dcf.presets import preset_values
from stackformer.training.state import create_state


def config_of(task="RS", model="stack_transformer", stack=None, **changes) -> DCFConfig:
    values = preset_values("smoke", task, model, stack)
    identity = {"task": task, "model": model, "stack": stack, "preset": "smoke"}
    return DCFConfig(**identity, **{**values, **changes})


@pytest.mark.parametrize("mode", ["mlm", "alm"])
def test_hard_scores_are_those_of_the_most_probable_actions(mode):
    config = config_of(mode=mode, test_strings=8)
    placement = training.Placement.create()
    problem = dcf.make_problem(config)
    # A head whose actions are far from certain, so that hard and soft differ.
    params = create_state(problem, (0,), placement).params
    evaluation = LengthEvaluation(config, problem.graph, placement, with_hard=True)
    model = nnx.merge(problem.graph, jax.tree.map(lambda leaf: leaf[0], params))
    trained = dcf.TrainedModel(model, tasks.get("RS"), config)
    from stackformer.data import dcf as frozen

    sample = dict(frozen.draw(trained.task, [5], 8))[5]
    pairs = trained.task.decode_sample(sample)
    for hard in (False, True):
        token, string = evaluation.at_length(params, 5, hard=hard)
        said = trained.predict([text for text, _ in pairs], hard=hard)
        right = [[a == b for a, b in zip(x, y, strict=True)] for x, (_, y) in
                 zip(said, pairs, strict=True)]  # fmt: skip
        np.testing.assert_allclose(token[0], np.mean(right))
        np.testing.assert_allclose(string[0], np.mean([all(r) for r in right]))


def test_predicts_strings_of_many_lengths_in_their_order():
    config = config_of("SM")
    problem = dcf.make_problem(config)
    model = dcf.TrainedModel(problem.init(jax.random.key(0)), tasks.get("SM"), config)
    texts = ["a b pop", "a", "b b push_a pop push_b a b a b"]
    together = model.predict(texts)
    assert together == [model.predict(text) for text in texts]
    for said in together:
        assert set(said) <= set("ab$") and "$" not in said[:-1]
    with pytest.raises(ValueError, match="should not be empty"):
        model.predict("")
    with pytest.raises(ValueError, match="'x' at position 1"):
        model.predict("ax")


def test_phases_follow_accuracy_and_entropy():
    config = config_of(phases="hard", sharpen_at=0.9, harden_at=0.1)
    phase, numbers = Phase.first(), []
    for accuracy, entropy in [(0.5, 1.0)] * 5 + [(1.0, 1.0)] * 80 + [(1.0, 0.01)] * 80:
        phase = phase.after(config, jnp.float32(accuracy), jnp.float32(entropy))
        numbers.append(int(phase.number))
    assert numbers[4] == 0 and numbers[84] == 1 and numbers[-1] == 2
    assert sorted(numbers) == numbers  # never back
    assert bool(phase.is_hard(config)) and float(phase.loss(config, 2.0)) > 0
    soft = dataclasses.replace(config, phases="soft")
    phase = Phase.first()
    for _ in range(100):
        phase = phase.after(soft, jnp.float32(1.0), jnp.float32(0.0))
    assert int(phase.number) == 0 and float(phase.loss(soft, 2.0)) == 0.0
    assert not phase.is_hard(soft)


def test_curriculum_by_accuracy_grows_when_the_newest_three_are_right():
    curriculum = Curriculum(name="accuracy", value=0.9, max_length=8, start=4)
    reached = curriculum.progress()

    def advance(reached, length, accuracy):
        return curriculum.advance(
            reached, jnp.array([length]), jnp.array([accuracy], jnp.float32)
        )

    assert float(curriculum.probabilities(0, reached)[4:].sum()) == 0.0
    # Half of the weight is on the newest three of four, the rest even.
    weights = np.asarray(curriculum.probabilities(0, reached)[:4])
    np.testing.assert_allclose(weights, [1 / 8] + [7 / 24] * 3, rtol=1e-5)
    for length in (2, 3):
        for _ in range(4):
            reached = advance(reached, length, 1.0)
    assert int(reached.length) == 4  # 4 itself was not seen yet
    for _ in range(4):
        reached = advance(reached, 4, 0.5)
    assert int(reached.length) == 4  # and is not right
    for _ in range(20):
        reached = advance(reached, 4, 1.0)
    assert int(reached.length) == 5


@pytest.mark.parametrize("words", ["accuracy:0", "accuracy:1.5", "accuracy:x"])
def test_bad_curricula(words):
    with pytest.raises(training.UserError, match="curriculum"):
        Curriculum.parse(words, 40)


def test_a_run_with_frames_goes_on_bit_for_bit(tmp_path):
    """Balance steps, curriculum and phases are part of the state."""
    config = config_of(
        "MA",
        stack="frames",
        steps=12,
        steps_per_dispatch=4,
        balance=1.0,
        balance_steps=4,
        curriculum="accuracy:0.1",
        curriculum_start=2,
        phases="sharpened",
        sharpen_at=0.05,
        train_length=8,
        model_config={
            "d_model": 16,
            "num_layers": 1,
            "attention": False,
            "stack_first": True,
            "item_features": 4,
            "hidden": 8,
            "noise": 0.1,
            "actions_from": "strings",
        },
    )
    problem = dcf.make_problem(config)
    placement = training.Placement.create()

    def train(folder, steps):
        options = training.TrainOptions(
            steps=steps, steps_per_dispatch=4, checkpoint_every=4, progress=False
        )
        with training.RunFolder(folder, {"steps": steps}) as run:
            return training.train(problem, options, folder=run, placement=placement)

    whole = train(tmp_path / "whole", 12)
    train(tmp_path / "parts", 8)
    parts = train(tmp_path / "parts", 12)
    jax.tree.map(np.testing.assert_array_equal, parts.params, whole.params)
    jax.tree.map(np.testing.assert_array_equal, parts.progress, whole.progress)
    lines = [
        (tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "parts")
    ]
    assert lines[0] == lines[1]
    first = json.loads(lines[0].splitlines()[0])
    assert first["length"] == [0.0] and first["accuracy"] == [0.0]
    assert "balance" in first and "entropy_0" in first
    assert int(whole.progress.reached.length[0]) > 2


@pytest.mark.parametrize("preset", ["quick", "paper", "smoke"])
@pytest.mark.parametrize("stack", [None, "superposition", "frames"])
def test_every_preset_makes_a_model(preset, stack):
    for task in ("RS", "SE"):
        values = preset_values(preset, task, "stack_transformer", stack)
        config = DCFConfig(**{"task": task, "stack": stack, "preset": preset, **values})
        assert config.stack in ("superposition", "frames")
        assert dcf.make_problem(config).graph


@pytest.mark.parametrize("task", ["MA", "SE"])
def test_one_answer_symbol_without_attention_trains_alike_in_both_modes(task):
    """So a run of `--mode=alm` is the run of `--mode=mlm`, step for step."""
    grads = []
    for mode in ("mlm", "alm"):
        values = preset_values("quick", task, "stack_transformer")
        values["model_config"] |= {"d_model": 16, "item_features": 8, "hidden": 16}
        config = DCFConfig(**{"task": task, "mode": mode, **values, "batch_size": 16})
        problem = dcf.make_problem(config)
        model = problem.init(jax.random.key(0))
        graph, params = nnx.split(model)

        def loss(params, problem=problem, graph=graph):
            key, step = jax.random.key(1), jnp.int32(2_000)
            batch = problem.batch((), key, step, 10, problem.progress)
            rngs = nnx.Rngs(dropout=jax.random.key(2))
            model = nnx.merge(graph, params)
            return problem.loss(model, batch, rngs, problem.progress)[0]

        grads.append(jax.jit(jax.value_and_grad(loss))(params))
    jax.tree.map(np.testing.assert_array_equal, *grads)
    assert any(np.any(x != 0) for x in jax.tree.leaves(grads[0]))
