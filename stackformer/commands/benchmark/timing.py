"""Fair timings: one process, compiled ahead, warmed up, interleaved, medians."""

import dataclasses
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import tqdm


@dataclasses.dataclass(frozen=True)
class Contestant:
    """Something to time: a function of arrays that JAX can compile.

    `accept` sees the result of the first call; where it returns False the contestant is
    not timed.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    accept: Callable[[Any], bool] | None = None


@dataclasses.dataclass(frozen=True)
class Timing:
    """What was measured of a contestant.

    Attributes:
      name: of the contestant.
      milliseconds: median of the repeats.
      fastest: the fastest repeat, in milliseconds.
      compile_seconds: tracing and compiling; 0 where nothing was compiled here.
      temp_mib: XLA's temporary memory; 0 where nothing was compiled here.
      repeats: how often it ran.
    """

    name: str
    milliseconds: float
    fastest: float
    compile_seconds: float
    temp_mib: float
    repeats: int


def measure(
    contestants: Sequence[Contestant], *, repeats: int, seconds: float, label: str
) -> dict[str, Timing]:
    """Times all contestants, taking turns.

    Args:
      contestants: compiled here, each run once before the clock starts.
      repeats: turns of each, at least three.
      seconds: no further turn begins after so many seconds.
      label: shown beside the progress bar.
    """
    programs = {}
    for contestant in tqdm.tqdm(contestants, f"compile {label}", leave=False):
        start = time.perf_counter()
        program = jax.jit(contestant.function).lower(*contestant.arguments).compile()
        compile_seconds = time.perf_counter() - start
        memory = program.memory_analysis()
        temp = memory.temp_size_in_bytes / 2**20 if memory else 0.0
        result = jax.block_until_ready(program(*contestant.arguments))
        if contestant.accept is not None and not contestant.accept(result):
            continue
        programs[contestant.name] = (
            lambda p=program, c=contestant: p(*c.arguments),
            compile_seconds,
            temp,
        )
    times = take_turns(
        {name: run for name, (run, _, _) in programs.items()},
        repeats=repeats,
        seconds=seconds,
        label=label,
    )
    return {
        name: summarize(name, times[name], compile_seconds, temp)
        for name, (_, compile_seconds, temp) in programs.items()
    }


def take_turns(
    runs: dict[str, Callable[[], Any]], *, repeats: int, seconds: float, label: str
) -> dict[str, list[float]]:
    """Calls every function in turn; the seconds that each call took."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    for turn in tqdm.tqdm(range(repeats), f"time {label}", leave=False):
        if turn >= 3 and time.perf_counter() > end:
            break
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            times[name].append(time.perf_counter() - start)
    return times


def summarize(
    name: str, times: list[float], compile_seconds: float = 0.0, temp_mib: float = 0.0
) -> Timing:
    """The median of repeats, and what was said of the compilation."""
    return Timing(
        name=name,
        milliseconds=1e3 * statistics.median(times),
        fastest=1e3 * min(times),
        compile_seconds=compile_seconds,
        temp_mib=temp_mib,
        repeats=len(times),
    )


def machine() -> dict[str, Any]:
    """Where the figures come from, for the JSON file."""
    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "jax": jax.__version__,
    }
