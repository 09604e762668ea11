"""SIGTERM and Ctrl-C as a wish that the loop looks at between two dispatches."""

import os
import signal
import sys
import threading
from types import FrameType

import jax
import numpy as np
from jax.experimental import multihost_utils


class StopRequest:
    """Within the context the first SIGTERM or SIGINT is remembered.

    A second Ctrl-C is an ordinary KeyboardInterrupt, for the impatient.
    """

    def __init__(self) -> None:
        self._requested = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self._requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._requested = True
        message = "\nstopping at the next safe point; Ctrl-C again stops at once\n"
        os.write(sys.stderr.fileno(), message.encode())

    def requested(self) -> bool:
        """Whether any process was asked to stop; the same answer in all of them."""
        if jax.process_count() == 1:
            return self._requested
        flags = multihost_utils.process_allgather(np.array(self._requested))
        return bool(np.any(flags))
