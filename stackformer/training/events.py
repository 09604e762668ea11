"""TensorBoard events, where tensorboardX is installed."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

try:
    import tensorboardX
except ImportError:
    tensorboardX = None


class Events:
    """Writes the numbers of a record as scalars, a curve for each seed.

    Args:
      directory: where the event files go.
      seeds: names of the curves.
      step: events after this step, of an earlier start of the run, are dropped.
      enabled: False makes every method do nothing, as a missing tensorboardX does.
    """

    def __init__(
        self, directory: Path, seeds: tuple[int, ...], *, step: int, enabled: bool
    ):
        self._seeds = seeds
        self._writer = None
        if enabled and tensorboardX is not None:
            with contextlib.suppress(OSError):  # curves are no reason to stop
                self._writer = tensorboardX.SummaryWriter(
                    str(directory), purge_step=step + 1
                )

    def write(self, record: dict[str, Any]) -> None:
        """Adds every number, or list of one number a seed, of a record."""
        if self._writer is None or not self._alive():
            return
        for name, value in record.items():
            if isinstance(value, dict):
                inner = {f"{name}/{key}": x for key, x in value.items()}
                self.write({"step": record["step"], **inner})
            elif name != "step":
                values = np.broadcast_to(value, len(self._seeds))
                for seed, number in zip(self._seeds, values, strict=True):
                    self._writer.add_scalar(
                        f"{name}/seed_{seed}", number, record["step"]
                    )

    def close(self) -> None:
        """Writes what waits; a disk that is full is no error here."""
        if self._writer is None:
            return
        try:
            self._writer.close()
        except OSError:
            self._forget()

    def _alive(self) -> bool:
        """Whether the thread that writes is there: without it the queue would fill."""
        worker = getattr(_event_writer(self._writer), "_worker", None)
        if worker is not None and not worker.is_alive():
            self._forget()
        return self._writer is not None

    def _forget(self) -> None:
        """Gives up writing, also when the process ends."""
        writer = _event_writer(self._writer)
        if writer is not None:
            writer._closed = True
        self._writer = None


def _event_writer(writer: Any) -> Any:
    return getattr(getattr(writer, "file_writer", None), "event_writer", None)
