"""The first words on the screen: importing JAX takes seconds, this does not."""

import os
import signal
import sys
from types import FrameType

_SILENT = ("-h", "--help", "--no_progress", "--predict")
_TEXT = "loading JAX ..."


def hello() -> None:
    """Says in a terminal that the command has begun; until it has, Ctrl-C ends it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)
    flags = [flag.partition("=")[0] for flag in sys.argv[1:]]
    if sys.stderr.isatty() and not any(flag in _SILENT for flag in flags):
        sys.stderr.write(f"{_TEXT}\r")
        sys.stderr.flush()


def goodbye() -> None:
    """Takes the words away again."""
    if sys.stderr.isatty():
        sys.stderr.write(" " * len(_TEXT) + "\r")
        sys.stderr.flush()


def end(number: int, frame: FrameType | None) -> None:
    """Ends a process that is still loading, without a stack trace."""
    os.write(2, b"\ninterrupted\n")
    os._exit(128 + number)
