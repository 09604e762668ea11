"""The files of a run."""

import json

import pytest

from stackformer.training import RunFolder, UserError
from stackformer.training.records import read_json, read_lines, write_json


def test_config_is_written_once_with_versions_and_device(tmp_path):
    with RunFolder(tmp_path / "a" / "b", {"task": "RS"}, command="python x") as folder:
        assert not (folder.path / "config.json").exists()  # nothing was done yet
        folder.begin()
        content = read_json(folder.path / "config.json")
    assert content["task"] == "RS"
    assert content["command"] == "python x"
    assert content["environment"]["packages"]["jax"]
    assert content["environment"]["device"]


def test_another_configuration_is_refused_with_the_difference(tmp_path):
    with RunFolder(tmp_path, {"task": "RS", "steps": 1}) as folder:
        folder.begin()
    with RunFolder(tmp_path, {"task": "RS", "steps": 1}):
        pass
    with (
        pytest.raises(UserError, match='task: "RS" in the folder, "SM" asked for') as e,
        RunFolder(tmp_path, {"task": "SM", "steps": 1}),
    ):
        pass
    assert "steps" not in str(e.value)
    with RunFolder(tmp_path, {"task": "RS", "steps": 1}):
        pass  # the refusal did not keep the lock


def test_only_more_steps_are_the_same_run(tmp_path):
    config = {"task": "RS", "steps": 10}
    with RunFolder(tmp_path, config) as folder:
        folder.begin()
    with RunFolder(tmp_path, {**config, "steps": 20}) as folder:
        assert read_json(tmp_path / "config.json")["steps"] == 10
        folder.begin()
        assert read_json(tmp_path / "config.json")["steps"] == 20
    for other in (config, {"task": "SM", "steps": 30}):
        with (
            pytest.raises(UserError, match="holds another: "),
            RunFolder(tmp_path, other),
        ):
            pass


def test_two_users_of_one_folder_are_refused(tmp_path):
    with (
        RunFolder(tmp_path, {}),
        pytest.raises(UserError, match=r"in use by process \d+"),
    ):
        RunFolder(tmp_path, {}).__enter__()
    with RunFolder(tmp_path, {}):
        pass


def test_a_folder_that_cannot_be_made_is_the_users_to_mend(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="`out` should be a folder"):
        RunFolder(tmp_path / "file" / "run", {}).__enter__()


def test_truncate_forgets_later_and_torn_lines(tmp_path):
    with RunFolder(tmp_path, {}) as folder:
        for step in (5, 10, 15):
            folder.append("metrics.jsonl", {"step": step})
            folder.append("timing.jsonl", {"step": step, "seconds": 2.0})
        with open(tmp_path / "metrics.jsonl", "a") as file:
            file.write('{"step": 1')
        folder.truncate(10)
        assert [r["step"] for r in read_lines(tmp_path / "metrics.jsonl")] == [5, 10]
        assert (tmp_path / "metrics.jsonl").read_text().endswith("}\n")
        assert folder.seconds() == 4.0


def test_write_json_replaces_or_leaves(tmp_path):
    path = tmp_path / "results.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_unreadable_json_is_the_users_to_mend(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_json(tmp_path / "config.json")
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(UserError, match="hold an object with names, but got a list"):
        read_json(tmp_path / "config.json")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        read_json(tmp_path / "config.json")
