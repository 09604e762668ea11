"""Frames: which items lie in which bracket, and what a pop returned."""

import dataclasses
import html
import json
import re
from collections.abc import Sequence
from importlib import resources

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from stackformer.viz.explore import ExplorerPage
from stackformer.viz.stack import NOOP, POP, PUSH
from stackformer.viz.style import (
    ATTENTION_CMAP,
    INK,
    MUTED,
    POP_COLOR,
    NotebookFigure,
)

_NAMES = {PUSH: "push", POP: "pop", NOOP: "no-op"}
_UNREAD = "□"


@dataclasses.dataclass(frozen=True)
class FrameStep:
    """What a stack of frames did at one position.

    Attributes:
      symbol: what was read.
      action: "push", "pop" or "no-op".
      frame: the items of the frame after it, oldest first.
      stack: the frames that are still open, outermost first.
      opened: where a pop closed a frame, the position of its push; else None.
      closed: where a pop closed a frame, its items; else None.
      value: where a pop closed a frame, what it returned, as a text; else None.
    """

    symbol: str
    action: str
    frame: tuple[str, ...]
    stack: tuple[tuple[str, ...], ...]
    opened: int | None = None
    closed: tuple[str, ...] | None = None
    value: str | None = None


def frame_steps(
    tokens: Sequence[str],
    choice: Sequence[int] | np.ndarray,
    values: Sequence[str | None] | None = None,
    *,
    num_items: int = 6,
) -> list[FrameStep]:
    """The frames that a string's actions make, step by step.

    Args:
      tokens: T readable symbols; position 0 is the bottom.
      choice: T actions, 0 push, 1 pop, 2 no-op.
      values: what a pop at each position returned, as a text; None where unknown.
      num_items: items that a frame keeps.

    >>> steps = frame_steps("B(1+2)", [2, 0, 2, 2, 2, 1], [None] * 5 + ["3"])
    >>> steps[-1].closed, steps[-1].value, steps[-1].frame
    (('1', '+', '2'), '3', ('B', '[3]'))
    """
    values = values or [None] * len(tokens)
    frame: tuple[str, ...] = ()
    stack: tuple[tuple[str, ...], ...] = ()
    opened: list[int] = []
    steps = []
    for i, (symbol, action) in enumerate(zip(tokens, choice, strict=True)):
        first, closed, value, name = None, None, None, _NAMES[int(action)]
        if i and action == PUSH:
            stack, frame = (*stack, frame), ()
            opened.append(i)
        elif i and action == POP and stack:
            value = values[i] or _UNREAD
            first, closed = opened.pop(), frame
            frame, stack = (*stack[-1], f"[{value}]")[-num_items:], stack[:-1]
        else:
            frame, name = (*frame, symbol)[-num_items:], "no-op"
        steps.append(FrameStep(symbol, name, frame, stack, first, closed, value))
    return steps


def describe_frames(steps: Sequence[FrameStep]) -> str:
    """A table for the terminal: a line for every position.

    >>> print(describe_frames(frame_steps("B(1)", [2, 0, 2, 1])))
    pos  symbol  action  open  frame
      0  B       no-op      0  B
      1  (       push       1
      2  1       no-op      1  1
      3  )       pop        0  B [□]    <- 1
    """
    lines = ["pos  symbol  action  open  frame"]
    for i, step in enumerate(steps):
        line = f"{i:>3}  {step.symbol:<6}  {step.action:<6}  {len(step.stack):>4}  "
        line += " ".join(step.frame)
        if step.closed is not None:
            line += f"    <- {' '.join(step.closed)}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def plot_frames(steps: Sequence[FrameStep], *, title: str = "") -> Figure:
    """The brackets of a string as bars over it, each with the value it returned."""
    heights = _heights(steps)
    top = max(heights.values(), default=0)
    figure = NotebookFigure(figsize=(max(4.0, 0.34 * len(steps)), 1.1 + 0.45 * top))
    axes = figure.add_axes((0.02, 0.04, 0.96, 0.84 if title else 0.92))
    axes.set_xlim(-0.7, len(steps) - 0.3)
    axes.set_ylim(-0.7, top + 0.8)
    axes.axis("off")
    for i, step in enumerate(steps):
        bracket = step.action != "no-op"
        axes.text(
            i,
            0,
            step.symbol,
            ha="center",
            va="center",
            color=MUTED if bracket else INK,
            family="monospace",
            fontsize=12,
        )
    for i, step in enumerate(steps):
        if step.opened is None:
            continue
        height = heights[i]
        axes.add_patch(
            FancyBboxPatch(
                (step.opened - 0.3, height - 0.3),
                i - step.opened + 0.6,
                0.6,
                boxstyle="round,pad=0,rounding_size=0.25",
                facecolor=ATTENTION_CMAP(0.12 + 0.5 * height / max(top, 1)),
                edgecolor="none",
            )
        )
        axes.text(
            (step.opened + i) / 2,
            height,
            step.value or "",
            ha="center",
            va="center",
            color=POP_COLOR if step.value == _UNREAD else INK,
            fontsize=11,
            fontweight="bold",
        )
    if title:
        figure.suptitle(title, x=0.02, ha="left", fontsize=11, color=INK)
    return figure


def _heights(steps: Sequence[FrameStep]) -> dict[int, int]:
    """For every pop that closed a frame, how many brackets it nests, and itself."""
    heights: dict[int, int] = {}
    for i, step in enumerate(steps):
        if step.opened is not None:
            inner = [h for j, h in heights.items() if j > step.opened]
            heights[i] = 1 + max(inner, default=0)
    return heights


def explore_frames(
    steps: Sequence[FrameStep], *, title: str = "Frames", answer: str = ""
) -> ExplorerPage:
    """A page that replays a string: the open frames, the current one, and its value.

    It needs no network. In a notebook the result shows itself inline; `.save(path)`
    writes it.

    >>> page = explore_frames(frame_steps("B(1)", [2, 0, 2, 1]))
    >>> "</html>" in page.html
    True
    """
    data = {
        "answer": answer,
        "steps": [dataclasses.asdict(step) for step in steps],
    }
    folder = resources.files("stackformer.viz") / "frames_page"
    parts = {
        "title": html.escape(title),
        # "</" inside a string would end the script.
        "data": json.dumps(data, ensure_ascii=False).replace("</", "<\\/"),
    }
    page = (folder / "page.html").read_text(encoding="utf-8")
    # One pass: text put in for one placeholder is never searched for another.
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], page)
    return ExplorerPage(page, title)
