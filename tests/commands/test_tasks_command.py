"""`python -m experiments.tasks`: what a person sees."""

import sys

import pytest

from stackformer import tasks
from stackformer.commands import cli
from stackformer.commands import tasks as command
from stackformer.data import dcf


@pytest.fixture
def run(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["tasks", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.run(command.main)
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return run


def test_lists_all_tasks(run):
    code, out, _ = run()
    assert code == 0
    for name in tasks.names():
        assert name in out


def test_prints_readable_strings(run):
    code, out, _ = run("--task=MA", "--length=20", "--n=5")
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 5
    for line in lines:
        x, y = line.split("  ->  ")
        assert len(x) == 20 and eval(x) % 5 == int(y)
    assert run("--task=MA", "--length=20", "--n=5")[1] == out
    assert run("--task=MA", "--length=20", "--n=5", "--seed=1")[1] != out


def test_shows_tokens_and_answers(run):
    _, out, _ = run("--task=RS", "--length=3", "--n=1", "--mode=mlm")
    assert out.splitlines()[1].strip().endswith("<sep> <mask> <mask>")
    assert run("--task=RS", "--answer=abb")[1] == "bba\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task=XX"], "error: unknown task 'XX'; known tasks: reverse_string (RS)"),
        (["--task=MA", "--length=0"], "expected a whole number of at least 1"),
        (["--task=MA", "--n=0"], "expected a whole number of at least 1"),
        (["--task=RS", "--answer=abc"], "outside the alphabet {a, b}"),
        (["--export=somewhere"], "need --task=NAME"),
        (
            ["--task=RS", "--export=/dev/null/x"],
            "--export should be a folder",
        ),
    ],
)
def test_mistakes_are_one_line_without_a_trace(run, arguments, message):
    code, _, err = run(*arguments)
    assert code == 2
    assert message in err and "Traceback" not in err


def test_export_shows_progress_and_is_read_back(run, monkeypatch, tmp_path):
    config = dcf.DcfConfig(
        name="tiny_rs", task=tasks.get("RS"), ranges=((1, 2),), strings_per_length=4
    )
    builder = dcf.builder
    monkeypatch.setattr(
        dcf, "builder", lambda task, folder: builder(task, folder, config)
    )
    code, out, err = run("--task=RS", f"--export={tmp_path}")
    assert code == 0
    assert out.startswith("written, checked: ") and "8/8" in err
    assert len(out.splitlines()) == 1
    assert dcf.load_test_set(tmp_path, "RS")[2].inputs.shape == (4, 2)
    assert run("--task=RS", f"--export={tmp_path}")[1].startswith("already there")
