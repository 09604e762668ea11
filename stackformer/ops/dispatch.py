"""Which form runs where nobody asked for one, and whether a wish can be met."""

from typing import NamedTuple

import jax

IMPLEMENTATIONS = ("reference", "scan", "chunkwise", "recurrent")


class Choice(NamedTuple):
    """A form and how it is run.

    through_weights: compute alpha first, then alpha @ values, which is cheaper where
      a value has many more features than there are positions.
    """

    implementation: str
    chunk_size: int | None = None
    through_weights: bool = False


# The longest T, then the choice; measured by `python -m experiments.benchmark kernel`
# on two CPU cores. None is every T.
_CPU = (
    (129, Choice("scan", through_weights=True)),
    (401, Choice("chunkwise", 16)),
    (1201, Choice("chunkwise", 32)),
    (None, Choice("chunkwise", 64)),
)
# Not measured: fewer, larger products suit accelerators.
_ACCELERATOR = ((None, Choice("chunkwise", 64)),)

_BOUNDED_CHUNK = 32
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
      backend: "cpu", "gpu" or "tpu"; the default backend where None.

    Raises:
      ValueError: the named form does not support an option.

    Example:
      >>> choose(513, 64, backend="cpu")
      Choice(implementation='chunkwise', chunk_size=32, through_weights=False)
    """
    _check(implementation, chunk_size, max_depth, max_pops)
    if implementation is None:
        choice = _by_shape(length, features, max_depth, max_pops, backend)
        if chunk_size is not None and choice.implementation == "scan":
            choice = Choice("chunkwise", chunk_size)
    elif implementation == "chunkwise":
        choice = Choice("chunkwise", _chunk_size(length, max_depth, backend))
    else:
        through = implementation in ("reference", "scan")
        choice = Choice(implementation, None, through)
    if chunk_size is not None and choice.implementation == "chunkwise":
        choice = choice._replace(chunk_size=chunk_size)
    return choice


def describe_dispatch(backend: str | None = None) -> str:
    """The table behind `implementation=None`, to print.

    Example:
      >>> print(describe_dispatch("cpu"))  # doctest: +ELLIPSIS
      backend cpu
      max_pops > 1                 recurrent
      ...
    """
    backend = backend or jax.default_backend()
    lines = [
        ("max_pops > 1", "recurrent"),
        ("max_depth = 1", "recurrent"),
        (
            "max_depth = H",
            f"chunkwise, chunk_size min({_BOUNDED_CHUNK}, H / 2)",
        ),
        (
            f"D >= {_MANY_FEATURES} T",
            "alpha first by the form below, then alpha @ values",
        ),
    ]
    for longest, choice in _table(backend):
        lines.append(
            (
                "otherwise" if longest is None else f"T <= {longest}",
                choice.implementation
                + (f", chunk_size {choice.chunk_size}" if choice.chunk_size else ""),
            )
        )
    rows = [f"{condition:<28} {form}" for condition, form in lines]
    return "\n".join([f"backend {backend}", *rows])


def _table(backend: str | None):
    return _CPU if (backend or jax.default_backend()) == "cpu" else _ACCELERATOR


def _by_shape(length, features, max_depth, max_pops, backend):
    if max_pops > 1 or max_depth == 1:
        return Choice("recurrent")
    if max_depth is not None and max_depth < length - 1:
        return Choice("chunkwise", _chunk_size(length, max_depth, backend))
    choice = _row(length, backend)
    if features is None or features >= _MANY_FEATURES * length:
        choice = choice._replace(through_weights=True)
    return choice


def _row(length, backend):
    for longest, choice in _table(backend):
        if longest is None or length <= longest:
            return choice
    raise AssertionError("the last row of a table has no longest T")


def _chunk_size(length, max_depth, backend):
    if max_depth is not None and max_depth < length - 1:
        return max(1, min(_BOUNDED_CHUNK, max_depth // 2))
    return _row(length, backend).chunk_size or 16


def _check(implementation, chunk_size, max_depth, max_pops):
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"`implementation` should be None or one of {IMPLEMENTATIONS}, but got "
            f"{implementation!r}."
        )
    for name, value in (("chunk_size", chunk_size), ("max_depth", max_depth)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(
                f"`{name}` should be None or an integer >= 1, but got {value!r}."
            )
    if max_pops > 1 and implementation in ("scan", "chunkwise"):
        raise ValueError(
            f"`max_pops` should be 1 with implementation={implementation!r}, but got "
            f"{max_pops}; use implementation='recurrent' (or None) for several pops."
        )
    if max_depth is not None and implementation in ("reference", "scan"):
        raise ValueError(
            f"`max_depth` should be None with implementation={implementation!r}, but "
            f"got {max_depth}; use 'chunkwise' or 'recurrent' (or None)."
        )
    if max_depth == 1 and implementation == "chunkwise":
        raise ValueError(
            "`max_depth` should be at least 2 with implementation='chunkwise', but got "
            "1; use implementation='recurrent' (or None)."
        )
