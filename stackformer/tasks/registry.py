"""The table of tasks: `get`, `names`, `register`."""

import functools
import importlib
import importlib.util
import pathlib
import sys
import types
from typing import Any

from stackformer.tasks.base import LEVELS, Task
from stackformer.tasks.binary_addition import BinaryAddition
from stackformer.tasks.binary_multiplication import BinaryMultiplication
from stackformer.tasks.bucket_sort import BucketSort
from stackformer.tasks.compute_sqrt import ComputeSqrt
from stackformer.tasks.cycle_navigation import CycleNavigation
from stackformer.tasks.duplicate_string import DuplicateString
from stackformer.tasks.even_pairs import EvenPairs
from stackformer.tasks.missing_duplicate_string import MissingDuplicateString
from stackformer.tasks.modular_arithmetic import ModularArithmetic
from stackformer.tasks.modular_arithmetic_brackets import ModularArithmeticBrackets
from stackformer.tasks.odds_first import OddsFirst
from stackformer.tasks.parity_check import ParityCheck
from stackformer.tasks.reverse_string import ReverseString
from stackformer.tasks.solve_equation import SolveEquation
from stackformer.tasks.stack_manipulation import StackManipulation
from stackformer.tasks.trial import try_out
from stackformer.tasks.vocabulary import SPECIAL_SYMBOLS

_TASKS: dict[str, type[Task]] = {}


def register(task_class: type[Task]) -> type[Task]:
    """Make a task known to `get` and `names`; also usable as a class decorator.

    Raises:
      ValueError: the name is taken, or the class lacks something a task states.
    """
    task = _checked(task_class)
    for name in filter(None, (task.name, task.short_name)):
        other = _TASKS.get(name.lower())
        if other is not None and _origin(other) != _origin(task_class):
            raise ValueError(
                f"a task named {name!r} is registered already: {other.__name__}"
            )
        _TASKS[name.lower()] = task_class
    return task_class


def _checked(task_class: type[Task]) -> Task:
    """The task of a class, which states all that a task states."""
    task = task_class()
    missing = [
        attribute
        for attribute in ("name", "level", "input_symbols", "output_symbols", "chance")
        if not hasattr(task_class, attribute) and attribute not in vars(task)
    ]
    if missing:
        raise ValueError(
            f"{task_class.__name__} should state {', '.join(missing)}, but does not"
        )
    if task.level not in LEVELS:
        raise ValueError(
            f"{task.name}: `level` should be one of {', '.join(LEVELS)}, but got "
            f"{task.level!r}"
        )
    for attribute in ("input_symbols", "output_symbols"):
        symbols = getattr(task, attribute)
        if not isinstance(symbols, tuple) or not symbols:
            raise ValueError(
                f"{task.name}: `{attribute}` should be a tuple of str, but got "
                f"{symbols!r}"
            )
        if len(set(symbols)) < len(symbols) or set(symbols) & set(SPECIAL_SYMBOLS):
            raise ValueError(
                f"{task.name}: `{attribute}` should be distinct and none of "
                f"{', '.join(SPECIAL_SYMBOLS)}, but got {symbols!r}"
            )
    return task


def names() -> tuple[str, ...]:
    """The long names of all registered tasks, in the order of registration."""
    return tuple(dict.fromkeys(_default(cls).name for cls in _TASKS.values()))


def get(name: str, **options: Any) -> Task:
    """The task of this name.

    Args:
      name: a short name ("RS"), a long name ("reverse_string"), in any case; or
        "module:Class" or "folder/file.py:Class" for a `Task` class of your own
        that is not registered.
      **options: arguments of the task's class, such as `modulus=7`.

    Returns:
      The task; without options always the same object.

    Raises:
      ValueError: no such task; the message lists the known ones.

    Example:
      >>> get("RS") is get("reverse_string")
      True
      >>> get("MA", modulus=7).output_size
      7
    """
    if not isinstance(name, str):
        raise ValueError(f"`name` should be a str, but got {name!r}")
    task_class = _imported(name) if ":" in name else _TASKS.get(name.lower())
    if task_class is None:
        known = [
            f"{task.name} ({task.short_name})" if task.short_name else task.name
            for task in map(_default, dict.fromkeys(_TASKS.values()))
        ]
        hint = f" (a class in a file: {name}:Class)" if name.endswith(".py") else ""
        raise ValueError(
            f"unknown task {name!r}{hint}; known tasks: {', '.join(known)}"
        )
    if not options:
        return _default(task_class)
    try:
        return task_class(**options)
    except TypeError as error:
        raise ValueError(f"task {name!r} does not take {options}: {error}") from None


@functools.cache
def _default(task_class: type[Task]) -> Task:
    return task_class()


def _origin(task_class: type[Task]) -> tuple[str, str]:
    """Equal for a class and its newer self, as when a notebook cell is run again."""
    return task_class.__module__, task_class.__qualname__


@functools.cache
def _imported(name: str) -> type[Task]:
    module_name, _, class_name = name.rpartition(":")
    if not module_name or not class_name:
        raise ValueError(
            f"a task should be a name, module:Class or FILE.py:Class, but got {name!r}"
        )
    try:
        module = _module(module_name)
    except Exception as error:  # whatever the user's file raises
        raise ValueError(f"task {name!r} cannot be imported: {error}") from None
    if not hasattr(module, class_name):
        raise ValueError(f"task {name!r}: {module_name} has no {class_name}")
    task_class = getattr(module, class_name)
    if not (isinstance(task_class, type) and issubclass(task_class, Task)):
        raise ValueError(
            f"a task should be a subclass of stackformer.tasks.Task, but got {name!r}"
        )
    try:
        try_out(_checked(task_class))
    except Exception as error:
        raise ValueError(f"task {name!r}: {error}") from None
    return task_class


def _module(name: str) -> types.ModuleType:
    """A module by its name, or by the path of its file."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = pathlib.Path(name).expanduser().resolve()
    unique = f"stackformer_task_file_{path.as_posix()}"
    if unique in sys.modules:
        return sys.modules[unique]
    spec = importlib.util.spec_from_file_location(unique, path)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = sys.modules[unique] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[unique]
        raise
    return module


for _task_class in (
    ReverseString,
    StackManipulation,
    ModularArithmeticBrackets,
    SolveEquation,
    EvenPairs,
    ModularArithmetic,
    ParityCheck,
    CycleNavigation,
    DuplicateString,
    MissingDuplicateString,
    OddsFirst,
    BinaryAddition,
    BinaryMultiplication,
    ComputeSqrt,
    BucketSort,
):
    register(_task_class)
