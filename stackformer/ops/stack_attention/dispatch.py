"""Tables of the form for each length: their rows, the backend, a table of your own."""

import contextlib
import contextvars
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax

# A JSON file {"gpu": [{"longest": 513, "implementation": "pallas"}, ...], ...}, as
# `stackformer benchmark kernel` writes it.
VARIABLE = "STACKFORMER_DISPATCH"
_BACKENDS = ("cpu", "gpu", "tpu")
_assumed: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "assumed", default=None
)


class Row(NamedTuple):
    """Up to T = `longest` (None: any T) this form, with this chunk size if any."""

    longest: int | None
    implementation: str
    chunk_size: int | None = None


@contextlib.contextmanager
def assume_backend(backend: str) -> Iterator[None]:
    """Within, forms are chosen for "cpu", "gpu" or "tpu", whatever is present.

    For compiling ahead; the default backend decides otherwise.

    >>> with assume_backend("tpu"):
    ...     current_backend()
    'tpu'
    """
    token = _assumed.set(backend)
    try:
        yield
    finally:
        _assumed.reset(token)


def current_backend() -> str:
    """The backend that forms are chosen for."""
    return _assumed.get() or jax.default_backend()


def table_of_user(backend: str) -> tuple[Row, ...] | None:
    """The rows for a backend in the file that STACKFORMER_DISPATCH names, if any.

    Raises:
      ValueError: the file is missing or is no such table.
    """
    path = os.environ.get(VARIABLE)
    return read_table(path).get(backend) if path else None


@functools.lru_cache(maxsize=8)
def read_table(path: str) -> dict[str, tuple[Row, ...]]:
    """Reads such a file."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        tables = {
            backend: tuple(Row(**{"longest": None, **row}) for row in rows)
            for backend, rows in content.items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"`{VARIABLE}` should be a JSON file "
            '{"gpu": [{"longest": 513, "implementation": "scan"}, ...]}, but got '
            f"{path}: {error}."
        ) from None
    for backend, rows in tables.items():
        if backend not in _BACKENDS or not rows or rows[-1].longest is not None:
            raise ValueError(
                f"`{VARIABLE}` should have rows for {', '.join(_BACKENDS)}, the last "
                f"without `longest`, but got {backend}: {rows} in {path}."
            )
    return tables
