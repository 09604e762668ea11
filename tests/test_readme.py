"""README.md, followed from top to bottom as a new user would."""

import importlib
import json
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from stackformer.commands import cli, dcf

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
# What makes a training run one of seconds; everything else runs as it is written.
SMALL = (
    *("--preset=smoke", "--steps=5", "--test_length=7", "--no_progress"),
    "--model_config=d_model=4,num_layers=1,num_heads=1",
)


def shell_lines() -> list[tuple[list[str], str]]:
    """Every command of the shell blocks in words, with the remark behind it."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", TEXT, flags=re.S):
        for line in block.replace("\\\n", " ").splitlines():
            remark = line.partition("  #")[2].strip()
            for part in line.partition("  #")[0].split(" && "):
                if words := shlex.split(part, comments=True):
                    found.append((words, remark))
    return found


LINES = shell_lines()


def test_it_is_short_and_says_for_whom():
    assert len(TEXT.splitlines()) <= 150
    first_screen = "\n".join(TEXT.splitlines()[:25])
    for words in ("Researchers", "Engineers", "aclanthology.org", "pip install -e ."):
        assert words in first_screen, words


def test_commands_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    """All in one folder: what one command leaves is there for the next."""
    assert len(LINES) >= 5
    monkeypatch.chdir(tmp_path)
    for words, remark in LINES:
        if words[:2] == ["pip", "install"]:
            check_install(words)
        elif words[:2] == ["git", "clone"] or words[0] == "cd":
            continue  # the clone is here
        elif words[:2] == ["python", "-m"] and words[2] == "pytest":
            continue  # this is it
        elif words[0] == "make":
            assert words[1:] == ["-C", "docs", "html"]
            assert "\nhtml:" in (ROOT / "docs/Makefile").read_text(encoding="utf-8")
        else:
            printed = run(words, monkeypatch, capsys)
            if remark.startswith("prints "):
                assert printed.strip() == remark.removeprefix("prints ")
    for folder in re.findall(r"(?<![\w/])runs/[\w.-]+", TEXT):
        assert (tmp_path / folder).is_dir(), f"{folder} is not there when it is read"


def check_install(words: list[str]) -> None:
    assert words[2] == "-e", words
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in re.findall(r"[\w-]+", words[3]):
        assert extra in project["optional-dependencies"], extra


def run(words: list[str], monkeypatch, capsys) -> str:
    """Runs `python -m experiments.NAME FLAGS` or `stackformer NAME FLAGS` here."""
    if words[0] == "stackformer":
        name, flags = words[1], words[2:]
    else:
        assert words[:2] == ["python", "-m"] and words[2].startswith("experiments.")
        name, flags = words[2].removeprefix("experiments."), words[3:]
    trains = name == "dcf" and any(flag.startswith("--task=") for flag in flags)
    module = importlib.import_module(f"experiments.{name}")
    monkeypatch.setattr(sys, "argv", [name, *flags, *(SMALL if trains else ())])
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        cli.run(module.main)
    captured = capsys.readouterr()
    assert not end.value.code, captured.err
    for path in re.findall(r"^wrote (\S+)$", captured.out, flags=re.M):
        assert Path(path).exists(), path
    return captured.out


def test_what_the_first_command_prints_was_measured():
    """Seed 0 of the recorded run, which trained five seeds at once."""
    folder = ROOT / "experiments/results/ours/RS-hard-mlm"
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    results["runs"] = [run for run in results["runs"] if run["seed"] == 0]
    results["mean"] = results["runs"][0]["score"]
    results["mean_hard"] = results["runs"][0]["score_hard"]
    printed = dcf.report({**results, "file": "results.json"}, folder)
    assert printed.rpartition("\nin ")[0] in TEXT


def test_every_link_leads_to_a_file():
    links = re.findall(r"\]\((?!\w+:)([^()#\s]+)", TEXT)
    assert len(links) > 15
    for link in links:
        assert (ROOT / link).exists(), link


def test_every_named_command_is_there():
    (named,) = re.findall(r"experiments\.NAME --help`: ([\w, ]+)", TEXT)
    for name in named.split(", "):
        assert (ROOT / f"experiments/{name}.py").exists(), name
