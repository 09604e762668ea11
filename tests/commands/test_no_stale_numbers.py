"""Results are shown only where they are of this configuration, step and parameters."""

import json
import shutil
import sys

import jax.numpy as jnp
import pytest

from stackformer.commands import cli, dcf
from stackformer.problems.dcf import evaluation, shipping
from stackformer.training.checkpoints import Checkpoints, stamp
from stackformer.training.errors import UserError
from stackformer.training.records import RunFolder

SMALL = "--model_config=d_model=4,num_layers=1,num_heads=1"
FLAGS = ("--preset=smoke", "--steps=5", "--test_length=7", SMALL, "--no_progress")


def run(out, *flags) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["dcf", *FLAGS, f"--out={out}", *flags])
        with pytest.raises(SystemExit) as end:
            cli.run(dcf.main)
    return end.value.code


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    assert run(out, "--task=RS") == 0
    return out


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def measured(monkeypatch):
    """How often a run was measured."""
    calls, real = [], evaluation.LengthEvaluation.run

    def counted(self, *args, **kwargs):
        calls.append(self.config.task)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(evaluation.LengthEvaluation, "run", counted)
    return calls


def score(out) -> float:
    return json.loads((out / "results.json").read_text())["mean"]


def test_a_finished_run_is_not_measured_again(copy, measured):
    assert run(copy, "--task=RS") == 0 and not measured


def test_another_task_in_a_folder_without_config(copy, measured, capsys):
    (copy / "config.json").unlink()
    assert run(copy, "--task=bucket_sort") == 0
    assert measured == ["bucket_sort"]
    assert "begins anew" in capsys.readouterr().err
    assert list(copy.glob("unknown_run-*/checkpoints/5")), "nothing is lost"
    results = json.loads((copy / "results.json").read_text())
    assert results["task"] == "bucket_sort"


@pytest.mark.parametrize("change", ["torn", "parameters", "step", "absent"])
def test_results_that_do_not_belong_are_measured_again(copy, measured, change):
    path, right = copy / "results.json", score(copy)
    old = json.loads(path.read_text()) | {"mean": 0.123}
    for each in old["runs"]:
        each["per_length"] = dict.fromkeys(each["per_length"], 0.123)
    if change == "absent":
        old.pop("fingerprint")
    elif change != "torn":
        old["fingerprint"][change] = "other"
    path.write_text(json.dumps(old)[:-20] if change == "torn" else json.dumps(old))
    assert run(copy, "--task=RS") == 0
    assert measured == ["RS"] and score(copy) == right


def test_deleted_checkpoints_are_trained_and_their_results_checked(copy, measured):
    shutil.rmtree(copy / "checkpoints")
    right = score(copy)
    assert run(copy, "--task=RS") == 0 and score(copy) == right


def test_only_what_was_measured_is_shipped(copy, tmp_path):
    path = tmp_path / "shipped.safetensors"
    about = shipping.save(copy, path, seed=0, commit="abc")
    assert path.exists() and about["scores"]["score"] == score(copy)
    results = json.loads((copy / "results.json").read_text())
    results["fingerprint"]["step"] = 4
    (copy / "results.json").write_text(json.dumps(results))
    with pytest.raises(UserError, match="should be of the newest checkpoint, at step"):
        shipping.save(copy, path, seed=0, commit="abc")


def test_a_stamp_is_of_configuration_step_and_parameters():
    one = stamp({"task": "RS", "steps": 5}, 5, {"w": jnp.ones(3)})
    assert one == stamp({"task": "RS", "steps": 9}, 5, {"w": jnp.ones(3)})
    assert one != stamp({"task": "SM", "steps": 5}, 5, {"w": jnp.ones(3)})
    assert one != stamp({"task": "RS", "steps": 5}, 6, {"w": jnp.ones(3)})
    assert one != stamp({"task": "RS", "steps": 5}, 5, {"w": jnp.zeros(3)})


def test_a_read_only_folder_shows_its_results(copy, capsys):
    (copy / ".lock").unlink()
    (copy / ".lock").mkdir()  # cannot be opened, as in a read-only folder
    assert run(copy, "--task=RS") == 0
    shown = capsys.readouterr()
    assert "measured" in shown.out and shown.err.count("\n") == 1
    assert "read-only" in shown.err
    assert run(copy, "--task=RS", "--steps=6") == 2
    assert "should be writable" in capsys.readouterr().err


def test_a_full_disk_is_one_line_and_older_checkpoints_stay(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path / "checkpoints")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints._manager, "save", full)
    with pytest.raises(UserError, match="No space left on device; older ones"):
        checkpoints.save(1, {"w": jnp.ones(2)})
    checkpoints.close()
    with RunFolder(tmp_path, {"steps": 1}) as folder:
        folder.append("metrics.jsonl", {"step": 1})
        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(UserError, match=r"json cannot be written: No space"):
            folder.write("results.json", {})
    assert not list(tmp_path.glob(".results*")), "no torn file is left"
