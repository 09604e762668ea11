"""Ways to run one cell: a local process, or a job through submitit.

Both give a handle with `poll()` (None while it runs, else the exit code), `stop()` (the
run saves and ends; the same command goes on later) and `kill()`.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    # A job imports this module, and should not have to import JAX for it.
    from stackformer.commands.tables.cells import Cell

PYTHON = sys.executable
LOG = "log.txt"
_STOP = "stop-request"


class Handle(Protocol):
    """A started cell."""

    def poll(self) -> int | None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


def _start_process(command: list[str], folder: Path) -> subprocess.Popen:
    """Starts a command in a session of its own; its output goes to the log.

    In its own session a Ctrl-C in the terminal reaches only the runner, which then
    stops its cells in order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOG, "ab") as log:
        return subprocess.Popen(
            [*command, "--no_progress"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Several runs on one GPU: none takes all of its memory at once.
            env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ},
        )


class LocalLauncher:
    """Runs a cell as a child process.

    Args:
      jobs: how many run at a time. Where the system can, each gets its own share of the
        CPU cores: two programs with a thread on every core wait for each other.
    """

    def __init__(self, jobs: int = 1) -> None:
        cores = []
        if hasattr(os, "sched_getaffinity"):  # Linux
            cores = sorted(os.sched_getaffinity(0))
        self._shares = [cores[job::jobs] for job in range(jobs)]
        self._running: dict[int, Handle] = {}

    def start(self, cell: "Cell") -> Handle:
        process = _start_process([PYTHON, *cell.arguments], cell.folder)
        handle = _LocalHandle(process)
        for job, share in enumerate(self._shares):
            if job not in self._running or self._running[job].poll() is not None:
                self._running[job] = handle
                if share:
                    with contextlib.suppress(ProcessLookupError):  # ended already
                        os.sched_setaffinity(process.pid, share)
                break
        return handle


class _LocalHandle:
    def __init__(self, process: subprocess.Popen):
        self._process = process
        self.poll = process.poll

    def stop(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class SubmititLauncher:
    """Sends a cell to a SLURM cluster, or to submitit's local executor.

    Args:
      folder: for submitit's scripts and logs.
      cluster: "slurm", "local" or None for what submitit finds.
      parameters: of `AutoExecutor.update_parameters`, such as timeout_min.
    """

    def __init__(
        self, folder: Path, cluster: str | None = None, **parameters: Any
    ) -> None:
        from stackformer.training.errors import UserError

        if cluster == "slurm" and shutil.which("srun") is None:
            raise UserError(
                "--cluster=slurm should be given where SLURM is, but there is no srun "
                "on the PATH; --cluster=local runs the jobs on this machine"
            )
        try:
            import submitit
        except ImportError:
            raise UserError(
                "--launcher=submitit needs submitit: pip install "
                "'stackformer-jax[tables]', or in a clone pip install -e '.[tables]'"
            ) from None
        self._executor = submitit.AutoExecutor(folder=str(folder), cluster=cluster)
        try:
            self._executor.update_parameters(
                **{"timeout_min": 24 * 60, "name": "stackformer", **parameters}
            )
        except (NameError, TypeError, ValueError) as error:
            raise UserError(f"--submitit: {error}") from None

    def start(self, cell: "Cell") -> Handle:
        folder = cell.folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _STOP).unlink(missing_ok=True)
        command = [PYTHON, *cell.arguments[:-1], f"--out={folder}"]
        return _JobHandle(self._executor.submit(CellJob(command, str(folder))), folder)


class CellJob:
    """What runs inside a job: the cell's command, stopped by a file in its folder.

    Where the job's time is over, submitit calls `checkpoint` and queues it again: the
    run goes on from its newest checkpoint.
    """

    def __init__(self, command: list[str], folder: str):
        self.command, self.folder = command, folder
        self._process: subprocess.Popen | None = None

    def __call__(self) -> int:
        stop = Path(self.folder) / _STOP
        self._process = _start_process(self.command, Path(self.folder))
        asked = False
        while (code := self._process.poll()) is None:
            if not asked and stop.exists():
                self._process.terminate()
                asked = True
            time.sleep(0.2)
        return code

    def checkpoint(self) -> Any:
        import submitit

        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        return submitit.helpers.DelayedSubmission(CellJob(self.command, self.folder))


class _JobHandle:
    def __init__(self, job: Any, folder: Path):
        self._job, self._folder = job, folder

    def poll(self) -> int | None:
        if not self._job.done():
            return None
        try:
            return int(self._job.result())
        except Exception as error:
            # The job itself failed: its last words belong into the cell's log.
            last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            with open(self._folder / LOG, "a", encoding="utf-8") as log:
                log.write(f"error: job {self._job.job_id}: {last[0]}\n")
            return 1

    def stop(self) -> None:
        (self._folder / _STOP).touch()

    def kill(self) -> None:
        with contextlib.suppress(Exception):
            self._job.cancel()


def reason(folder: Path, lines: int = 4) -> str:
    """Why a cell broke: its error message, or the last lines of its log."""
    try:
        text = (folder / LOG).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "it left no log"
    words = [line.rstrip() for line in text.splitlines() if line.strip()][-40:]
    for index in reversed(range(len(words))):
        if words[index].startswith("error: "):
            return "\n".join(words[index:][:12])
    return "\n".join(words[-lines:]) or "it wrote nothing to its log"
