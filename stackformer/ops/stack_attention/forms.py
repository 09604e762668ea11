"""The registry of forms by name, and which one runs where nobody asked for one.

A new form is a file that ends in `FORM = Form(...)` and a line in `FORMS`. The public
functions, the choice by shape, the tests and the benchmark then know it.
"""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

from stackformer.ops.stack_attention import (
    chunkwise,
    pallas,
    recurrent,
    reference,
    scan,
)
from stackformer.ops.stack_attention.dispatch import (
    Row,
    current_backend,
    table_of_user,
)
from stackformer.ops.stack_attention.form import Form, Options

FORMS: dict[str, Form] = {
    "reference": reference.FORM,
    "scan": scan.FORM,
    "chunkwise": chunkwise.FORM,
    "recurrent": recurrent.FORM,
    "pallas": pallas.FORM,
}


class Choice(NamedTuple):
    """A form and how it is run.

    through_weights: compute alpha first, then alpha @ values, which is cheaper where
      a value has many more features than there are positions.
    """

    implementation: str
    options: Options
    through_weights: bool = False


# Measured by `python -m experiments.benchmark kernel` on two CPU cores. Where chunks of
# 8 begin, with its code at further lengths and D = 64, time over that of the scan:
# forward and backward (B = 32, two runs) 1.45 and 1.15 at T = 82, 0.94 and 0.65 at 102,
# 0.96 and 0.70 at 129; forward alone (B = 128) 1.13 at T = 82, 0.59 at 102, 0.64 at
# 129. Over that of chunks of 16, forward and backward: 0.92 at T = 152, 1.06 at 202.
_CPU = (
    Row(96, "scan"),
    Row(160, "chunkwise", 8),
    Row(401, "chunkwise", 16),
    Row(1201, "chunkwise", 32),
    Row(None, "chunkwise", 64),
)
# Where alpha itself is wanted, which is what the scan computes: at T = 129, B = 8,
# D = 768 (alpha first) chunks of 8 take 1.42 of its time, forward alone 1.16.
_CPU_ALPHA = (Row(129, "scan"), *_CPU)
# Not measured: fewer, larger products suit accelerators. For a v5e and T = 82 chunks of
# 8 compile in an eighth of the time, but libtpu 0.0.42 ends the process at some shapes
# of theirs (`experiments/results/README.md`, "Compiling").
_ACCELERATOR = (Row(None, "chunkwise", 64),)
# A stack of bounded depth H; chunks are no longer than H / 2.
_BOUNDED = (Row(None, "chunkwise", 32),)
# Whatever the rows above name may refuse an option; then the first that does not.
_OTHERWISE = (Row(None, "recurrent"),)

# With this many features for each position alpha is computed first.
_MANY_FEATURES = 3


def choose(
    length: int,
    features: int | None,
    *,
    implementation: str | None = None,
    chunk_size: int | None = None,
    max_depth: int | None = None,
    max_pops: int = 1,
    initial_state: bool = False,
    return_state: bool = False,
    backend: str | None = None,
) -> Choice:
    """The form for T = `length` positions and values of D = `features`.

    Args:
      length: T.
      features: D, or None where alpha itself is wanted.
      implementation: a form by name, or None.
      chunk_size: as in `stackformer.stack_attention`.
      max_depth: as in `stackformer.stack_attention`.
      max_pops: as in `stackformer.stack_attention`.
      initial_state: whether there is one.
      return_state: as in `stackformer.stack_attention`.
      backend: "cpu", "gpu" or "tpu"; the default backend where None.

    Raises:
      ValueError: the named form refuses an option, or every form does.

    Example:
      >>> choice = choose(513, 64, backend="cpu")
      >>> choice.implementation, choice.options.chunk_size
      ('chunkwise', 32)
    """
    options = Options(
        chunk_size=chunk_size,
        max_depth=max_depth,
        max_pops=max_pops,
        initial_state=initial_state,
        return_state=return_state,
    )
    return select(
        length, features, options, implementation=implementation, backend=backend
    )


def select(
    length: int,
    features: int | None,
    options: Options,
    *,
    implementation: str | None = None,
    backend: str | None = None,
) -> Choice:
    """`choose` for options that were validated before."""
    stateful = options.initial_state or options.return_state
    bounded = options.max_depth is not None and (
        options.initial_state or options.max_depth < length - 1
    )
    many = features is not None and features >= _MANY_FEATURES * length
    alpha = features is None or (many and not stateful)
    table = _BOUNDED if bounded else _table(backend, alpha)
    if implementation is not None:
        _check_name(implementation)
        # A chunk size of the measured rows is a good one also where it is not the best.
        rows = [row for row in table if row.implementation == implementation]
        candidates: Iterable[Row] = [*rows, Row(None, implementation)]
    else:
        candidates = [*table, *_OTHERWISE]
    complaint = None
    for row in candidates:
        if row.longest is not None and row.longest < length:
            continue
        complaint = FORMS[row.implementation].refuses(length, options)
        if complaint is None:
            return Choice(
                row.implementation,
                _complete(options, row, bounded),
                implementation is None and not bounded and many and not stateful,
            )
    raise ValueError(_advice(complaint, length, options, implementation))


def describe_dispatch(backend: str | None = None) -> str:
    """The table behind `implementation=None`, to print.

    Example:
      >>> print(describe_dispatch("cpu"))  # doctest: +ELLIPSIS
      backend cpu
      max_depth = H ...
    """
    backend = backend or current_backend()
    lines = [
        (f"max_depth = H{_up_to(row)}", f"{_name(row)}, at most H / 2")
        for row in _BOUNDED
    ]
    lines.append(
        (
            f"D >= {_MANY_FEATURES} T",
            "alpha first by the form below, then alpha @ values",
        )
    )
    lines += [
        (f"alpha itself, {_up_to(row)}", _name(row))
        for row in _table(backend, alpha=True)
        if row not in _table(backend)
    ]
    lines += [(_up_to(row) or "otherwise", _name(row)) for row in _table(backend)]
    lines += [("what these refuse", _name(row)) for row in _OTHERWISE]
    lines += [
        (f"  {name} refuses", ", ".join(refused))
        for name in dict.fromkeys(row.implementation for row in _table(backend))
        if (refused := _refused(name))
    ]
    rows = [f"{condition:<28} {form}" for condition, form in lines]
    return "\n".join([f"backend {backend}", *rows])


def _table(backend: str | None, alpha: bool = False) -> tuple[Row, ...]:
    backend = backend or current_backend()
    given = table_of_user(backend)
    for row in given or ():
        _check_name(row.implementation)
    if given:
        return given
    if backend != "cpu":
        return _ACCELERATOR
    return _CPU_ALPHA if alpha else _CPU


def _complete(options: Options, row: Row, bounded: bool) -> Options:
    """Fills in the chunk size where the caller left it open."""
    if options.chunk_size is not None or row.chunk_size is None:
        return options
    size = row.chunk_size
    if bounded and options.max_depth is not None:
        size = max(1, min(size, options.max_depth // 2))
    return dataclasses.replace(options, chunk_size=size)


def _check_name(implementation: str) -> None:
    if implementation not in FORMS:
        raise ValueError(
            f"`implementation` should be None or one of {tuple(FORMS)}, but got "
            f"{implementation!r}."
        )


def _advice(
    complaint: str | None, length: int, options: Options, implementation: str | None
) -> str:
    """The complaint, and the forms that would serve."""
    others = [
        repr(name)
        for name, form in FORMS.items()
        if form.refuses(length, options) is None
    ]
    served = f"use implementation={' or '.join(others)}, or None" if others else ""
    asked = "" if implementation is None else f" with implementation={implementation!r}"
    return f"{complaint}{asked}; {served or 'no form takes these options together'}."


_EXAMPLES = (
    ("chunk_size", Options(chunk_size=8)),
    ("max_depth = 1", Options(max_depth=1)),
    ("max_pops > 1", Options(max_pops=2)),
    ("return_state", Options(return_state=True)),
)


def _refused(name: str) -> list[str]:
    return [
        text
        for text, options in _EXAMPLES
        if FORMS[name].refuses(65, options) is not None
    ]


def _up_to(row: Row) -> str:
    return "" if row.longest is None else f"T <= {row.longest}"


def _name(row: Row) -> str:
    size = f", chunk_size {row.chunk_size}" if row.chunk_size else ""
    return row.implementation + size
