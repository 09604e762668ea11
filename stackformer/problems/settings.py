"""What every run's configuration shares: fields checked, saved and explained once."""

import dataclasses
import math
import numbers
import typing
from collections.abc import Collection
from typing import Any, ClassVar, Self

from stackformer.training.errors import UserError

# Seeds that differ by a multiple of this give the same key.
NUM_SEEDS = 2**32
_SEEDS = f"different whole numbers from 0 to {NUM_SEEDS - 1}"


def setting(
    default: Any = dataclasses.MISSING,
    *,
    choices: Collection[str] | None = None,
    least: int = 1,
    most: float = math.inf,
) -> Any:
    """A field of a `RunConfig`.

    Args:
      default: its value where none is given; required without one.
      choices: what a text may be.
      least: the smallest whole number that is allowed; 0 allows a number that is not
        whole to be 0 as well.
      most: the largest number that is not whole.
    """
    return dataclasses.field(
        default=default, metadata={"choices": choices, "least": least, "most": most}
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The base of a run's configuration.

    A subclass has fields of the types bool, int, float, str, dict, tuple[int, ...], or
    None where the type says so. Whole numbers are at least 1, other numbers are finite
    and above 0, texts are one of the field's choices: see `setting`. A docstring's
    "Attributes:" explains the fields; the command line shows the same words.
    """

    experiment: ClassVar[str]

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            expected = _expected(field, hints[field.name], value)
            if expected:
                raise UserError(
                    f"`{field.name}` should be {expected}, but got {value!r}"
                )
            if isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))

    @staticmethod
    def check_seeds(seeds: Any) -> None:
        """Raises `UserError` unless these are seeds of different keys."""
        if not _are_seeds(seeds):
            raise UserError(f"`seeds` should be {_SEEDS}, but got {seeds!r}")

    def to_json(self) -> dict[str, Any]:
        """The content of config.json, without the environment."""
        content = dataclasses.asdict(self)
        lists = {k: list(x) for k, x in content.items() if isinstance(x, tuple)}
        return {"experiment": self.experiment, **content, **lists}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Reads what `to_json` wrote; other keys of config.json are ignored."""
        if content.get("experiment") != cls.experiment:
            raise UserError(
                f"config.json should be of a run of experiments.{cls.experiment}, but "
                f'got "experiment": {content.get("experiment")!r}'
            )
        fields = dataclasses.fields(cls)
        missing = [f.name for f in fields if _required(f) and f.name not in content]
        if missing:
            raise UserError(
                f"config.json should have the fields {', '.join(missing)}, but they "
                "are missing; take another folder, or train again"
            )
        names = {field.name for field in fields}
        return cls(**{name: x for name, x in content.items() if name in names})


def _required(field: dataclasses.Field) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _expected(field: dataclasses.Field, hint: Any, value: Any) -> str | None:
    """What a field should be, in words; None where its value is that."""
    kinds = typing.get_args(hint) if type(None) in typing.get_args(hint) else (hint,)
    if type(None) in kinds and value is None:
        return None
    kind = typing.get_origin(kinds[0]) or kinds[0]
    number = _is_number(value)
    if kind is int:
        least = field.metadata.get("least", 1)
        fits = number and isinstance(value, numbers.Integral) and value >= least
        return None if fits else f"a whole number of at least {least}"
    if kind is float:
        zero = field.metadata.get("least") == 0
        most = field.metadata.get("most", math.inf)
        fits = number and math.isfinite(value) and (value > 0 or (zero and value == 0))
        words = f"a finite number {'of at least' if zero else 'above'} 0"
        if most < math.inf:
            words += f" and at most {most:g}"
        return None if fits and value <= most else words
    if kind is str:
        choices = field.metadata.get("choices")
        if choices:
            return None if value in choices else f"one of {', '.join(choices)}"
        return None if isinstance(value, str) else "a text"
    if kind is bool:
        return None if isinstance(value, bool) else "True or False"
    if kind is dict:
        return None if isinstance(value, dict) else "names with values"
    return None if _are_seeds(value) else _SEEDS


def _are_seeds(value: Any) -> bool:
    whole = isinstance(value, tuple | list) and all(
        _is_number(x) and isinstance(x, numbers.Integral) and 0 <= int(x) < NUM_SEEDS
        for x in value
    )
    return whole and bool(value) and len(set(value)) == len(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def explanations(config: type) -> dict[str, str]:
    """Field name -> its text under "Attributes:" in the docstring, on one line.

    >>> class Config:
    ...     '''A run.
    ...
    ...     Attributes:
    ...       steps: optimizer
    ...         steps.
    ...     '''
    >>> explanations(Config)
    {'steps': 'optimizer steps'}
    """
    _, _, section = (config.__doc__ or "").partition("Attributes:\n")
    lines = section.rstrip().splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    texts: dict[str, str] = {}
    name = ""
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) == indent:
            name, _, line = line.strip().partition(": ")
            texts[name] = line
        elif line.strip():
            texts[name] += f" {line.strip()}"
    return {name: text.removesuffix(".") for name, text in texts.items()}
