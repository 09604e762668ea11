"""What every command shares: parsers, errors without a stack trace, short warnings."""

import argparse
import contextlib
import io
import json
import logging
import math
import os
import re
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from stackformer.commands import start
from stackformer.extras import MissingExtra
from stackformer.training.errors import Interrupted, UserError

# Fields of configurations whose flags have other names.
_FLAGS = {"learning_rate": "lr"}
# Flags whose values are places, where "~" is the user's folder.
_HOME = re.compile(r"(--(?:out|save_to|export|\w+_dir|test_data|pretrained)=)~(?=/|$)")
# Lines of an error that are shown, in one line.
_MOST_LINES = 4


def program(name: str) -> str:
    """How the user started a command: from a clone, or as an installed program.

    >>> program("dcf")
    'python -m experiments.dcf'
    """
    return sys.argv[0] if _installed() else f"python -m experiments.{name}"


def _installed() -> bool:
    return sys.argv[0].startswith("stackformer ")


def as_typed(text: str) -> str:
    """A text whose commands are written as the user starts them: see `program`.

    >>> as_typed("python -m experiments.tasks --task=RS")
    'python -m experiments.tasks --task=RS'
    """
    if not _installed():
        return text
    return re.sub(r"(python -m )?experiments\.(?=[a-z])", "stackformer ", text)


def command_line(name: str) -> str:
    """The command as the user typed it, to be typed again."""
    return shlex.join([*program(name).split(), *sys.argv[1:]])


class _Parser(argparse.ArgumentParser):
    def parse_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        end = words.index("--") if "--" in words else len(words)
        for i, word in enumerate(words[:end]):
            # `--out=$UNSET` is a mistake, not the default.
            if not word.strip() or re.fullmatch(r"--\w+=\s*", word):
                name = word.partition("=")[0] or (words[i - 1] if i else "")
                self.error(f"argument {name}: expected a value, but got an empty one")
            # The shell does so where a space stands before the path, not after "=".
            if match := _HOME.match(word):
                words[i] = match[1] + os.path.expanduser(word[match.end(1) :])
        return super().parse_args(words, namespace)

    def format_help(self) -> str:
        return as_typed(super().format_help())

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def parser(prog: str, description: str, examples: list[str]) -> argparse.ArgumentParser:
    """An argument parser with examples under its help; flags are never abbreviated."""
    return _Parser(
        prog=program(prog),
        description=description,
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def flag_of(field: str) -> str:
    """The flag that sets a field of a configuration.

    >>> flag_of("learning_rate"), flag_of("steps")
    ('--lr', '--steps')
    """
    return f"--{_FLAGS.get(field, field)}"


@contextlib.contextmanager
def naming_flags(args: argparse.Namespace, **others: str) -> Iterator[None]:
    """Within, an error about `field` says --field, where there is such a flag.

    Args:
      args: the flags.
      others: what to say of other names.
    """

    def flag(match: re.Match) -> str:
        if match[1] in others:
            return others[match[1]]
        return flag_of(match[1]) if hasattr(args, match[1]) else match[0]

    try:
        yield
    except UserError as error:
        raise UserError(re.sub(r"`(\w+)`", flag, str(error))) from error


@contextlib.contextmanager
def going_on(out: Any, command: str) -> Iterator[None]:
    """Within, a run that was asked to stop says how to go on."""
    try:
        yield
    except Interrupted as stop:
        print(f"\nStopped at step {stop.step:,}; everything is saved in {out}.")
        print(f"To go on: {command}")


def integers(text: str) -> tuple[int, ...]:
    """The type of a flag such as `--seeds=0,1,2`.

    >>> integers("0,1,2")
    (0, 1, 2)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected whole numbers with commas, such as 0,1,2, but got {text!r}"
        ) from None


def count(text: str, least: int = 0) -> int:
    """The type of a flag that is a whole number from 0 on.

    >>> count("0")
    0
    """
    if not text.isdecimal() or len(text) > 18 or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at least {least}, below 10**18, but got "
            f"{text[:40]!r}"
        )
    return int(text)


def positive(text: str) -> int:
    """The type of a flag that counts something.

    >>> positive("32")
    32
    """
    return count(text, least=1)


def seed(text: str) -> int:
    """The type of a flag that seeds a random key: other numbers give the same keys.

    >>> seed("7")
    7
    """
    if not text.isdecimal() or len(text) > 10 or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 0 to {2**32 - 1}, but got {text[:40]!r}"
        )
    return int(text)


def number(text: str) -> float:
    """The type of a flag that is a finite number.

    >>> number("1e-3")
    0.001
    """
    with contextlib.suppress(ValueError):
        if math.isfinite(float(text)):
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a finite number, but got {text!r}")


_AS_JSON = {"True": "true", "False": "false", "None": "null"}


def assignments(text: str) -> dict[str, Any]:
    """The type of a flag such as `--model_config=d_model=32,num_layers=2`.

    >>> assignments("d_model=32,positions=rotary")
    {'d_model': 32, 'positions': 'rotary'}
    >>> assignments("stack_layers=[0,2],d_model=32")
    {'stack_layers': [0, 2], 'd_model': 32}

    Truth and nothing are written as in JSON or as in Python:
    >>> assignments("project=True,causal=false,max_depth=None")
    {'project': True, 'causal': False, 'max_depth': None}
    """
    result = {}
    for part in filter(None, re.split(r",(?![^[]*\])", text)):
        name, equals, value = part.partition("=")
        if not equals or not name.isidentifier():
            raise argparse.ArgumentTypeError(
                f"expected NAME=VALUE with commas between, but got {part!r}"
            )
        try:
            result[name] = json.loads(_AS_JSON.get(value, value))
        except ValueError:
            result[name] = value
    return result


def folder(flag: str, path: str | Path) -> Path:
    """Makes the folder that a flag names, or says why that cannot be."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{flag} should be a folder, but {str(path)[:200]} cannot be made: "
            f"{error.strerror}"
        ) from None
    if not os.access(path, os.W_OK):
        raise UserError(f"{flag} should be writable, but {path} is read-only")
    return path


def one_line(error: BaseException | str) -> str:
    """An error's message without line ends; the first few of many lines.

    >>> one_line("two tensors differ:\\n  a\\n  b")
    'two tensors differ: a; b'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    more = len(lines) - _MOST_LINES
    shown = lines[:_MOST_LINES] + ([f"and {more} more"] if more > 0 else [])
    text = "; ".join(shown).replace(":; ", ": ")
    return text if len(text) <= 800 else f"{text[:800]} …"


def run(main: Callable[[], int | None]) -> NoReturn:
    """Runs a command's main and exits; what the user can mend is one line.

    That is a `UserError`, and whatever the system refuses: a read-only folder, a full
    disk, too little memory. Anything else is a defect of ours and keeps its trace.
    """
    warnings.showwarning = _show_warning
    start.goodbye()
    if signal.getsignal(signal.SIGINT) is start.end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.excepthook = _show_thread
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not UTF-8 shows "\\xb1" in place of a sign it lacks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        sys.exit(main() or 0)
    except UserError as error:
        _end(one_line(error))
    except KeyboardInterrupt:
        # At once: Python's own end would wait for XLA's threads, and they may crash it.
        print("\ninterrupted", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(130)
    except MissingExtra as error:
        _end(str(error))
    except BrokenPipeError:
        # Nobody reads any more; the last flush must not complain about it.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        sys.exit(1)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _end(f"{place}{error.strerror or one_line(error)}")
    except MemoryError:
        _end("there is not enough memory; ask for shorter strings or smaller batches")
    except Exception as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        _end(f"there is not enough memory: {one_line(error)}")


def _show_thread(ended: threading.ExceptHookArgs) -> None:
    """A full disk also ends threads that write in the background."""
    if isinstance(ended.exc_value, OSError | EOFError):
        return
    threading.__excepthook__(ended)


def _end(message: str) -> NoReturn:
    print(f"error: {as_typed(message)}", file=sys.stderr)
    sys.exit(2)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    if issubclass(category, UserWarning):
        print(f"warning: {message}", file=sys.stderr)
