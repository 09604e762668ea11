"""Progress on the screen: what is done, how far it is, and how long it will take.

A thread draws, so that the line moves while XLA compiles. Where the terminal cannot
redraw a line (no terminal, TERM=dumb, no columns) a plain line is written instead,
every few seconds.
"""

import collections
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, TextIO

_SPINNER = "|/-\\"
_LEAST_COLUMNS = 20


class Estimate:
    """Seconds that are left, of work in parts of known cost.

    Parts of a kind cost the same; the first of a kind is compiled too, which is known
    only in hindsight.
    """

    def __init__(self, *, recent: int = 20):
        self._first: dict[Any, tuple[float, float]] = {}
        self._samples: collections.deque = collections.deque(maxlen=recent)

    def add(self, kind: Any, cost: float, seconds: float) -> None:
        """A part of some cost was done in so many seconds."""
        if kind in self._first:
            self._samples.append((cost, seconds))
        else:
            self._first[kind] = (cost, seconds)

    def left(self, remaining: Mapping[Any, float]) -> float | None:
        """Seconds for what remains, by kind; None where nothing is known yet.

        >>> estimate = Estimate()
        >>> for seconds in (7.0, 2.0, 2.0):  # five of the first went into compiling
        ...     estimate.add("short", 1.0, seconds)
        >>> estimate.left({"short": 3.0, "long": 4.0})
        19.0
        """
        if not self._samples:
            return None
        rate = sum(s for _, s in self._samples) / sum(c for c, _ in self._samples)
        compiling = [max(0.0, s - c * rate) for c, s in self._first.values()]
        new = sum(kind not in self._first for kind in remaining)
        return sum(remaining.values()) * rate + new * sum(compiling) / len(compiling)


class Progress:
    """A line that says what is going on; use it as a context.

    Args:
      enabled: False shows nothing.
      stream: where to write; stderr by default.
      every: seconds between two plain lines.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        stream: TextIO | None = None,
        every: float = 5.0,
    ):
        self._stream = stream or sys.stderr
        self._enabled = enabled
        self._every = every
        self._live = enabled and can_redraw(self._stream)
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._label, self._note, self._unit = "", "", ""
        self._done, self._total = 0, 0
        self._left: float | None = None
        self._begin = self._estimated = time.monotonic()
        self._turn, self._shown = 0, 0

    def __enter__(self) -> "Progress":
        if self._enabled:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()
            with self._lock:
                self._clear()
                if self._done:  # an interrupted run says how far it came, too
                    self._write(self.text(self._columns()) + "\n")

    def say(self, text: str) -> None:
        """Writes a line that stays."""
        if self._enabled:
            with self._lock:
                self._clear()
                self._write(text + "\n")

    def wait_for(self, what: str) -> None:
        """From now on something of unknown length is done, such as compiling."""
        with self._lock:
            self._label, self._note, self._left = what, "", None
            self._begin = time.monotonic()
        self._draw()

    def count(
        self,
        label: str,
        done: int,
        total: int,
        *,
        unit: str = "",
        note: str = "",
        left: float | None = None,
    ) -> None:
        """From now on `done` of `total` are done."""
        with self._lock:
            new = label != self._label
            self._label, self._done, self._total = label, done, total
            self._unit, self._note, self._left = unit, note, left
            self._estimated = time.monotonic()
            if new:
                self._begin = time.monotonic()

    def text(self, columns: int) -> str:
        """The line as it stands, at most so many columns wide."""
        now = time.monotonic()
        if not self._total or self._label.startswith("compiling"):
            line = f"{self._label}  {clock(now - self._begin)}"
            if self._total and self._done:
                line += f"  ({self._done:,} of {self._total:,}{self._unit} done)"
            return line[:columns]
        share = self._done / self._total
        head = f"{self._label} {self._done:,}/{self._total:,}{self._unit} {share:4.0%} "
        tail = f" {clock(now - self._begin)}"
        if self._left is not None and share < 1:
            left = max(0.0, self._left - (now - self._estimated))
            tail = f" {clock(left)} left"
        tail += f", {self._note}" if self._note else ""
        room = min(20, columns - len(head) - len(tail) - 2)
        if room < 4:
            return (head + tail.lstrip())[:columns]
        filled = round(room * share)
        return f"{head}[{'#' * filled}{' ' * (room - filled)}]{tail}"[:columns]

    def _run(self) -> None:
        # The first line comes soon, the others at their pace.
        pause = 0.1
        while not self._end.wait(pause):
            self._draw()
            pause = 0.2 if self._live else self._every

    def _draw(self) -> None:
        if not self._enabled or not self._label:
            return
        with self._lock:
            if not self._live:
                if threading.current_thread() is self._thread:
                    self._write(self.text(self._columns()) + "\n")
                return
            columns = self._columns()
            self._turn += 1
            line = f"{_SPINNER[self._turn % len(_SPINNER)]} {self.text(columns - 2)}"
            self._write("\r" + line.ljust(self._shown))
            self._shown = len(line)

    def _columns(self) -> int:
        return min(80, shutil.get_terminal_size().columns) - 1 if self._live else 99

    def _clear(self) -> None:
        if self._live and self._shown:
            self._write("\r" + " " * self._shown + "\r")
            self._shown = 0

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # nobody reads any more
            self._enabled = False


def can_redraw(stream: TextIO) -> bool:
    """Whether a stream is a terminal on which a line can be written over."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        columns = shutil.get_terminal_size().columns
    return columns >= _LEAST_COLUMNS


def clock(seconds: float) -> str:
    """Minutes and seconds, after the hours where there are any.

    >>> clock(75), clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{seconds:02d}"
    return f"{minutes}:{seconds:02d}"
