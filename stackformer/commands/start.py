"""The first words on the screen: importing JAX takes seconds, this does not."""

import sys

_SILENT = ("-h", "--help", "--no_progress", "--predict")
_TEXT = "loading JAX ..."


def hello() -> None:
    """Says in a terminal that the command has begun."""
    flags = [flag.partition("=")[0] for flag in sys.argv[1:]]
    if sys.stderr.isatty() and not any(flag in _SILENT for flag in flags):
        sys.stderr.write(f"{_TEXT}\r")
        sys.stderr.flush()


def goodbye() -> None:
    """Takes the words away again."""
    if sys.stderr.isatty():
        sys.stderr.write(" " * len(_TEXT) + "\r")
        sys.stderr.flush()
