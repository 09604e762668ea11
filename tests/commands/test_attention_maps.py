"""The attention_maps command on runs with untrained weights: files, text, refusals."""

import functools
import re
import sys

import jax
import numpy as np
import pytest
from flax import nnx

from stackformer import models, tasks, viz
from stackformer.commands import attention_maps, cli
from stackformer.problems.dcf.config import DCFConfig
from stackformer.problems.dcf.problem import make_problem
from stackformer.training import Placement, RunFolder, UserError
from stackformer.training.checkpoints import Checkpoints
from stackformer.training.state import create_state

SMALL = {"num_layers": 2, "d_model": 16, "num_heads": 2}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """The folder of a run of RS with two seeds, before its first step."""
    config = DCFConfig(
        task="RS",
        steps=1,
        batch_size=2,
        learning_rate=1e-3,
        seeds=(3, 4),
        model_config={**SMALL, "num_layers": 1},
    )
    path = tmp_path_factory.mktemp("run")
    with RunFolder(path, config.to_json()) as folder:
        folder.begin()
        state = create_state(make_problem(config), config.seeds, Placement.create())
        checkpoints = Checkpoints(path / "checkpoints")
        checkpoints.save(0, state)
        checkpoints.close()
    return path


@functools.cache
def built(task, mode="mlm", model="stack_transformer", stacks=1):
    config = SMALL if model == "stack_transformer" else {}
    if stacks > 1:
        config = {**config, "num_stacks": stacks}
    return models.build(model, tasks.get(task), config, mode=mode, rngs=nnx.Rngs(0))


@functools.cache
def replayed(name, text, mode="mlm", **kwargs):
    task = tasks.get(name)
    model = built(name, mode, **kwargs)
    return attention_maps.replay(model, task, task.encode(text), mode)


def test_command_writes_pictures_page_and_text(run_folder, tmp_path, capsys):
    save_to = tmp_path / "new"
    flags = [f"--out={run_folder}", "--input=abb", "--html", f"--save_to={save_to}"]
    assert attention_maps.main(flags) == 0
    names = ["stack_attention.png", "stack_attention.svg", "stack_explorer.html"]
    for name in names:
        assert (save_to / name).stat().st_size > 5_000
    printed = capsys.readouterr().out
    assert "reverse_string (mlm): abb → bba" in printed
    assert "Layer 1: " in printed
    assert "answer      b b a" in printed and "stack, bottom to top" in printed
    assert all(f"wrote {save_to / name}" in printed for name in names)


def test_random_string_of_another_seed(run_folder, tmp_path, capsys):
    flags = [f"--out={run_folder}", "--seed=4", f"--save_to={tmp_path}", "--length=3"]
    attention_maps.main([*flags, "--string_seed=5"])
    printed = capsys.readouterr().out
    again = attention_maps.choose_input(tasks.get("RS"), None, 3, seed=5)
    assert f"(mlm): {tasks.get('RS').decode(again)} →" in printed
    assert not (tmp_path / "stack_explorer.html").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--input=abca"], r"'c' at position 2.*alphabet \{a, b\}"),
        (["--input="], "--input: expected a value, but got an empty one"),
        (["--layers=0,1"], "--layers should count from 1, but got 0,1"),
        (["--seed=9"], r"seeds \[3, 4\], not 9"),
        (["--input=" + "ab" * 300, "--html"], "up to 1,000 positions"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    run_folder, tmp_path, capsys, monkeypatch, flags, message
):
    flags = ["attention_maps", f"--out={run_folder}", f"--save_to={tmp_path}", *flags]
    monkeypatch.setattr(sys, "argv", flags)
    with pytest.raises(SystemExit) as stop:
        cli.run(attention_maps.main)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert re.search(message, line)


def test_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is this the folder of a run"):
        attention_maps.main([f"--out={tmp_path}"])


def test_symbols_are_the_papers_and_layers_can_be_chosen():
    record = replayed("SM", "ab pop push_b push_b")
    assert record.tokens == ["bottom", *"abPbb", "|", *"MMMMM"]
    assert record.symbols == ["a", "b", "$"]
    assert record.targets[6:] == ["b", "b", "a", "$", None, None]
    assert record.predicted.tolist() == [False] * 6 + [True] * 6
    assert record.layers == [1, 2] and record.weights[0].shape == (12, 12)
    for weights, actions in zip(record.weights, record.actions, strict=True):
        top = viz.depth_distribution(actions, depth=1)[:, 0]
        np.testing.assert_allclose(weights, top, atol=1e-5)
    one = record.only((2,))
    assert one.plot().axes[0].get_title(loc="left") == "Layer 2"
    assert "Layer 2: " in one.describe() and "Layer 1: " not in one.describe()
    with pytest.raises(UserError, match=r"no stack in layer 7.*are 1, 2"):
        record.only((1, 7))


def test_autoregressive_models_read_their_own_answer():
    record = replayed("RS", "abb", "alm")
    classes = record.probabilities.argmax(axis=-1)
    own = [record.symbols[c] for c in classes[4:7]]
    assert record.tokens == ["bottom", *"abb", "|", *own[:2]]
    assert record.targets == [None] * 4 + ["b", "b", "a"]


def test_several_stacks_of_a_layer_are_several_panels():
    record = replayed("RS", "ab", stacks=2)
    assert record.actions[0].shape == (2, 5, 3)
    text = record.describe()
    assert "Layer 2, stack 2: " in text
    assert "Layer 1, stack 2" in record.explore().html


def test_stack_of_a_recurrent_model_has_its_bottom_before_the_string():
    record = replayed("RS", "ab", model="stack_rnn")
    assert record.tokens == ["bottom", "B", "a", "b", "|", "M"]
    assert record.targets[4:] == ["b", "a"]
    assert record.actions[0].shape[-2:] == (6, 3)
    np.testing.assert_allclose(record.weights[0].sum(axis=-1), 1.0, atol=1e-5)


def test_models_without_a_stack_are_refused():
    with pytest.raises(UserError, match="no stack attention"):
        replayed("RS", "ab", model="rnn")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["mlm", "alm"])
@pytest.mark.parametrize("name", tasks.names())
def test_every_task(name, mode):
    task = tasks.get(name)
    inputs = attention_maps.choose_input(task, None, 5, seed=1)
    record = attention_maps.replay(built(name, mode), task, inputs, mode)
    width = task.output_length(inputs.size)
    assert len(record.tokens) == 1 + inputs.size + width
    assert sum(record.predicted) == width
    right = [t for t in record.targets if t is not None]
    answer = task.answer(task.decode(inputs))
    assert right == [task.output_symbols[c] for c in task.encode_output(answer)]
    assert jax.tree.all([a.shape == record.actions[0].shape for a in record.actions])
    assert "stack, bottom to top" in record.describe()
