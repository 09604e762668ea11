"""What was measured, beside the paper: as JSON, as Markdown, as the report page."""

import dataclasses
import statistics
from pathlib import Path
from typing import Any

from stackformer.commands.tables.cells import Cell, Table, fits_protocol, read
from stackformer.commands.tables.stacks import cost_rows
from stackformer.training.records import write_json, write_text
from stackformer.viz.report import (
    format_number,
    format_strings,
    heading,
    report_page,
)

LANGUAGE_NOTE = (
    "The paper's models have 124 million parameters and the tokens of GPT-2 and "
    "RoBERTa. Runs of another size (see each command) or with other tokens stand "
    "beside its numbers but cannot be compared with them."
)
NOTES = (
    "Measured and paper's numbers are means ± sample standard deviations over seeds; "
    "the paper's are over five seeds.",
    "Accuracy counts single output symbols, over all lengths from one above the "
    "longest training string to the longest test string; dropout is off.",
    "Hard: the same model with the most probable action of its stack in place of the "
    "mixture; what it then does is what a plain stack does.",
    "Answer symbols have token ids of their own, and the first answer position is the "
    "separator also with MLM, unlike in the authors' code (runs before version 0.2, "
    "which have no hard number, shared ids and had a mask there).",
    "Above the paper: our input begins with a BOS token, the bottom of the stack, so "
    "that no input symbol has to serve as the bottom; and dropout is off when we "
    "measure, while the benchmark's code that the paper builds on leaves it on.",
    "Below the paper: look at the steps first. A run with a fraction of the paper's "
    "steps is not a reproduction of that number, only a measurement of that run.",
)


def measure(cell: Cell) -> dict[str, Any] | None:
    """The numbers of a cell's results.json, or None where there is none to read.

    Accuracies are in percent, over the lengths that the run's configuration asked for;
    `longer` is the accuracy beyond them, where the run was measured further.
    """
    results = read(cell.folder / "results.json")
    if results is None or not cell.is_of(results) or not results.get("runs"):
        return None
    config = read(cell.folder / "config.json") or {}
    if not fits_protocol(results, config):
        return None
    measured = {
        "steps": results["steps"],
        "preset": results.get("preset") or results.get("size"),
        "seeds": config.get("seeds") or [r.get("seed", 0) for r in results["runs"]],
        "seconds": results.get("seconds") or results["runs"][0].get("seconds"),
    }
    if cell.module == "lm":
        scores = [run["perplexity_test"] for run in results["runs"]]
        return {**measured, **_summary(scores)}
    first = results["train_length"] + 1
    last = min(results["test_length"], config.get("test_length", 10**9))
    measured |= {"lengths": [first, last], "test_strings": results.get("test_strings")}
    measured |= _summary(_accuracies(results, first, last))
    if all("per_length_hard" in run for run in results["runs"]):
        scores = _accuracies(results, first, last, "per_length_hard")
        measured["hard"] = _summary(scores)
    further = (cell.longer and read(cell.longer)) or results
    if further["test_length"] > last:
        measured["longer"] = {
            "lengths": [last + 1, further["test_length"]],
            "test_strings": further.get("test_strings"),
            **_summary(_accuracies(further, last + 1, further["test_length"])),
        }
    curves = [
        {**more["per_length"], **run["per_length"]}
        for run, more in zip(results["runs"], further["runs"], strict=True)
    ]
    measured["curve"] = {
        "train_length": results["train_length"],
        "chance": results.get("chance"),
        "seeds": [
            [round(curve[str(n)], 5) for n in range(1, len(curve) + 1)]
            for curve in curves
        ],
    }
    return measured


def score(cell: Cell) -> str:
    """A finished cell in a few words: its number beside the paper's."""
    measured = measure(cell)
    digits = 2 if cell.module == "lm" else 1
    text = format_number(measured, digits) if measured else "no result"
    if cell.paper:
        text += f" (paper {cell.paper.mean:.{digits}f} ± {cell.paper.std:.{digits}f})"
    return text


def _accuracies(
    results: dict[str, Any], first: int, last: int, name: str = "per_length"
) -> list[float]:
    return [
        100 * statistics.fmean(run[name][str(n)] for n in range(first, last + 1))
        for run in results["runs"]
    ]


def _summary(scores: list[float]) -> dict[str, Any]:
    std = statistics.stdev(scores) if len(scores) > 1 else None
    return {"mean": statistics.fmean(scores), "std": std, "scores": scores}


def find_results(table: Table, root: Path) -> Table:
    """The same table with each cell pointed to the best run found under `root`.

    The best is one with answer symbols of their own (version 0.2), then the one with
    the most steps, then the most seeds, then the most test strings, of those that were
    measured as their own configuration asks; longer lengths may come from another
    evaluation with the same seeds and steps. A run that drew its training lengths
    otherwise than the cell does not count.
    """
    found = []
    for path in sorted(root.rglob("results*.json")):
        results = read(path)
        if results and results.get("runs"):
            config = read(path.parent / "config.json") or {}
            whole = path.name == "results.json" and fits_protocol(results, config)
            found.append((results, path, config.get("curriculum", "uniform"), whole))

    def locate(cell: Cell) -> Cell:
        curriculum = cell.expected.get("curriculum", "uniform")
        mine = [
            (results, path, whole)
            for results, path, drawn, whole in found
            if cell.is_of(results) and drawn == curriculum
        ]
        fitting = [(results, path) for results, path, whole in mine if whole]
        if not fitting:
            return cell
        best, place = max(fitting, key=lambda pair: _rank(pair[0]))
        same = [(r, p) for r, p, _ in mine if _rank(r)[:3] == _rank(best)[:3]]
        far, longer = max(same, key=lambda pair: pair[0].get("test_length", 0))
        is_longer = far.get("test_length", 0) > best.get("test_length", 0)
        return dataclasses.replace(
            cell, folder=place.parent, longer=longer if is_longer else None
        )

    return dataclasses.replace(table, cells=tuple(map(locate, table.cells)))


def _rank(results: dict[str, Any]) -> tuple[bool, int, int, int]:
    strings = results.get("test_strings") or 0
    return "phases" in results, results["steps"], len(results["runs"]), strings


def collect(table: Table, states: dict[str, tuple[str, str]], command: str) -> dict:
    """The content of tableN.json.

    Args:
      table: its cells.
      states: cell name -> (state, reason) of cells that were just run; others are
        "finished" or "not run".
      command: the command that made the table.
    """
    cells, machines = [], []
    for cell in table.cells:
        measured = measure(cell)
        state, reason = states.get(
            cell.name, ("finished" if measured else "not run", "")
        )
        config = read(cell.folder / "config.json") or {}
        environment = config.get("environment")
        if measured and environment and environment not in machines:
            machines.append(environment)
        paper = cell.paper and {
            "mean": cell.paper.mean,
            "std": cell.paper.std,
            "steps": cell.paper_steps,
        }
        cells.append(
            {
                "row": cell.row,
                "column": cell.column,
                "name": cell.name,
                "state": state,
                "reason": reason,
                "command": config.get("command") or cell.command,
                "paper": paper,
                "measured": measured,
            }
        )
    return {
        "table": table.number,
        "title": table.title,
        "unit": table.unit,
        "rows": list(table.rows),
        "columns": list(table.columns),
        "command": command,
        "notes": _notes(table),
        "costs": cost_rows(table.costs and read(table.costs), list(table.columns)),
        "machines": machines,
        "cells": cells,
    }


def _notes(table: Table) -> list[str]:
    if table.notes is not None:
        return list(table.notes)
    if table.number == 3:
        return [NOTES[0], LANGUAGE_NOTE]
    # The runner gives all cells of a table the same.
    curriculum = table.cells[0].expected["curriculum"]
    if curriculum == "uniform":
        return list(NOTES)
    return [
        *NOTES,
        f"Not as in the paper: training lengths follow the curriculum {curriculum} "
        "(--curriculum of experiments.dcf); the paper draws them uniformly.",
    ]


def write_outputs(content: dict[str, Any], out: Path) -> list[Path]:
    """Writes tableN.json, tableN.md and report.html (of all tables in the folder)."""
    out.mkdir(parents=True, exist_ok=True)
    number = content["table"]
    stem = f"table{number}" if isinstance(number, int) else number
    write_json(out / f"{stem}.json", content)
    write_text(out / f"{stem}.md", to_markdown(content))
    tables = [content]
    for path in sorted(out.glob("table[123].json")):
        other = read(path)
        if other and path.stem != stem:
            tables.append(other)
    tables.sort(key=lambda table: str(table["table"]))
    write_text(out / "report.html", report_page(tables))
    return [out / f"{stem}.md", out / f"{stem}.json", out / "report.html"]


def to_markdown(content: dict[str, Any]) -> str:
    """The table, then the runs and the commands that each number links to."""
    cells = {(cell["row"], cell["column"]): cell for cell in content["cells"]}
    digits = 2 if content["table"] == 3 else 1
    lines = [f"# {heading(content)}", ""]
    lines += [f"{content['unit'].capitalize()}. **Measured**, then the paper's.", ""]
    lines.append("| | " + " | ".join(content["columns"]) + " |")
    lines.append("|---|" + "---|" * len(content["columns"]))
    for row in content["rows"]:
        texts = [
            _markdown_cell(cells.get((row, c)), digits) for c in content["columns"]
        ]
        lines.append(f"| {row} | " + " | ".join(texts) + " |")
    lines += [f"| {' | '.join(row)} |" for row in content.get("costs", [])]
    lines += ["", *(f"- {note}" for note in content["notes"]), ""]
    broken = [cell for cell in content["cells"] if cell["state"] == "broken"]
    if broken:
        lines += ["## Broken", ""]
        for cell in broken:
            reason = cell["reason"].replace("`", "'").replace("\n", " ")
            lines.append(f"- {cell['name']}: `{reason}`")
        lines.append("")
    lines += ["## Runs", ""]
    for cell in content["cells"]:
        if cell["measured"]:
            lines += [f"### {cell['name']}", "", _sentence(cell, digits), ""]
            lines += ["```", cell["command"], "```", ""]
    return "\n".join(lines)


def _markdown_cell(cell: dict[str, Any] | None, digits: int) -> str:
    if cell is None:
        return ""
    paper = format_number(cell["paper"], digits) if cell["paper"] else "none"
    if not cell["measured"]:
        return f"{cell['state']}<br>{paper}"
    number = format_number(cell["measured"], digits)
    hard = cell["measured"].get("hard")
    below = [f"hard {format_number(hard, digits)}"] if hard else []
    link = f"[**{number}**](#{cell['name'].lower()})"
    return "<br>".join([link, *below, paper])


def _sentence(cell: dict[str, Any], digits: int) -> str:
    measured, paper = cell["measured"], cell["paper"]
    seeds = measured["seeds"]
    parts = [
        f"**{format_number(measured, digits)}** after {measured['steps']:,} steps, "
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    ]
    if "lengths" in measured:
        parts[0] += _tested(measured)
    if "hard" in measured:
        parts.append(f"{format_number(measured['hard'], digits)} with hard actions")
    if "longer" in measured:
        longer = measured["longer"]
        parts.append(format_number(longer, digits) + _tested(longer))
    if paper:
        steps = f" after {paper['steps']:,} steps" if paper["steps"] else ""
        parts.append(f"the paper: {format_number(paper, digits)}{steps}")
    if measured["seconds"]:
        parts.append(f"{measured['seconds'] / 60:.1f} minutes of training")
    return "; ".join(parts) + "."


def _tested(part: dict[str, Any]) -> str:
    lengths = "lengths {}..{}".format(*part["lengths"])
    return ", " + ", ".join(filter(None, [lengths, format_strings(part)]))
