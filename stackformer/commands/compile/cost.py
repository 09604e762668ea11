"""What a compiled program says of itself: loops, launches, cycles, collectives.

Static: read off the text of the program, never run. The trip counts of loops are
respected where the program shows them; otherwise a loop counts once and the sum is "at
least". So it is where a Pallas kernel runs on a TPU: nothing estimates its cycles.
"""

import dataclasses
import re

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?%?([\w.\-]+) = (?:\(.*?\)|\S+) ([a-z][\w\-]*)\("
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_LIMIT = re.compile(r"%?([\w.\-]+) = s32\[\]\S* constant\((\d+)\)")
_COMPARE = re.compile(r"compare\((?:s32\S* )?%?[\w.\-]+, (?:s32\S* )?%?([\w.\-]+)\)")
# What a GPU does not launch a kernel for.
_FREE = frozenset(
    {
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while"),
        *("conditional", "call", "after-all", "partition-id", "replica-id"),
        *("async-done", "copy-done", "all-reduce-done", "all-gather-done"),
        *("collective-permute-done", "opt-barrier"),
    }
)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Sums over a whole program.

    Attributes:
      cycles: the TPU compiler's own estimates; 0 for other platforms.
      launches: kernels that a GPU would launch.
      collectives: how often each kind of communication happens.
      exact: whether all of it was known: every trip count, every kernel.
    """

    cycles: int = 0
    launches: int = 0
    collectives: dict[str, int] = dataclasses.field(default_factory=dict)
    exact: bool = True

    def __add__(self, other: "Cost") -> "Cost":
        names = {**self.collectives, **other.collectives}
        return Cost(
            self.cycles + other.cycles,
            self.launches + other.launches,
            {
                name: self.collectives.get(name, 0) + other.collectives.get(name, 0)
                for name in names
            },
            self.exact and other.exact,
        )

    def __mul__(self, times: int) -> "Cost":
        counted = {name: times * n for name, n in self.collectives.items()}
        return Cost(times * self.cycles, times * self.launches, counted, self.exact)


def static_cost(text: str) -> Cost:
    """The cost of a program in HLO text, from `compiled.as_text()`.

    Of the branches of a conditional the most expensive counts.
    """
    computations, entry = _computations(text)
    known: dict[str, Cost] = {}

    def of(name: str) -> Cost:
        if name not in known:
            known[name] = Cost()  # a cycle cannot happen, but must not hang either
            total = Cost()
            for line in computations.get(name, ()):
                total += _instruction(line, of, computations)
            known[name] = total
        return known[name]

    return of(entry)


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    found: dict[str, list[str]] = {}
    entry, current = "", None
    for line in text.splitlines():
        start = _COMPUTATION.match(line)
        if start:
            current = found.setdefault(start[2], [])
            entry = start[2] if start[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None:
            current.append(line)
    return found, entry


def _instruction(line, of, computations) -> Cost:
    match = _INSTRUCTION.match(line)
    if match is None:
        return Cost()
    operation = match[2]
    if operation == "while":
        body, condition = _named(line, "body"), _named(line, "condition")
        trips = _trips(line, computations.get(condition, ()))
        inside = of(body) + of(condition)
        if trips is None:
            return dataclasses.replace(inside, exact=False)
        return inside * trips
    if operation == "conditional":
        branches = [of(name) for name in _branches(line)]
        return max(branches, key=lambda c: (c.cycles, c.launches), default=Cost())
    if operation == "call":
        return of(_named(line, "to_apply"))
    cycles = _CYCLES.search(line)
    # The compiler says nothing of what a Pallas kernel costs on a TPU.
    unknown = operation == "custom-call" and "tpu_custom_call" in line
    kind = operation.removesuffix("-start")
    return Cost(
        cycles=int(cycles[1]) if cycles else 0,
        launches=0 if operation in _FREE else 1,
        collectives={kind: 1} if kind in COLLECTIVES else {},
        exact=not unknown,
    )


def _named(line: str, role: str) -> str:
    match = re.search(rf"\b{role}=%?([\w.\-]+)", line)
    return match[1] if match else ""


def _branches(line: str) -> list[str]:
    match = re.search(r"branch_computations=\{([^}]*)\}", line)
    if match:
        return [name.strip().lstrip("%") for name in match[1].split(",")]
    roles = ("true_computation", "false_computation")
    return [name for role in roles if (name := _named(line, role))]


def _trips(line: str, condition) -> int | None:
    """How often a loop runs: as written beside it, or the limit of its counter."""
    known = _TRIPS.search(line)
    if known:
        return int(known[1])
    limits = {m[1]: int(m[2]) for text in condition if (m := _LIMIT.search(text))}
    for text in condition:
        compared = _COMPARE.search(text)
        if compared and "direction=LT" in text and compared[1] in limits:
            return limits[compared[1]]
    return None
