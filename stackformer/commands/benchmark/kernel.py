"""(a) The kernel: every form of stack attention against softmax attention."""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

from stackformer.commands.benchmark import contestants
from stackformer.commands.benchmark.timing import Contestant, Timing, measure
from stackformer.ops.stack_attention.forms import FORMS

SHAPES = ((32, 81), (32, 201), (8, 513), (4, 1025), (2, 2049))
QUICK_SHAPES = ((32, 81), (32, 201), (8, 513), (2, 2049))
FEATURES = 64
BOUNDED = f"chunkwise, max_depth={contestants.BOUND}"
SOFTMAX = ("softmax attention", "softmax attention, fused")


@dataclasses.dataclass(frozen=True)
class Shape:
    """One size at which everything is timed."""

    batch: int
    length: int
    features: int = FEATURES
    heads: int = 8

    def __str__(self) -> str:
        return f"B={self.batch} T={self.length} D={self.features}"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A ratio of two times within this run; None where one was not measured."""

    name: str
    measured: float | None


def run(
    *, quick: bool, repeats: int, lengths: tuple[int, ...] | None = None
) -> dict[str, Any]:
    """Verifies and times all kernels; prints tables; returns the JSON record.

    Args:
      quick: fewer sizes and kernels.
      repeats: turns of each kernel.
      lengths: only these T; 129 is the language-model shape.
    """
    shapes = [Shape(b, t) for b, t in (QUICK_SHAPES if quick else SHAPES)]
    shapes.append(Shape(8, 129, 768, 12))
    if lengths is not None:
        shapes = [shape for shape in shapes if shape.length in lengths]
    seconds = 4.0 if quick else 40.0
    verified = _verify(shapes, quick)
    results = {
        str(shape): _time_shape(shape, verified, quick, repeats, seconds)
        for shape in shapes
    }
    both = {shape.length for shape in shapes} >= {513, 2049}
    growth = _growth(repeats, seconds) if both and BOUNDED in verified else None
    record = {
        "shapes": {
            name: {
                direction: {k: dataclasses.asdict(v) for k, v in timings.items()}
                for direction, timings in directions.items()
            }
            for name, directions in results.items()
        },
        "growth": growth,
        "verified": verified,
        "figures": [dataclasses.asdict(f) for f in figures(results, growth)],
    }
    print_figures(figures(results, growth))
    record["dispatch"] = best_table(results)
    return record


def best_table(results: dict[str, dict[str, dict[str, Timing]]]) -> list[dict]:
    """The rows of a dispatch table that this run suggests: the fastest form at each T.

    Of the exact forms, forward + backward, at D = 64; the last row is for any T.
    """
    rows: list[dict[str, Any]] = []
    for name, directions in results.items():
        _, length, features = (int(part.split("=")[1]) for part in name.split())
        timings = directions["forward + backward"]
        forms = {n: row for n in timings if (row := _form_of(n)) is not None}
        if features != FEATURES or not forms:
            continue
        fastest = min(forms, key=lambda n: timings[n].milliseconds)
        if rows and {**rows[-1], "longest": None} == {
            "longest": None,
            **forms[fastest],
        }:
            rows.pop()
        rows.append({"longest": length, **forms[fastest]})
    if rows:
        rows[-1]["longest"] = None
    return rows


def _form_of(name: str) -> dict[str, Any] | None:
    """The form and chunk size behind a contestant's name, if it is an exact form.

    >>> _form_of("chunkwise b=32"), _form_of("chunkwise, max_depth=64")
    ({'implementation': 'chunkwise', 'chunk_size': 32}, None)
    """
    labels = {contestants.LABELS.get(form, form): form for form in FORMS}
    label, _, size = name.partition(" b=")
    if label not in labels:
        return None
    return {"implementation": labels[label]} | (
        {"chunk_size": int(size)} if size else {}
    )


def _verify(shapes: list[Shape], quick: bool) -> dict[str, float]:
    """Errors of the kernels that equal the reference; the others are not timed."""
    kernels: dict[str, contestants.Kernel] = {}
    for shape in shapes:
        kernels |= contestants.stack_kernels(shape.length, quick=quick)
    verified = {}
    for name, kernel in kernels.items():
        if name == contestants.LABELS["reference"]:  # the reference itself
            verified[name] = 0.0
            continue
        bound = contestants.BOUND if name == BOUNDED else None
        error = contestants.error_against_reference(kernel, max_depth=bound)
        if _right(name, error, "the reference"):
            verified[name] = error
    worst = max(verified.values(), default=0.0)
    print(f"{len(verified)} of {len(kernels)} kernels verified, errors <= {worst:.1e}")
    return verified


def _right(name: str, error: float, against: str) -> bool:
    if error <= contestants.TOLERANCE:
        return True
    print(f"NOT timed: {name} differs from {against} by {error:.1e}", file=sys.stderr)
    return False


def _time_shape(
    shape: Shape, verified: dict[str, float], quick: bool, repeats: int, seconds: float
) -> dict[str, dict[str, Timing]]:
    inputs = contestants.random_inputs(shape.batch, shape.length, shape.features)
    candidates = contestants.stack_kernels(
        shape.length, quick=quick, bounded=shape.heads == 8
    )
    kernels = {name: k for name, k in candidates.items() if name in verified}
    wanted = contestants.exact_tops(inputs)
    checks = {name: _check(name, wanted, shape) for name in kernels}
    if BOUNDED in kernels:
        wanted = contestants.exact_tops(inputs, contestants.BOUND)
        checks[BOUNDED] = _check(BOUNDED, wanted, shape)
    for name in SOFTMAX:
        kernels[name] = contestants.softmax_attention(
            shape.heads, fused=name.endswith("fused")
        )
    both = [
        Contestant(name, contestants.with_gradient(kernel), inputs, checks.get(name))
        for name, kernel in kernels.items()
    ]
    directions = {"forward + backward": both}
    if not quick:
        directions["forward"] = [
            Contestant(name, kernel, inputs[:2]) for name, kernel in kernels.items()
        ]
    timed = {
        direction: measure(
            group, repeats=repeats, seconds=seconds, label=f"{shape} {direction}"
        )
        for direction, group in directions.items()
    }
    for direction, timings in timed.items():
        print_table(f"{shape}, {direction}, {shape.heads} heads", timings)
    return timed


def _check(name: str, wanted, shape: Shape) -> Callable[[Any], bool]:
    """Says whether the tops in a kernel's first result at the timed shape are right."""

    def accept(result: tuple) -> bool:
        error = contestants.error(result[0], wanted)
        return _right(name, error, f"the recurrent form at {shape}")

    return accept


def _growth(repeats: int, seconds: float) -> dict[str, float]:
    """Milliseconds of the bounded stack at T = 513 and at 2049, the same batch.

    Timed by themselves: softmax attention at T = 2049 takes all caches.
    """
    kernel = contestants.form(implementation="chunkwise", max_depth=contestants.BOUND)
    runs = [
        Contestant(
            str(length),
            contestants.with_gradient(kernel),
            contestants.random_inputs(2, length, FEATURES),
        )
        for length in (513, 2049)
    ]
    timings = measure(runs, repeats=repeats, seconds=seconds, label="growth")
    return {name: timing.milliseconds for name, timing in timings.items()}


def softmax_time(timings: dict[str, Timing]) -> float:
    """Milliseconds of the faster of the two softmax attentions."""
    return min(timings[name].milliseconds for name in SOFTMAX)


def figures(
    results: dict[str, dict[str, dict[str, Timing]]], growth: dict[str, float] | None
) -> list[Figure]:
    """The ratios that matter, forward + backward, within this run."""

    def of(shape: Shape) -> dict[str, Timing]:
        return results.get(str(shape), {}).get("forward + backward", {})

    def chunkwise(timings):
        found = [
            t.milliseconds for n, t in timings.items() if n.startswith("chunkwise b")
        ]
        return min(found, default=None)

    def best(timings):
        found = [
            t.milliseconds for n, t in timings.items() if n not in (*SOFTMAX, BOUNDED)
        ]
        return min(found, default=None)

    def ratio(first, second):
        return None if first is None or second is None else first / second

    def bounded(timings):
        return timings[BOUNDED].milliseconds if BOUNDED in timings else None

    def scan(timings):
        found = timings.get("scan, custom VJP")
        return found.milliseconds if found else None

    long, middle, short = of(Shape(8, 513)), of(Shape(32, 201)), of(Shape(32, 81))
    longest, language = of(Shape(2, 2049)), of(Shape(8, 129, 768, 12))

    def softmax(timings):
        return softmax_time(timings) if timings else None

    rows = (
        ("T=513 B=8: chunkwise / scan", ratio(chunkwise(long), scan(long))),
        ("T=513 B=8: chunkwise / softmax", ratio(chunkwise(long), softmax(long))),
        ("T=201 B=32: chunkwise / softmax", ratio(chunkwise(middle), softmax(middle))),
        ("T=81 B=32: best form / softmax", ratio(best(short), softmax(short))),
        (
            "T=2049 B=2: max_depth=64 / softmax",
            ratio(bounded(longest), softmax(longest)),
        ),
        ("max_depth=64: T=2049 / T=513", ratio(*_pair(growth))),
        (
            "T=129 B=8 D=768: best form / softmax, 12 heads",
            ratio(best(language), softmax(language)),
        ),
    )
    return [Figure(*row) for row in rows]


def _pair(growth):
    return (growth["2049"], growth["513"]) if growth else (None, None)


def print_table(title: str, timings: dict[str, Timing]) -> None:
    """One line a contestant, with the ratio to the faster softmax attention."""
    base = softmax_time(timings)
    print(f"\n{title}")
    print(f"  {'':<28}{'ms':>10}{'/ softmax':>11}{'compile s':>11}{'temp MiB':>10}")
    for timing in timings.values():
        print(
            f"  {timing.name:<28}{timing.milliseconds:>10.2f}"
            f"{timing.milliseconds / base:>11.2f}{timing.compile_seconds:>11.1f}"
            f"{timing.temp_mib:>10.1f}"
        )


def print_figures(rows: list[Figure]) -> None:
    """The ratios, with - where a time was not measured."""
    print(f"\n{'ratios, forward + backward':<50}{'measured':>10}")
    for row in rows:
        measured = "-" if row.measured is None else f"{row.measured:.3f}"
        print(f"{row.name:<50}{measured:>10}")
