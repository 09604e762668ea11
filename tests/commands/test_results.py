"""The numbers in the READMEs are those of the results that lie in the repository."""

import json
import re
import shlex
import shutil
import statistics
from pathlib import Path

import pytest

from stackformer.commands.tables.command import make_parser, table_of
from stackformer.commands.tables.results import collect, find_results, to_markdown
from stackformer.viz.report import format_number

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments" / "results"
TABLES = sorted(RESULTS.rglob("table[12].json"))
LINK = re.compile(r"\[\*\*([^*]+)\*\*\]\(([\w/]*table[12])\.md#([\w.-]+)\)")


@pytest.mark.parametrize(
    "readme, least", [(ROOT / "README.md", 6), (RESULTS / "README.md", 24)]
)
def test_linked_numbers_are_those_of_the_tables(readme, least):
    links = LINK.findall(readme.read_text(encoding="utf-8"))
    assert len(links) >= least
    for number, table, anchor in links:
        content = json.loads((readme.parent / f"{table}.json").read_text())
        cells = {cell["name"].lower(): cell for cell in content["cells"]}
        assert number == format_number(cells[anchor]["measured"]), anchor


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.parent.name + path.stem)
def test_tables_are_what_the_runs_say(path, tmp_path):
    """Made anew from the results.json below it, a table does not change."""
    content = json.loads(path.read_text())
    args = make_parser().parse_args(shlex.split(content["command"])[3:])
    args.out = tmp_path / "results"
    shutil.copytree(path.parent, args.out)
    found = find_results(table_of(args), args.out)
    anew = collect(found, {}, content["command"])
    for cell, old in zip(anew["cells"], content["cells"], strict=True):
        if cell["measured"]:
            assert cell == old
        else:
            assert (cell["row"], cell["column"]) == (old["row"], old["column"])
            assert old["measured"] is None
    assert to_markdown(content) == path.with_suffix(".md").read_text(encoding="utf-8")


def test_scores_are_means_over_the_lengths():
    paths = sorted(RESULTS.rglob("results.json"))
    runs = [(path, json.loads(path.read_text())) for path in paths]
    runs = [(path, results) for path, results in runs if "per_length" in str(results)]
    assert len(runs) >= 20
    for path, results in runs:
        lengths = range(results["train_length"] + 1, results["test_length"] + 1)
        for run in results["runs"]:
            mean = statistics.fmean(run["per_length"][str(n)] for n in lengths)
            assert run["score"] == pytest.approx(mean), path
        mean = statistics.fmean(run["score"] for run in results["runs"])
        assert results["mean"] == pytest.approx(mean), path
        assert json.loads((path.parent / "config.json").read_text())["command"]


def test_no_folder_of_the_machine_is_in_the_results():
    for path in RESULTS.rglob("*.json"):
        words = re.findall(r"/(?:tmp|home|root|work)/", path.read_text())
        assert not words, path
