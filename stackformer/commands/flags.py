"""Flags made from the fields of a configuration, and those that every run has."""

import argparse
import dataclasses
import os
import re
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stackformer.commands import cli
from stackformer.problems.settings import RunConfig, explanations
from stackformer.training.errors import UserError

Group = Any  # argparse has no public name for it
_TYPES = {int: cli.positive, float: cli.number, tuple: cli.integers}


def add_fields(
    group: Group,
    config: type[RunConfig],
    names: Iterable[str],
    *,
    defaults: Mapping[str, str] | None = None,
    without: tuple[str, ...] = (),
) -> None:
    """Adds a flag for each field: type, choices, help and default are the field's.

    Args:
      group: of the parser.
      config: the configuration.
      names: its fields.
      defaults: in words, where the default is not that of the field.
      without: choices that are not to be given by hand.
    """
    hints, texts = typing.get_type_hints(config), explanations(config)
    fields = {field.name: field for field in dataclasses.fields(config)}
    for name in names:
        field, hint = fields[name], hints[name]
        inner = next(iter(typing.get_args(hint)), hint) if _optional(hint) else hint
        kind = typing.get_origin(inner) or inner
        choices = [x for x in field.metadata.get("choices") or () if x not in without]
        options: dict[str, Any] = {"type": _TYPES.get(kind, str)}
        if kind is int and field.metadata.get("least") == 0:
            options["type"] = cli.count
        if choices:
            options["choices"] = choices
        elif kind is dict:
            options |= {"type": cli.assignments, "metavar": "NAME=VALUE,..."}
        else:
            options["metavar"] = cli.flag_of(name)[2:].upper()
        default = (defaults or {}).get(name) or _words(field.default)
        text = texts[name] + (f"; default {default}" if default else "")
        group.add_argument(
            cli.flag_of(name), dest=name, help=text.replace("%", "%%"), **options
        )


def _optional(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)


def _words(default: Any) -> str:
    if default is dataclasses.MISSING or default is None:
        return ""
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def given_fields(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The fields that flags set."""
    values = {name: getattr(args, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def folder_of(parts: Iterable[str], given: Mapping[str, Any]) -> str:
    """The name of a run's folder: what is trained, then the flags that were given.

    >>> folder_of(["RS", "mlm"], {"steps": 5, "seeds": (0, 1)})
    'RS-mlm-steps5-seeds0_1'
    >>> folder_of(["tasks/mine.py:Mine"], {"curriculum": "fixed:3"})  # on any system
    'mine.py_Mine-curriculumfixed_3'
    """
    names = [Path(part).name for part in parts]
    for name, value in given.items():
        if isinstance(value, tuple):
            value = "_".join(map(str, value))
        elif isinstance(value, dict):
            value = "_".join(f"{key}{x}" for key, x in value.items())
        names.append(name if value is True else f"{name}{value}")
    return re.sub(r"[^\w.+-]+", "_", "-".join(names))


def add_run_flags(parser: argparse.ArgumentParser, *, out: str, keep: int) -> Group:
    """The flags of a run's folder and of its devices; returns the first group.

    Args:
      parser: where they are added.
      out: the folder of folders that a run is made in by default.
      keep: checkpoints kept by default.
    """
    run = parser.add_argument_group("the run")
    run.add_argument("--out", metavar="DIR", help=f"default {out}/<what is trained>")
    run.add_argument(
        "--checkpoint_every",
        type=cli.positive,
        metavar="STEPS",
        help="default: about ten times in a run",
    )
    run.add_argument(
        "--keep",
        type=cli.positive,
        default=keep,
        metavar="N",
        help=f"newest checkpoints that stay, default {keep}",
    )
    run.add_argument("--no_progress", action="store_true", help="no progress bars")
    devices = parser.add_argument_group("devices")
    devices.add_argument(
        "--mesh",
        metavar="AXIS:SIZE,...",
        help="axes seeds, data, params, such as seeds:2,data:4; default: all on data",
    )
    devices.add_argument(
        "--no_compilation_cache",
        action="store_true",
        help="compile anew; otherwise compiled programs are kept in "
        "~/.cache/stackformer/xla, or where JAX_COMPILATION_CACHE_DIR says",
    )
    devices.add_argument(
        "--distributed", action="store_true", help="join several processes into one run"
    )
    devices.add_argument(
        "--coordinator", metavar="HOST:PORT", help="address of the first process"
    )
    devices.add_argument(
        "--num_processes", type=cli.positive, metavar="N", help="how many there are"
    )
    devices.add_argument(
        "--process_id", type=cli.count, metavar="I", help="number of this one, from 0"
    )
    return run


def keep_programs(args: argparse.Namespace) -> None:
    """Keeps compiled programs between runs, unless --no_compilation_cache is given."""
    import jax

    if args.no_compilation_cache:
        jax.config.update("jax_enable_compilation_cache", False)
    elif "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(user) / "stackformer" / "xla"
        jax.config.update("jax_compilation_cache_dir", str(folder))


def join_processes(args: argparse.Namespace) -> None:
    """Joins the processes of a run, where --distributed asks for it."""
    by_hand = ("coordinator", "num_processes", "process_id")
    if args.distributed:
        from stackformer.training import distributed

        distributed.initialize(*(getattr(args, name) for name in by_hand))
    elif any(getattr(args, name) is not None for name in by_hand):
        flags = ", ".join(map(cli.flag_of, by_hand))
        raise UserError(
            f"{flags} go with --distributed; give it too, or leave them out"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFlags:
    """What the flags of `add_run_flags` say.

    Attributes:
      out: the run's folder.
      placement: where to compute.
      checkpoint_every: steps, or None for the problem's own choice.
      keep: how many checkpoints stay.
      progress: whether to show progress.
      command: how to start this run again.
    """

    out: Path
    placement: Any
    checkpoint_every: int | None
    keep: int
    progress: bool
    command: str

    @classmethod
    def read(
        cls, args: argparse.Namespace, *, out: Path, batch_size: int, command: str
    ) -> "RunFlags":
        """Looks at the devices, so that `join_processes` comes before."""
        import jax

        from stackformer.training import Placement, parse_mesh

        sizes = parse_mesh(args.mesh, jax.device_count(), batch_size)
        return cls(
            out=Path(args.out) if args.out else out,
            placement=Placement.create(sizes),
            checkpoint_every=args.checkpoint_every,
            keep=args.keep,
            progress=not args.no_progress and jax.process_index() == 0,
            command=command,
        )

    def training(self) -> dict[str, Any]:
        """What a problem's training takes."""
        names = ("checkpoint_every", "keep", "progress")
        return {name: getattr(self, name) for name in names}
