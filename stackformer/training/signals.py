"""SIGTERM and Ctrl-C as a wish that the loop looks at between two dispatches."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

# What `signal.signal` takes and returns.
Handler = Callable[[int, FrameType | None], Any] | int | None
# How long a second Ctrl-C waits for Python to hear of it: XLA compiles for minutes.
_PATIENCE = 1.0


class StopRequest:
    """Within the context the first SIGTERM or SIGINT is remembered.

    A second Ctrl-C is an ordinary KeyboardInterrupt, for the impatient. Where the main
    thread is inside a compilation and cannot be interrupted, the process ends at once
    instead, with exit code 130: finished checkpoints and records are on the disk.
    """

    def __init__(self) -> None:
        self._requested = False
        self._interrupted = False
        self._previous: dict[int, Handler] = {}
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._previous_fd = -1

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._remember)
            reading, writing = self._sockets = socket.socketpair()
            writing.setblocking(False)
            self._previous_fd = signal.set_wakeup_fd(
                writing.fileno(), warn_on_full_buffer=False
            )
            threading.Thread(target=self._watch, args=(reading,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        if self._sockets is not None:
            signal.set_wakeup_fd(self._previous_fd)
            self._sockets[1].close()  # the watcher reads the end and leaves
            self._sockets = None

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self._requested and number == signal.SIGINT:
            self._interrupted = True
            raise KeyboardInterrupt
        self._requested = True

    def _watch(self, reading: socket.socket) -> None:
        """Hears of signals also while the main thread is inside XLA."""
        seen = 0
        with reading:
            while numbers := reading.recv(16):
                wanted = (signal.SIGTERM, signal.SIGINT)
                for number in (n for n in numbers if n in wanted):
                    seen += 1
                    if seen == 1:
                        _say("stopping at the next safe point; Ctrl-C again stops now")
                    elif number == signal.SIGINT:
                        self._end_soon()

    def _end_soon(self) -> None:
        begin = time.monotonic()
        while time.monotonic() - begin < _PATIENCE:
            if self._interrupted or self._sockets is None:
                return
            time.sleep(0.05)
        _say("interrupted; what was saved before stays")
        os._exit(130)

    def requested(self) -> bool:
        """Whether any process was asked to stop; the same answer in all of them."""
        if jax.process_count() == 1:
            return self._requested
        flags = multihost_utils.process_allgather(np.array(self._requested))
        return bool(np.any(flags))


def _say(message: str) -> None:
    os.write(2, f"\n{message}\n".encode())
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
