"""One door to all models, and what it says to who stands before the wrong one."""

import dataclasses
import json
import types

import pytest
from flax import nnx

from stackformer import models, tasks
from stackformer.nn.stacks import SuperpositionConfig

TASK = types.SimpleNamespace(vocab_size=7, output_size=3)


@pytest.mark.parametrize("name", models.MODELS)
def test_every_name_builds_a_model_whose_config_can_be_saved(name):
    model = models.build(name, TASK, rngs=nnx.Rngs(0))
    to_json = getattr(model.config, "to_json", lambda: dataclasses.asdict(model.config))
    config = to_json()
    assert (config["vocab_size"], config["output_size"]) == (7, 3)
    restored = type(model.config)(**json.loads(json.dumps(config)))
    assert restored == model.config


def test_names_are_those_of_the_command():
    assert set(models.MODELS) == {
        "stack_transformer",
        "transformer",
        "rnn",
        "stack_rnn",
        "lstm",
        "stack_lstm",
        "tape_rnn",
        "ndstack_rnn",
    }


def test_names_mode_positions_and_overrides_reach_the_config():
    rngs = nnx.Rngs(0)
    small = {"num_layers": 1, "d_model": 8, "num_heads": 2}
    model = models.build(
        "transformer", TASK, small, mode="alm", positions="rotary", rngs=rngs
    )
    config = model.config
    assert (config.stack, config.causal, config.positions) == (None, True, "rotary")
    assert (config.num_layers, config.d_model) == (1, 8)
    config = models.build(
        "stack_transformer", TASK, {**small, "max_pops": 2}, rngs=rngs
    ).config
    assert (config.causal, config.positions) == (False, "none")
    assert config.stack == SuperpositionConfig(max_pops=2)
    for name, controller in [("stack_rnn", "rnn"), ("stack_lstm", "lstm")]:
        config = models.build(name, TASK, {"stack_size": 30}, rngs=rngs).config
        assert (config.controller, config.stack_size) == (controller, 30)
        assert (config.hidden_size, config.stack_cell_size) == (256, 8)


def test_a_real_task():
    task = tasks.get("RS")
    model = models.build("lstm", task, {"hidden_size": 4}, rngs=nnx.Rngs(0))
    assert model.config.vocab_size == task.vocab_size


@pytest.mark.parametrize(
    "name, kwargs, message",
    [
        ("gru", {}, "should be one of stack_transformer, transformer, rnn.*got 'gru'"),
        ("rnn", {"mode": "alm"}, "`mode` should be 'mlm' with the recurrent.*'rnn'"),
        ("lstm", {"mode": "clm"}, "`mode` should be one of mlm, alm, but got 'clm'"),
        ("stack_rnn", {"positions": "alibi"}, "`positions` should be 'none'.*'alibi'"),
        ("transformer", {"positions": "learned"}, "sincos.*but got 'learned'"),
        ("rnn", {"config": {"stack_size": 3}}, "among hidden_size, but got stack_size"),
        (
            "rnn",
            {"config": {"controller": "lstm"}},
            "name, the task.*decide controller",
        ),
        ("transformer", {"config": {"d_modell": 3}}, "d_model,.*but got d_modell"),
        ("transformer", {"config": {"causal": True}}, "decide causal"),
        ("tape_rnn", {"config": {"tape_size": -1}}, "`tape_size` should be an integer"),
    ],
)
def test_mistakes_are_explained(name, kwargs, message):
    with pytest.raises(ValueError, match=message):
        models.build(name, TASK, **kwargs, rngs=nnx.Rngs(0))
