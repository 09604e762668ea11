"""The main command, on the smoke preset."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from stackformer import tasks, training
from stackformer.commands import cli, dcf
from stackformer.commands.compile import command as compile_command
from stackformer.problems import dcf as problems_dcf
from stackformer.problems.dcf import DCFConfig, load_run
from stackformer.problems.dcf import evaluation as dcf_evaluation
from stackformer.problems.dcf import problem as dcf_problem
from stackformer.problems.settings import explanations


def command(monkeypatch, capsys, *flags) -> tuple[int, str, str]:
    """Runs `python -m experiments.dcf` in this process: exit code and both outputs."""
    monkeypatch.setattr(sys, "argv", ["dcf", *map(str, flags)])
    with pytest.raises(SystemExit) as end:
        cli.run(dcf.main)
    captured = capsys.readouterr()
    return end.value.code, captured.out, captured.err


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A smoke run with two seeds."""
    out = tmp_path_factory.mktemp("dcf") / "run"
    flags = ("--task=RS", "--preset=smoke", "--seeds=0,1", f"--out={out}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["dcf", *flags, "--no_progress"])
        assert dcf.main() == 0
    return out, flags


def test_all_files_are_there(finished):
    out, _ = finished
    results = json.loads((out / "results.json").read_text())
    assert set(results) >= {
        *("task", "model", "mode", "pos", "preset", "steps", "train_length"),
        *("test_length", "runs", "mean", "std"),
    }
    assert [run["seed"] for run in results["runs"]] == [0, 1]
    for run in results["runs"]:
        assert set(run) >= {"seed", "score", "per_length", "steps", "seconds"}
        assert list(run["per_length"]) == [str(n) for n in range(1, 13)]
        tested = [run["per_length"][str(n)] for n in range(7, 13)]
        np.testing.assert_allclose(run["score"], np.mean(tested))
        assert all(0 <= x <= 1 for x in run["per_length"].values())
        for n, x in run["per_length_string"].items():
            assert x <= run["per_length"][n] + 1e-9
    scores = [run["score"] for run in results["runs"]]
    np.testing.assert_allclose(results["mean"], np.mean(scores))
    np.testing.assert_allclose(results["std"], np.std(scores, ddof=1))
    config = json.loads((out / "config.json").read_text())
    assert config["task"] == "RS" and config["environment"]["packages"]["jax"]
    assert (out / "length_generalization.png").read_bytes()[1:4] == b"PNG"
    assert (out / "checkpoints" / "20").is_dir()
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 4


def test_a_finished_run_is_only_shown_again(finished, monkeypatch, capsys):
    _, flags = finished
    monkeypatch.setattr(dcf_evaluation.LengthEvaluation, "run", None)
    code, shown, _ = command(monkeypatch, capsys, *flags)
    assert code == 0
    assert "measured" in shown and "paper     100.0 ± 0.0" in shown


def test_another_configuration_is_refused(finished, monkeypatch, capsys):
    _, flags = finished
    code, _, errors = command(monkeypatch, capsys, *flags, "--steps=19")
    assert code == 2 and errors.count("\n") == 1
    assert "steps: 20 in the folder, 19 asked for" in errors
    assert "Traceback" not in errors


def test_load_run(finished):
    out, _ = finished
    model, task, config = load_run(out, seed=1)
    assert task.short_name == "RS" and config.seeds == (0, 1)
    assert model(np.array([[1, 4, 5, 2, 2]])).shape == (1, 5, 2)
    with pytest.raises(training.UserError, match=r"seeds \[0, 1\], not 7"):
        load_run(out, seed=7)
    with pytest.raises(training.UserError, match=r"config\.json does not exist"):
        load_run(out / "nowhere")


def test_loading_and_predicting_is_silent(finished, recwarn, caplog, capfd):
    out, _ = finished
    answers = load_run(out).predict(["ab", "bba"])
    assert [len(answer) for answer in answers] == [2, 3]
    assert not recwarn.list and not caplog.records
    assert capfd.readouterr() == ("", "")


def test_a_finished_run_goes_on_with_more_steps(
    finished, tmp_path, monkeypatch, capsys
):
    out, flags = finished
    shutil.copytree(out, tmp_path / "run")
    flags = (*flags[:-1], f"--out={tmp_path / 'run'}", "--steps=25")
    code, shown, errors = command(monkeypatch, capsys, *flags)
    assert code == 0 and "going on from step 20 of 25" in shown + errors
    steps = [
        json.loads(line)["step"] for line in (tmp_path / "run/metrics.jsonl").open()
    ]
    assert steps == [5, 10, 15, 20, 25]


def test_eval_only_goes_further_with_the_same_strings(finished, monkeypatch, capsys):
    out, flags = finished
    before = (out / "results.json").read_bytes()
    picture = (out / "length_generalization.png").read_bytes()
    code, shown, _ = command(
        monkeypatch, capsys, "--eval_only", f"--out={out}", "--test_length=16"
    )
    assert code == 0 and "lengths 7..16" in shown and "results-16x32.json" in shown
    # What the run itself was to measure stays as it is.
    assert (out / "results.json").read_bytes() == before
    assert (out / "length_generalization.png").read_bytes() == picture
    assert (out / "length_generalization-16x32.png").exists()
    after = json.loads((out / "results-16x32.json").read_text())
    assert (after["test_length"], after["test_strings"]) == (16, 32)
    for a, b in zip(after["runs"], json.loads(before)["runs"], strict=True):
        assert list(a["per_length"]) == [str(n) for n in range(1, 17)]
        for n, accuracy in b["per_length"].items():
            assert abs(a["per_length"][n] - accuracy) < 0.01
    # The training command gives its own range again, without measuring.
    monkeypatch.setattr(dcf_evaluation.LengthEvaluation, "run", None)
    code, shown, _ = command(monkeypatch, capsys, *flags)
    assert code == 0 and "lengths 7..12" in shown


def test_results_on_a_test_set_say_how_many_strings_it_has(
    finished, monkeypatch, capsys
):
    out, _ = finished
    samples = {
        n: jax.tree.map(np.asarray, tasks.get("RS").sample(jax.random.key(n), 6, n))
        for n in range(1, 13)
    }
    monkeypatch.setattr(dcf_problem, "load_test_set", lambda *_: samples)
    before = (out / "results.json").read_bytes()
    code, _, _ = command(
        monkeypatch, capsys, "--eval_only", f"--out={out}", "--test_data=DIR"
    )
    assert code == 0 and (out / "results.json").read_bytes() == before
    results = json.loads((out / "results-12x6.json").read_text())
    assert (results["test_strings"], results["test_data"]) == (6, "DIR")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--task=XX"], "unknown task 'XX'"),
        ([], "--task is required"),
        (["--task=RS", "--model=gru"], "invalid choice: 'gru' (choose from"),
        (["--task=RS", "--preset=smoke", "--model=rnn", "--mode=alm"], "mlm"),
        (["--task=RS", "--model_config=width=3"], "num_layers"),
        (["--task=RS", "--test_length=40"], "--test_length should be above"),
        (
            ["--task=RS", "--lr=-1"],
            "--lr should be a finite number above 0, but got -1.0",
        ),
        (["--task=RS", "--seeds=a"], "whole numbers with commas"),
        (["--task=RS", "--seeds=1,1"], "--seeds should be different whole numbers"),
        (["--task=RS", "--lr=nan"], "--lr: expected a finite number, but got 'nan'"),
        (["--task=RS", "--seeds=0,4294967296"], "from 0 to 4294967295, but got (0, 42"),
        (["--task=RS", "--process_id=0"], "go with --distributed"),
        (["--task=RS", "--curriculum=up"], "one of uniform, fixed"),
        (["--task=RS", "--mesh=data:999"], "needs 999 devices"),
        (["--task=RS", "--steps=0"], "at least 1"),
        (["--task=RS", "--ste=5"], "unrecognized arguments"),
        (["--eval_only"], "--eval_only needs --out"),
        (["--task=RS", "--test_data=/no/such/folder"], "--test_data /no/such"),
    ],
)
def test_mistakes_are_explained_without_a_trace(
    flags, message, monkeypatch, capsys, tmp_path
):
    monkeypatch.chdir(tmp_path)
    code, _, errors = command(monkeypatch, capsys, *flags)
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors
    assert not list(tmp_path.rglob("config.json"))


def test_help_has_groups_and_examples(monkeypatch, capsys):
    code, shown, _ = command(monkeypatch, capsys, "--help")
    assert code == 0
    for group in ("what is trained:", "over the preset:", "the run:", "devices:"):
        assert group in shown
    assert shown.count("  python -m experiments.dcf --") == 4


def test_a_flag_is_a_field_with_its_explanation(monkeypatch, capsys):
    _, shown, _ = command(monkeypatch, capsys, "--help")
    words = " ".join(shown.split())
    texts = explanations(DCFConfig)
    for name in ("steps", "learning_rate", "curriculum", "model_config"):
        assert texts[name] in words
    assert "--test_strings TEST_STRINGS strings of each length" in words
    assert "default 512" in words
    args = dcf.make_parser().parse_args(["--task=RS", "--lr=1e-3", "--seeds=1,2"])
    assert dcf.given_fields(args) == {
        "task": "RS",
        "learning_rate": 1e-3,
        "seeds": (1, 2),
    }


def test_the_model_is_built_once(tmp_path, monkeypatch):
    problems = []
    make_problem = dcf_problem.make_problem

    def counted(config):
        problems.append(make_problem(config))
        return problems[-1]

    monkeypatch.setattr(dcf_problem, "make_problem", counted)
    monkeypatch.setattr(problems_dcf, "make_problem", counted)
    flags = ["--task=RS", "--preset=smoke", "--model=rnn", "--steps=5"]
    flags += ["--test_strings=4", "--no_progress", f"--out={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["dcf", *flags])
    assert dcf.main() == 0
    assert len(problems) == 1


def test_an_installed_command_names_itself(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["stackformer dcf", "--steps=x"])
    with pytest.raises(SystemExit):
        dcf.main()
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1 and "see stackformer dcf --help" in errors
    assert cli.command_line("dcf") == "stackformer dcf --steps=x"
    # In help and errors too: where it is installed there is no `experiments`.
    for make_parser in (dcf.make_parser, compile_command.make_parser):
        assert "experiments" not in make_parser().format_help()
    assert "stackformer tasks" in dcf.make_parser().format_help()
    flags = ["--task=RS", "--preset=smoke", "--test_data=/nonexistent"]
    monkeypatch.setattr(sys, "argv", ["stackformer dcf", *flags])
    with pytest.raises(SystemExit):
        cli.run(dcf.main)
    assert "write it with: stackformer tasks --task=" in capsys.readouterr().err


def test_describe_prints_the_parameters(monkeypatch, capsys):
    code, shown, _ = command(monkeypatch, capsys, "--task=RS", "--describe")
    assert code == 0
    assert "parameters" in shown and "total" in shown


def test_default_folders_differ_with_the_flags():
    def folder(*flags):
        args = dcf.make_parser().parse_args(["--task=RS", *flags])
        return str(dcf.default_out(dcf.make_config(args), args))

    assert folder() == "runs/dcf/RS-stack_transformer-superposition-mlm-none-quick"
    names = {folder(), folder("--steps=5"), folder("--seeds=0,1"), folder("--lr=1e-3")}
    assert len(names) == 4


def test_what_may_be_none_can_be_given_as_0():
    """A preset's warm-up can be taken away again."""
    flags = ("--task=MA", "--warmup=0", "--balance=0", "--balance_steps=0")
    config = dcf.make_config(dcf.make_parser().parse_args(flags))
    assert (config.warmup, config.balance, config.balance_steps) == (0, 0, 0)


def test_sigterm_saves_and_says_how_to_go_on(tmp_path):
    flags = ["--task=RS", "--preset=smoke", "--model=rnn", "--steps=1000000"]
    arguments = [sys.executable, "-m", "experiments.dcf", *flags, f"--out={tmp_path}"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(arguments, **options)
    end = time.time() + 240
    while not (tmp_path / "metrics.jsonl").exists():
        assert process.poll() is None, process.communicate()
        assert time.time() < end
        time.sleep(0.1)
    # Nobody else may use the folder meanwhile.
    second = subprocess.run(arguments, capture_output=True, text=True, timeout=240)
    assert second.returncode == 2
    assert "is in use by process" in second.stderr
    os.kill(process.pid, signal.SIGTERM)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    expected = f"To go on: python -m experiments.dcf {' '.join(flags)} --out={tmp_path}"
    assert expected in output
    assert re.search(r"training .*% .* left", errors)  # how much, and how long
    assert list((tmp_path / "checkpoints").iterdir())
