"""What every command shares: parsers, errors without a stack trace, short warnings."""

import argparse
import json
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from stackformer.training.errors import UserError


def parser(prog: str, description: str, examples: list[str]) -> argparse.ArgumentParser:
    """An argument parser with examples under its help; flags are never abbreviated."""
    return argparse.ArgumentParser(
        prog=f"python -m experiments.{prog}",
        description=description,
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


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


def positive(text: str) -> int:
    """The type of a flag that counts something.

    >>> positive("32")
    32
    """
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at least 1, but got {text!r}"
        )
    return int(text)


def assignments(text: str) -> dict[str, Any]:
    """The type of a flag such as `--model_config=d_model=32,num_layers=2`.

    >>> assignments("d_model=32,positions=rotary")
    {'d_model': 32, 'positions': 'rotary'}
    """
    result = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name.isidentifier():
            raise argparse.ArgumentTypeError(
                f"expected NAME=VALUE with commas between, but got {part!r}"
            )
        try:
            result[name] = json.loads(value)
        except ValueError:
            result[name] = value
    return result


def run(main: Callable[[], int | None]) -> NoReturn:
    """Runs a command's main and exits; a `UserError` is one line, not a stack trace."""
    warnings.showwarning = _show_warning
    logging.getLogger("absl").setLevel(logging.ERROR)
    try:
        sys.exit(main() or 0)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


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
