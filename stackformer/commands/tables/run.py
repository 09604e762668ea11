"""Runs the cells of a table: a few at a time, until done or until the time is over."""

import dataclasses
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Protocol

from stackformer.commands.tables.cells import Cell, missing_folder
from stackformer.commands.tables.launch import Handle, reason
from stackformer.commands.tables.live import LiveTable
from stackformer.commands.tables.results import score

WAITING, RUNNING, FINISHED = "waiting", "running", "finished"
SKIPPED, BROKEN, STOPPED = "skipped", "broken", "stopped"


class Launcher(Protocol):
    """Starts cells; see `stackformer.commands.tables.launch`."""

    def start(self, cell: Cell) -> Handle: ...


@dataclasses.dataclass
class Entry:
    """A cell and how far it is."""

    cell: Cell
    state: str = WAITING
    reason: str = ""
    score: str = ""
    handle: Handle | None = None
    begin: float = 0.0
    seconds: float = 0.0


class Runner:
    """Runs cells and keeps their states.

    Args:
      cells: what to run; finished ones are skipped.
      launcher: how to start one.
      jobs: how many at a time.
      budget_seconds: when it is over, running cells are told to save and end.
      on_change: called after every cell that ends.
      live: shows the progress.
      grace_seconds: how long a cell may take to save before it is killed; it then
        goes on from an older checkpoint.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        launcher: Launcher,
        *,
        jobs: int = 1,
        budget_seconds: float | None = None,
        on_change: Callable[[], object] = lambda: None,
        live: LiveTable | None = None,
        grace_seconds: float = 180.0,
    ):
        self.entries = [Entry(cell) for cell in cells]
        self.launcher = launcher
        self.jobs = jobs
        self.budget_seconds = budget_seconds
        self.on_change = on_change
        self.live = live or LiveTable(sys.stderr)
        self.grace_seconds = grace_seconds
        self.stopped_by = ""
        self._signals = 0
        for entry in self.entries:
            missing = missing_folder(entry.cell)
            if missing:
                entry.state, entry.reason = SKIPPED, missing
            elif entry.cell.finished():
                entry.state, entry.score = FINISHED, score(entry.cell)

    def states(self) -> dict[str, tuple[str, str]]:
        """Cell name -> (state, reason)."""
        return {entry.cell.name: (entry.state, entry.reason) for entry in self.entries}

    def run(self) -> None:
        """Runs until all cells have ended, the budget is spent, or Ctrl-C."""
        begin = time.monotonic()
        numbers = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.signal(number, self._signal) for number in numbers}
        try:
            while self._active():
                spent = time.monotonic() - begin
                if self.budget_seconds is not None and spent >= self.budget_seconds:
                    self.stopped_by = "the time budget is spent"
                elif self._signals:
                    self.stopped_by = "interrupted"
                if self.stopped_by:
                    self._stop()
                    break
                self._start()
                self._poll()
                self.live.update(self.entries)
                time.sleep(0.2)
        finally:
            for _, handle in self._running():
                handle.kill()
            for number, handler in previous.items():
                signal.signal(number, handler)
            self.live.close(self.entries)

    def _signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            self.grace_seconds = 0.0

    def _active(self) -> bool:
        return any(entry.state in (WAITING, RUNNING) for entry in self.entries)

    def _running(self) -> list[tuple[Entry, Handle]]:
        return [
            (entry, entry.handle)
            for entry in self.entries
            if entry.state == RUNNING and entry.handle is not None
        ]

    def _start(self) -> None:
        for entry in self.entries:
            if entry.state == WAITING and len(self._running()) < self.jobs:
                entry.handle = self.launcher.start(entry.cell)
                entry.state, entry.begin = RUNNING, time.monotonic()

    def _poll(self, *, stopping: bool = False) -> None:
        for entry, handle in self._running():
            code = handle.poll()
            entry.seconds = time.monotonic() - entry.begin
            if code is None:
                continue
            if code == 0 and entry.cell.finished():
                entry.state, entry.score = FINISHED, score(entry.cell)
            elif stopping or code == 0:
                # Exit code 0 without a result: somebody else's signal; it has saved.
                entry.state = STOPPED
            else:
                entry.state, entry.reason = BROKEN, reason(entry.cell.folder)
            self.on_change()

    def _stop(self) -> None:
        for _, handle in self._running():
            handle.stop()
        begin = time.monotonic()
        while self._running() and time.monotonic() - begin < self.grace_seconds:
            self._poll(stopping=True)
            self.live.update(self.entries, note="saving")
            time.sleep(0.1)
        for entry, handle in self._running():
            handle.kill()
            entry.state = STOPPED
