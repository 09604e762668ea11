"""The files of a run: config.json, metrics.jsonl, timing.jsonl, results.json, lock.

`metrics.jsonl` holds nothing that depends on the clock, so that a run that was killed
and resumed leaves the very same bytes as one that was not; seconds and steps a second
are in `timing.jsonl`.
"""

import importlib.metadata
import json
import os
import platform
import socket
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax

from stackformer.training.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

PACKAGES = (
    "stackformer-jax",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
)
METRICS, TIMING = "metrics.jsonl", "timing.jsonl"


def write_json(path: Path, content: Any) -> None:
    """Writes JSON so that the file is either the old one or the whole new one."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replaces a file atomically.

    Raises:
      UserError: the disk is full, or the folder is read-only; the old file is whole.
    """
    try:
        _replace(path, text)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object; what cannot be read is the user's to know about."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist; is this the folder of a run?"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise UserError(
            f"{path} should hold an object with names, but got a "
            f"{type(content).__name__}; is this the folder of a run?"
        )
    return content


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a .jsonl file; a torn last line is left out.

    >>> read_lines(Path("no-such-file.jsonl"))
    []
    """
    records = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:
                break
    return records


def _is_torn(path: Path) -> bool:
    """Whether a .jsonl file ends within a line."""
    content = path.read_bytes() if path.exists() else b""
    return bool(content) and not content.endswith(b"\n")


def environment() -> dict[str, Any]:
    """Package versions, machine and devices, for config.json."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    devices = jax.devices()
    return {
        "packages": versions,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "backend": jax.default_backend(),
        "device": devices[0].device_kind,
        "num_devices": len(devices),
        "num_processes": jax.process_count(),
    }


def _differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(
        f"{name}: {json.dumps(old.get(name))} in the folder, "
        f"{json.dumps(new.get(name))} asked for"
        for name in names
    )


class RunFolder:
    """One run's folder. In a multi-process run only process 0 writes.

    Args:
      path: the folder; created where missing.
      config: what the run is. A folder that holds another configuration is refused,
        unless only its `steps` are fewer: then the run goes on.
      command: how to start this run again, for messages.
    """

    def __init__(self, path: Path | str, config: dict[str, Any], *, command: str = ""):
        self.path = Path(path)
        self.config = json.loads(json.dumps(config))
        self.command = command
        self.primary = jax.process_index() == 0
        self.writable = True
        self._lock = None
        self._begun = False

    def __enter__(self) -> "RunFolder":
        if self.primary:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(
                    f"`out` should be a folder, but {self.path} cannot be made: "
                    f"{error.strerror}"
                ) from None
            self._acquire()
            try:
                self._check_config()
            except BaseException:
                self._release()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def _acquire(self) -> None:
        try:
            file = open(self.path / ".lock", "a+", encoding="utf-8")  # noqa: SIM115
        except OSError:
            self.writable = False
            return
        if fcntl is None:
            file.close()
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise UserError(
                f"`out` {self.path} is in use by {holder}; wait for it, stop it, or "
                "choose another folder"
            ) from None
        except OSError as error:
            warnings.warn(f"{self.path} cannot be locked: {error}", stacklevel=3)
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        self._lock = file

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _check_config(self) -> None:
        path = self.path / "config.json"
        if not path.exists():
            self._set_aside()
        else:
            old = read_json(path)
            old.pop("environment", None)
            old.pop("command", None)
            self._begun = old == self.config
            if not self._begun and not self._is_longer(old):
                raise UserError(
                    f"`out` should be a new folder or that of this run, but {self.path}"
                    f" holds another: {_differences(old, self.config)}; choose another "
                    "folder, or give the settings of the run in it"
                )

    def _set_aside(self) -> None:
        """Checkpoints without their configuration are of nobody knows which run."""
        names = ("checkpoints", METRICS, TIMING)
        there = [name for name in names if (self.path / name).exists()]
        steps = self.path / "checkpoints"
        if not self.writable or not steps.is_dir() or not any(steps.iterdir()):
            return
        aside = Path(tempfile.mkdtemp(prefix="unknown_run-", dir=self.path))
        for name in there:
            (self.path / name).rename(aside / name)
        warnings.warn(
            f"{self.path} has checkpoints, but no config.json that says of which run; "
            f"they are now in {aside}, and this run begins anew",
            stacklevel=5,
        )

    def _is_longer(self, old: dict[str, Any]) -> bool:
        """Whether the old run was the beginning of this one: only fewer steps."""
        fewer, more = old.get("steps"), self.config.get("steps")
        same = {**old, "steps": more} == self.config
        if not isinstance(fewer, int) or not isinstance(more, int):
            return False
        return same and fewer < more

    def begin(self) -> None:
        """Writes config.json: from now on the folder is that of this run."""
        if self.primary and not self._begun:
            self._check_writable()
            more = {"command": self.command, "environment": environment()}
            write_json(self.path / "config.json", {**self.config, **more})
            self._begun = True

    def append(self, name: str, record: dict[str, Any]) -> None:
        """Adds a line to a .jsonl file; the system has it when this returns."""
        self.begin()
        if self.primary:
            self._check_writable()
            try:
                with open(self.path / name, "a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
            except OSError as error:
                raise UserError(
                    f"{self.path / name} cannot be written: {error.strerror}; make "
                    "room, then the same command goes on"
                ) from None

    def truncate(self, step: int) -> None:
        """Forgets records after `step`: a resumed run writes them again."""
        if not self.primary:
            return
        for name in (METRICS, TIMING):
            path = self.path / name
            lines = read_lines(path)
            kept = [line for line in lines if line["step"] <= step]
            if len(kept) < len(lines) or _is_torn(path):
                write_text(path, "".join(json.dumps(line) + "\n" for line in kept))

    def seconds(self) -> float:
        """Seconds of training so far, over all starts of this run."""
        return sum(line["seconds"] for line in read_lines(self.path / TIMING))

    def write(self, name: str, content: Any) -> None:
        """Writes a JSON file of the run atomically.

        In a read-only folder it says so and goes on: what was measured is shown.
        """
        if self.primary and not self.writable:
            text = f"{self.path} is read-only: {name} is shown, but not written"
            warnings.warn(text, stacklevel=2)
            return
        self.begin()
        if self.primary:
            write_json(self.path / name, content)

    def _check_writable(self) -> None:
        if not self.writable:
            raise UserError(
                f"`out` should be writable to train in, but {self.path} is read-only"
            )
