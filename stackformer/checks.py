"""Checks of configuration fields: one wording each, "`x` should be …, but got …"."""

from collections.abc import Iterable
from typing import Any

import numpy as np


def check_positive(config: Any, *names: str) -> None:
    """Raises ValueError unless the fields are integers of at least 1, or None where
    None is the default."""
    for name in names:
        value = getattr(config, name)
        default = type(config).__dataclass_fields__[name].default
        if value is None and default is None:
            continue
        check_count(name, value)


def check_count(name: str, value: Any) -> None:
    """Raises ValueError unless the value is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(
            f"`{name}` should be an integer of at least 1, but got {value!r}."
        )


def check_features(features: Any, num_stacks: int = 1) -> None:
    """Raises ValueError unless features are a positive multiple of the stacks."""
    whole = isinstance(features, int) and not isinstance(features, bool)
    if not whole or features < 1 or features % num_stacks:
        kind = f"a multiple of `num_stacks` ({num_stacks})"
        kind = "an integer of at least 1" if num_stacks == 1 else kind
        raise ValueError(f"`features` should be {kind}, but got {features!r}.")


def check_arrays(**arrays: Any) -> None:
    """Raises TypeError unless all are arrays, or None.

    >>> check_arrays(h=[1.0, 2.0])
    Traceback (most recent call last):
    TypeError: `h` should be an array, but got a list; `jnp.asarray` makes one of it.
    """
    for name, array in arrays.items():
        if array is not None and not hasattr(array, "dtype"):
            kind = type(array).__name__
            raise TypeError(
                f"`{name}` should be an array, but got a {kind}; `jnp.asarray` makes "
                "one of it."
            )


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Raises ValueError unless the value is one of the choices."""
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(
            f"`{name}` should be one of {', '.join(map(str, choices))}, but got "
            f"{value!r}."
        )


def check_rate(name: str, value: float | None) -> None:
    """Raises ValueError unless the value is a dropout rate."""
    if value is not None and not 0.0 <= value < 1.0:
        raise ValueError(f"`{name}` should be at least 0 and below 1, but got {value}.")
