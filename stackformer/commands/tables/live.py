"""The live table in the terminal; plain lines where there is no terminal."""

import contextlib
import json
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from stackformer.training.progress import can_redraw, clock
from stackformer.training.records import METRICS, TIMING

if TYPE_CHECKING:
    from stackformer.commands.tables.run import Entry

_ORDER = ("running", "broken", "stopped", "finished", "waiting", "skipped")
_MARKS = {
    "running": "▶",
    "finished": "✓",
    "broken": "✗",
    "waiting": "·",
    "stopped": "■",
    "skipped": "-",
}


def last_records(path: Path) -> list[dict[str, Any]]:
    """The last whole lines of a file of JSON lines; none where there is no file."""
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 8192))
            lines = file.read().splitlines()
    except OSError:
        return []
    records = []
    for line in lines:
        with contextlib.suppress(ValueError):  # cut off, or still being written
            records.append(json.loads(line))
    return [record for record in records if isinstance(record, dict)]


def progress(entry: "Entry") -> str:
    """How far a cell is, in a few words."""
    if entry.state == "finished":
        return entry.score
    if entry.state == "broken":
        return entry.reason.splitlines()[0]
    if entry.state in ("waiting", "skipped"):
        return entry.reason
    records = last_records(entry.cell.folder / METRICS)
    record = records[-1] if records else {}
    total = entry.cell.expected.get("steps")
    step = record.get("step")
    if step is None:
        text = "compiling" if entry.state == "running" else ""
    elif total and step >= total:
        text = "measuring all lengths"
    else:
        of = f"/{total:,} {100 * step / total:3.0f}%" if total else ""
        text = f"step {step:,}{of}"
        if entry.state == "running" and total:
            text += _estimate(entry.cell.folder, total - step)
        values = record.get("accuracy")
        if values:
            text += f", accuracy {sum(values) / len(values):.3f}"
    if entry.seconds:
        text += f", {clock(entry.seconds)}"
    return text


def _estimate(folder: Path, steps: int) -> str:
    """How long the steps that are left will take; what comes after is not in it."""
    speeds = [
        record["steps_per_second"]
        for record in last_records(folder / TIMING)
        if record.get("steps_per_second")
    ]
    # The median: the first block is mostly compilation.
    return f", {clock(steps / statistics.median(speeds))} to train" if speeds else ""


class LiveTable:
    """Redraws one line a cell; where there is no terminal, one line a change of state.

    Args:
      stream: where to write.
      every: seconds between two drawings.
    """

    def __init__(self, stream: TextIO, every: float = 0.5):
        self._stream = stream
        self._every = every
        self._tty = can_redraw(stream)
        self._lines = 0
        self._last = 0.0
        self._said: dict[str, str] = {}

    def update(self, entries: Sequence["Entry"], note: str = "") -> None:
        """Shows the states of now."""
        if not self._tty:
            self._say(entries)
        elif time.monotonic() - self._last >= self._every:
            self._draw(entries, note)

    def close(self, entries: Sequence["Entry"]) -> None:
        """Shows the last states; what is written after this stands below."""
        if self._tty:
            self._draw(entries, "")
        else:
            self._say(entries)

    def _say(self, entries: Sequence["Entry"]) -> None:
        for entry in entries:
            name = entry.cell.name
            if self._said.get(name, "waiting") != entry.state:
                self._said[name] = entry.state
                detail = progress(entry) if entry.state != "running" else ""
                print(f"{entry.state:9} {name}  {detail}".rstrip(), file=self._stream)
                self._stream.flush()

    def _draw(self, entries: Sequence["Entry"], note: str) -> None:
        self._last = time.monotonic()
        size = shutil.get_terminal_size()
        counts = Counter(entry.state for entry in entries)
        head = ", ".join(
            f"{counts[state]} {state}" for state in _ORDER if counts[state]
        )
        shown = sorted(entries, key=lambda entry: _ORDER.index(entry.state))
        room = max(1, size.lines - 4)
        titles = [f"{entry.cell.row} · {entry.cell.column}" for entry in shown]
        width = max(map(len, titles))
        lines = [head + (f" ({note})" if note else "")]
        lines += [
            f"{_MARKS[entry.state]} {title:{width}}  {progress(entry)}"
            for entry, title in zip(shown[:room], titles, strict=False)
        ]
        if len(shown) > room:
            lines.append(f"  and {len(shown) - room} more")
        # Up to the first line of the last drawing, then every line over the old one.
        up = f"\x1b[{self._lines}F" if self._lines else ""
        body = "".join(f"\x1b[2K{line[: size.columns - 1]}\n" for line in lines)
        self._stream.write(f"{up}{body}\x1b[J")
        self._stream.flush()
        self._lines = len(lines)
