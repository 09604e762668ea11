"""The report page: measured tables beside the paper's, as one self-contained page."""

import html
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from stackformer.viz.report_chart import accuracy_chart

_escape = html.escape


def format_number(entry: dict[str, Any], digits: int = 1) -> str:
    """Mean ± standard deviation, or the mean alone where there is one seed.

    >>> format_number({"mean": 93.12, "std": 4.4})
    '93.1 ± 4.4'
    >>> format_number({"mean": 93.12, "std": None})
    '93.1'
    """
    text = f"{entry['mean']:.{digits}f}"
    if entry.get("std") is None:
        return text
    return f"{text} ± {entry['std']:.{digits}f}"


def format_strings(entry: dict[str, Any]) -> str:
    """How many strings of each length were tested; empty where it is not known.

    >>> format_strings({"test_strings": 512}), format_strings({"test_strings": 1})
    ('512 strings a length', '1 string a length')
    """
    count = entry.get("test_strings")
    return f"{count:,} string{'s' if count > 1 else ''} a length" if count else ""


def heading(table: dict[str, Any]) -> str:
    """The number and the title of a table of the paper, or the title of another."""
    number, title = table["table"], table["title"]
    return f"Table {number}: {title}" if isinstance(number, int) else title


def report_page(tables: Sequence[dict[str, Any]], *, title: str | None = None) -> str:
    """One HTML page for tables as `experiments.tables` writes them to tableN.json.

    For each table: the numbers beside the paper's, a curve of accuracy over length for
    each measured cell, what broke, and the commands. The page needs no network and no
    script to be read.

    Args:
      tables: contents of tableN.json.
      title: of the page.

    Example:
      >>> cell = {"row": "RS", "column": "RNN", "name": "rs-rnn", "state": "not run",
      ...         "reason": "", "command": "python -m experiments.dcf --task=RS",
      ...         "paper": {"mean": 81.0, "std": 0.8, "steps": 100000},
      ...         "measured": None}
      >>> table = {"table": 1, "title": "RNNs", "unit": "accuracy", "rows": ["RS"],
      ...          "columns": ["RNN"], "command": "", "notes": [], "machines": [],
      ...          "cells": [cell]}
      >>> "81.0 ± 0.8" in report_page([table])
      True
    """
    title = title or "Stack attention: the paper's tables, measured"
    # A run that stands in two tables is shown once.
    places: dict[tuple[str, str], str] = {}
    for table in tables:
        for cell in table["cells"]:
            if cell["measured"]:
                places.setdefault(_run_of(cell), _anchor(table, cell))
    notes = dict.fromkeys(note for table in tables for note in table["notes"])
    parts = {
        "title": _escape(title),
        "style": _read("page.css"),
        "script": _read("page.js"),
        "summary": _summary(tables),
        "contents": _contents(tables),
        "tables": "\n".join(_table(table, places) for table in tables),
        "notes": "".join(f"<li>{_escape(note)}</li>" for note in notes),
        "machines": _machines(tables),
    }
    # One pass: text put in for one placeholder is never searched for another.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read("page.html"))


def _read(name: str) -> str:
    folder = resources.files("stackformer.viz") / "report_page"
    return (folder / name).read_text(encoding="utf-8")


def _summary(tables: Sequence[dict[str, Any]]) -> str:
    cells = [cell for table in tables for cell in table["cells"]]
    measured = sum(cell["measured"] is not None for cell in cells)
    broken = sum(cell["state"] == "broken" for cell in cells)
    text = f"{measured} of {len(cells)} cells measured"
    return _escape(text + (f", {broken} broken" if broken else ""))


def _contents(tables: Sequence[dict[str, Any]]) -> str:
    items = [(f"table{t['table']}", heading(t)) for t in tables]
    items += [("notes", "How to read this"), ("machines", "Measured on")]
    return "".join(f'<li><a href="#{a}">{_escape(text)}</a></li>' for a, text in items)


def _run_of(cell: dict[str, Any]) -> tuple[str, str]:
    return cell["name"], cell["command"]


def _digits(table: dict[str, Any]) -> int:
    return 2 if table["table"] == 3 else 1


def _anchor(table: dict[str, Any], cell: dict[str, Any]) -> str:
    return _escape(f"table{table['table']}-{cell['name']}", quote=True)


def _table(table: dict[str, Any], places: dict[tuple[str, str], str]) -> str:
    cells = {(cell["row"], cell["column"]): cell for cell in table["cells"]}
    head = "".join(f'<th scope="col">{_escape(c)}</th>' for c in table["columns"])
    body = []
    for row in table["rows"]:
        entries = "".join(
            _table_cell(table, column, cells.get((row, column)), places)
            for column in table["columns"]
        )
        body.append(f'<tr><th scope="row">{_escape(row)}</th>{entries}</tr>')
    for label, *texts in table.get("costs", []):
        entries = "".join(
            f'<td data-label="{_escape(column, quote=True)}">{_escape(text)}</td>'
            for column, text in zip(table["columns"], texts, strict=True)
        )
        body.append(f'<tr><th scope="row">{_escape(label)}</th>{entries}</tr>')
    shown = [
        cell
        for cell in table["cells"]
        if cell["measured"] and places[_run_of(cell)] == _anchor(table, cell)
    ]
    cards = "\n".join(_card(table, cell) for cell in shown)
    number = table["table"]
    return f"""<section aria-labelledby="table{number}">
<h2 id="table{number}">{_escape(heading(table))}</h2>
<p class="unit">{_escape(table["unit"].capitalize())}. Large: measured. Below it: the
paper's number. Each number leads to its run.</p>
<div class="wide"><table><thead><tr><td></td>{head}</tr></thead>
<tbody>{"".join(body)}</tbody></table></div>
{_broken(table)}
<div class="cards">{cards}</div>
{_command(table["command"], "This table was made by")}
</section>"""


def _table_cell(
    table: dict[str, Any],
    column: str,
    cell: dict[str, Any] | None,
    places: dict[tuple[str, str], str],
) -> str:
    label = _escape(column, quote=True)
    if cell is None:
        return f'<td data-label="{label}" class="empty"></td>'
    digits = _digits(table)
    paper = cell["paper"]
    below = f"paper {format_number(paper, digits)}" if paper else "not in the paper"
    below = f'<span class="paper">{_escape(below)}</span>'
    measured = cell["measured"]
    if measured is None:
        state = _escape(cell["state"])
        mark = "broken" if cell["state"] == "broken" else "none"
        return (
            f'<td data-label="{label}"><span class="state {mark}">{state}</span>'
            f"{below}</td>"
        )
    number = _escape(format_number(measured, digits))
    if measured.get("hard"):
        hard = _escape(f"hard {format_number(measured['hard'], digits)}")
        below = f'<span class="hard">{hard}</span>{below}'
    return (
        f'<td data-label="{label}"><a class="number" href="#{places[_run_of(cell)]}">'
        f"{number}</a>{_difference(table, cell)}{below}"
        f'<span class="steps">{_escape(_effort(measured))}</span></td>'
    )


def _effort(measured: dict[str, Any]) -> str:
    seeds = len(measured["seeds"])
    return f"{measured['steps']:,} steps, {seeds} seed{'s' if seeds > 1 else ''}"


def _difference(table: dict[str, Any], cell: dict[str, Any]) -> str:
    """A small mark: how far above or below the paper."""
    if not cell["paper"]:
        return ""
    digits = _digits(table)
    amount = round(cell["measured"]["mean"] - cell["paper"]["mean"], digits)
    if amount == 0:
        return '<span class="difference same" title="the paper\'s number">=</span>'
    word, arrow = ("above", "▲") if amount > 0 else ("below", "▼")
    better = (amount > 0) != (table["table"] == 3)
    mark, alike = ("better" if better else "worse"), _alike(cell)
    aside = "" if alike else ", which was trained or tested otherwise"
    return (
        f'<span class="difference {mark if alike else "unlike"}" '
        f'title="{abs(amount):.{digits}f} {word} the paper{aside}">{arrow}'
        f'<span class="hidden">{word} the paper by </span>'
        f"{abs(amount):.{digits}f}</span>"
    )


def _alike(cell: dict[str, Any]) -> bool:
    """Whether a run had the paper's training: only then is a difference a judgement."""
    steps, measured = cell["paper"].get("steps"), cell["measured"]
    if steps is None:  # language models: the sizes say it
        return measured.get("preset") in ("base", "pretrained")
    return measured["steps"] >= steps


def _card(table: dict[str, Any], cell: dict[str, Any]) -> str:
    measured, paper, digits = cell["measured"], cell["paper"], _digits(table)
    facts = [("Measured", format_number(measured, digits))]
    if len(measured["scores"]) > 1:
        scores = ", ".join(f"{score:.{digits}f}" for score in measured["scores"])
        facts.append(("By seed", scores))
    if paper:
        steps = f", {paper['steps']:,} steps" if paper.get("steps") else ""
        facts.append(("Paper", format_number(paper, digits) + steps))
    longer = measured.get("longer")
    if longer:
        name = "Lengths {}–{}".format(*longer["lengths"])
        words = [format_number(longer, digits), format_strings(longer)]
        facts.append((name, ", ".join(filter(None, words))))
    seeds = ", ".join(map(str, measured["seeds"]))
    word = "seeds" if len(measured["seeds"]) > 1 else "seed"
    facts.append(("Run", f"{measured['steps']:,} steps, {word} {seeds}"))
    if format_strings(measured):
        facts.append(("Test", format_strings(measured)))
    if measured.get("seconds"):
        facts.append(("Training", f"{measured['seconds'] / 60:.1f} minutes"))
    rows = "".join(
        f"<dt>{_escape(name)}</dt><dd>{_escape(value)}</dd>" for name, value in facts
    )
    title = f"{cell['row']} · {cell['column']}"
    chart = ""
    if "curve" in measured:
        chart = accuracy_chart(
            measured["curve"],
            title=title,
            paper=paper and paper["mean"] / 100,
            scored=measured["lengths"],
        )
    number = _escape(format_number(measured, digits))
    return f"""<details class="card" id="{_anchor(table, cell)}" open>
<summary><h3>{_escape(title)} <span class="folded">{number}</span></h3></summary>
{chart}
<dl>{rows}</dl>
{_command(cell["command"], "Command")}
</details>"""


def _command(command: str, label: str) -> str:
    if not command:
        return ""
    return (
        f"<details><summary>{_escape(label)}</summary>"
        f"<pre><code>{_escape(command)}</code></pre></details>"
    )


def _broken(table: dict[str, Any]) -> str:
    broken = [cell for cell in table["cells"] if cell["state"] == "broken"]
    if not broken:
        return ""
    items = "".join(
        f"<li><b>{_escape(cell['name'])}</b><pre>{_escape(cell['reason'])}</pre></li>"
        for cell in broken
    )
    return f'<div class="card broken-list"><h3>Broken</h3><ul>{items}</ul></div>'


def _machines(tables: Sequence[dict[str, Any]]) -> str:
    items = dict.fromkeys(
        _machine(machine) for table in tables for machine in table["machines"]
    )
    return "".join(f"<li>{_escape(item)}</li>" for item in items)


def _machine(machine: dict[str, Any]) -> str:
    packages = machine.get("packages", {})
    names = ("stackformer", "jax", "flax")
    versions = [f"{name} {packages[name]}" for name in names if packages.get(name)]
    facts = [
        f"{machine.get('num_devices', 1)} × {machine.get('device', 'unknown device')}",
        f"{machine.get('cpu_count', '?')} CPU cores",
        str(machine.get("platform", "")),
        *versions,
    ]
    return ", ".join(filter(None, facts))
