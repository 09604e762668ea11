"""Compiles programs and says what the compiler says of them."""

import dataclasses
import time
from collections.abc import Iterable
from typing import Any

from stackformer.commands.compile.cost import static_cost
from stackformer.commands.compile.programs import Program

_LABELS = {
    "tpu": "cycles: the sum of the compiler's estimates, not a measurement",
    "gpu": "launches: kernels that the compiled program starts, not a measurement",
    "cpu": "launches: operations of the compiled program, not a measurement",
}
# A GPU that is there times Triton's products against cuBLAS's; for one that is not XLA
# guesses tilings, which fails for some shapes (928 x 256), so products go to cuBLAS.
_OPTIONS = {"gpu": {"xla_gpu_enable_triton_gemm": False}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """A row of the table.

    Attributes:
      name: of the program.
      error: why it does not compile, or None.
      compile_seconds: tracing and compiling, on this machine.
      argument_mib, temp_mib: memory on each device.
      collectives: how often each kind of communication happens.
      cycles: the TPU compiler's estimate; None elsewhere.
      launches: of kernels on a GPU; None on a TPU.
      exact: False where a trip count or a kernel's cost is unknown: "at least".
    """

    name: str
    error: str | None = None
    compile_seconds: float | None = None
    argument_mib: float | None = None
    temp_mib: float | None = None
    collectives: dict[str, int] = dataclasses.field(default_factory=dict)
    cycles: int | None = None
    launches: int | None = None
    exact: bool = True


def compile_all(programs: Iterable[Program], platform: str) -> list[Compiled]:
    """Compiles one program after another; prints a row as soon as there is one."""
    print(_LABELS[platform])
    print(
        f"{'program':<44}{'compile s':>10}{'args MiB':>10}{'temp MiB':>10}"
        f"{'cycles' if platform == 'tpu' else 'launches':>16}  collectives"
    )
    rows = []
    for program in programs:
        rows.append(compile_one(program, platform))
        print(line(rows[-1]), flush=True)
    return rows


def compile_one(program: Program, platform: str) -> Compiled:
    """Compiles a program; what the compiler refuses is a row too."""
    start = time.perf_counter()
    try:
        compiled: Any = program.lower().compile(_OPTIONS.get(platform))
    except Exception as error:  # a compiler may raise anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        return Compiled(name=program.name, error=reason)
    seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    cost = static_cost(compiled.as_text())
    tpu = platform == "tpu"
    return Compiled(
        name=program.name,
        compile_seconds=round(seconds, 1),
        argument_mib=round(memory.argument_size_in_bytes / 2**20, 2),
        temp_mib=round(memory.temp_size_in_bytes / 2**20, 2),
        collectives=cost.collectives,
        cycles=cost.cycles if tpu else None,
        launches=None if tpu else cost.launches,
        exact=cost.exact,
    )


def line(row: Compiled) -> str:
    """A row as text.

    >>> line(Compiled(name="scan", error="ValueError: no"))
    'scan                                        does not compile: ValueError: no'
    """
    if row.error is not None:
        return f"{row.name:<44}does not compile: {row.error}"
    cost = row.launches if row.cycles is None else row.cycles
    shown = f"{'' if row.exact else '>= '}{cost:,}"
    kinds = ", ".join(f"{count} {name}" for name, count in row.collectives.items())
    return (
        f"{row.name:<44}{row.compile_seconds:>10.1f}{row.argument_mib:>10.1f}"
        f"{row.temp_mib:>10.1f}{shown:>16}  {kinds or '-'}"
    )
