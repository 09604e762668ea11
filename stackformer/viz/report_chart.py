"""Accuracy over length as an inline SVG that follows the page's colours."""

import html
import json
from collections.abc import Sequence
from typing import Any

WIDTH, HEIGHT = 380, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 38, 10, 16, 30


def accuracy_chart(
    curve: dict[str, Any],
    *,
    title: str,
    paper: float | None = None,
    scored: Sequence[int] | None = None,
) -> str:
    """A chart: each seed thin, their mean thick, the training range shaded.

    Args:
      curve: `seeds` (one list of accuracies a seed, of lengths 1, 2, ...),
        `train_length` and `chance` (or None).
      title: for people who do not see it.
      paper: the paper's mean accuracy, drawn over the lengths of `scored`.
      scored: first and last length of the score.

    Returns:
      An `svg` element; classes, not colours.

    Example:
      >>> svg = accuracy_chart(
      ...     {"seeds": [[1.0, 0.5]], "train_length": 1, "chance": 0.5}, title="RS"
      ... )
      >>> svg.startswith("<svg") and svg.count("<polyline")
      1
    """
    seeds = curve["seeds"]
    longest = len(seeds[0])
    mean = [sum(values) / len(values) for values in zip(*seeds, strict=True)]

    def x(length: float) -> float:
        share = (length - 1) / max(1, longest - 1)
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 1)

    def y(accuracy: float) -> float:
        return round(HEIGHT - _BOTTOM - accuracy * (HEIGHT - _TOP - _BOTTOM), 1)

    def line(values: Sequence[float], kind: str) -> str:
        points = " ".join(f"{x(n)},{y(v)}" for n, v in enumerate(values, 1))
        return f'<polyline class="{kind}" points="{points}"/>'

    base, train = y(0), min(curve["train_length"], longest)
    parts = [
        f'<rect class="trained" x="{x(1)}" y="{y(1)}" width="{x(train) - x(1):.1f}" '
        f'height="{base - y(1):.1f}"/>',
        f'<text class="label" x="{x(1) + 3}" y="{_TOP - 5}">trained 1–{train}</text>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(
            f'<path class="grid" d="M{x(1)} {y(share)}H{x(longest)}"/>'
            f'<text class="tick" x="{_LEFT - 5}" y="{y(share) + 3.5}" '
            f'text-anchor="end">{share:.0%}</text>'
        )
    for length in _ticks(longest):
        parts.append(
            f'<text class="tick" x="{x(length)}" y="{base + 13}" '
            f'text-anchor="middle">{length}</text>'
        )
    middle = (x(1) + x(longest)) / 2
    parts.append(
        f'<text class="label" x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">'
        "length of the input</text>"
    )
    keys = [("mean", "measured")]
    if curve.get("chance") is not None:
        level = y(curve["chance"])
        parts.append(f'<path class="chance" d="M{x(1)} {level}H{x(longest)}"/>')
        keys.append(("chance", "chance"))
    if len(seeds) > 1:
        parts += [line(values, "seed") for values in seeds]
    parts.append(line(mean, "mean"))
    if paper is not None and scored is not None:
        first, last = x(scored[0]), x(min(scored[1], longest))
        parts.append(f'<path class="paper-line" d="M{first} {y(paper)}H{last}"/>')
        keys.append(("paper-line", "paper"))
    parts.append(_legend(keys))
    parts.append('<path class="cursor" d=""/><text class="reading" y="11"></text>')
    name = (
        f"{title}: accuracy {mean[train - 1]:.1%} at length {train}, "
        f"{mean[-1]:.1%} at length {longest}"
    )
    data = json.dumps(
        {
            "mean": [round(value, 4) for value in mean],
            "left": _LEFT,
            "right": WIDTH - _RIGHT,
            "top": y(1),
            "bottom": base,
        },
        separators=(",", ":"),
    )
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(name, quote=True)}" '
        f'data-chart="{html.escape(data, quote=True)}">{"".join(parts)}</svg>'
    )


def _legend(keys: Sequence[tuple[str, str]]) -> str:
    """Line samples with their names, at the upper right, above the curves."""
    parts, right = [], WIDTH - _RIGHT
    for kind, name in reversed(keys):
        right -= 6 * len(name) + 22
        parts.append(
            f'<path class="{kind}" d="M{right} {_TOP - 8}h14"/>'
            f'<text class="label" x="{right + 17}" y="{_TOP - 5}">{name}</text>'
        )
    return f'<g class="legend">{"".join(parts)}</g>'


def _ticks(longest: int) -> list[int]:
    """1 and a few round lengths.

    >>> _ticks(100)
    [1, 20, 40, 60, 80, 100]
    """
    steps = (1, 2, 5, 10, 20, 50, 100, 200, 500)
    step = next((s for s in steps if longest / s <= 6), longest // 6)
    return (
        [1, *range(step, longest + 1, step)] if step > 1 else [*range(1, longest + 1)]
    )
