"""The stack explorer: one self-contained page that replays a string on a soft stack."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from stackformer.viz.stack import Layers, action_names, check_actions

if TYPE_CHECKING:
    import jax

# One truth value for each position.
Flags: TypeAlias = "np.ndarray | jax.Array | Sequence[bool]"

MAX_POSITIONS = 1000
_CLASSES_SHOWN = 5
_SCRIPTS = ("soft_stack.js", "draw.js", "explorer.js")


class ExplorerPage:
    """The page of `explore`: shows itself in a notebook; `save` writes it to a file."""

    def __init__(self, page: str, title: str) -> None:
        self.html = page
        self.title = title

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to `path` and return it."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.html, encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        return (
            f'<iframe title="{html.escape(self.title)}" sandbox="allow-scripts" '
            'style="width:100%;height:780px;border:0" '
            f'srcdoc="{html.escape(self.html)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"ExplorerPage({self.title!r}, {len(self.html) // 1024} KiB)"


def explore(
    tokens: Sequence[str],
    actions: Layers,
    *,
    probabilities: ArrayLike | None = None,
    symbols: Sequence[str] | None = None,
    targets: Sequence[str | None] | None = None,
    predicted: Flags | None = None,
    titles: Sequence[str] | None = None,
    title: str = "Stack explorer",
) -> ExplorerPage:
    """A page that replays one string: soft stack, actions, top and prediction.

    The page computes the soft stack of every layer in the browser, exactly, from the
    action probabilities (`depth_distribution` is the same in NumPy). It needs no
    network. In a notebook the result shows itself inline; `.save(path)` writes it.

    Args:
      tokens: T readable symbols; position 0 is the bottom of the stack.
      actions: (T, A) action probabilities, or a sequence with one entry a layer; an
        entry of shape (S, T, A) gives one panel for each of S stacks.
      probabilities: (T, C) predicted class probabilities at every position.
      symbols: C readable classes, needed with `probabilities`.
      targets: T right answers, None where there is none or it does not count.
      predicted: (T,) bool, the positions at which there is a prediction; default:
        where `targets` has an answer, or everywhere without `targets`.
      titles: one title a layer, default "Layer 1", "Layer 2", ...
      title: title of the page.

    >>> push, pop = [0.98, 0.01, 0.01], [0.01, 0.98, 0.01]
    >>> page = explore(["bottom", "a", "b", "M"], [push, push, push, pop])
    >>> "</html>" in page.html
    True
    """
    tokens = [str(token) for token in tokens]
    T = len(tokens)
    if not 1 <= T <= MAX_POSITIONS:
        raise ValueError(
            f"tokens should have 1 to {MAX_POSITIONS} positions, but got {T}; "
            "explore a shorter string."
        )
    panels, num_actions = _panels(actions, titles, T)
    data = {
        "title": title,
        "tokens": tokens,
        "action_names": action_names(num_actions),
        "panels": panels,
        "predictions": _predictions(T, probabilities, symbols, targets, predicted),
    }
    return ExplorerPage(_assemble(title, data), title)


def _panels(
    actions: Layers, titles: Sequence[str] | None, T: int
) -> tuple[list[dict[str, object]], int]:
    layers = [actions] if np.ndim(_first(actions)) == 1 else list(actions)
    titles = list(titles or (f"Layer {k}" for k in range(1, len(layers) + 1)))
    if not layers or len(titles) != len(layers):
        raise ValueError(
            f"actions should have at least one layer, and titles one entry for each, "
            f"but got {len(layers)} layers and {len(titles)} titles."
        )
    panels, widths = [], set()
    for name, layer in zip(titles, layers, strict=True):
        stacks = np.asarray(layer, dtype=np.float64)
        stacks = stacks if stacks.ndim == 3 else stacks[None]
        for s, stack in enumerate(stacks):
            stack = check_actions(stack, f"actions of {name}")
            if len(stack) != T:
                raise ValueError(
                    f"actions of {name} should have one row for each of the {T} "
                    f"tokens, but got {len(stack)}."
                )
            label = name if len(stacks) == 1 else f"{name}, stack {s + 1}"
            stack = np.clip(stack, 0.0, 1.0)
            stack[0] = 0.0
            numbers = [float(f"{p:.7g}") for p in stack.ravel()]
            panels.append({"name": label, "actions": numbers})
            widths.add(stack.shape[1])
    if len(widths) != 1:
        raise ValueError(
            "actions should have the same number of actions in every layer, but got "
            f"{sorted(widths)}."
        )
    return panels, widths.pop()


def _first(actions: Layers) -> ArrayLike:
    """First entry of an array or sequence: a row (T, A) or a layer of several."""
    if np.asarray(actions).size == 0 if hasattr(actions, "ndim") else not actions:
        raise ValueError("actions should have at least one layer, but got none.")
    return actions[0]


def _predictions(
    T: int,
    probabilities: ArrayLike | None,
    symbols: Sequence[str] | None,
    targets: Sequence[str | None] | None,
    predicted: Flags | None,
) -> list[dict[str, object] | None]:
    """For each position None, or the most probable classes and the right answer."""
    if probabilities is None:
        return [None] * T
    table = np.asarray(probabilities, dtype=np.float64)
    if symbols is None or table.shape != (T, len(symbols)):
        expected = "C" if symbols is None else len(symbols)
        raise ValueError(
            f"probabilities should have shape ({T}, {expected}) and symbols a name for "
            f"each class, but got {table.shape} and "
            f"{'no symbols' if symbols is None else f'{len(symbols)} symbols'}."
        )
    for name, given in (("targets", targets), ("predicted", predicted)):
        if given is not None and len(given) != T:
            raise ValueError(
                f"{name} should have one entry for each of the {T} positions, but got "
                f"{len(given)}."
            )
    answers = [None] * T if targets is None else list(targets)
    if predicted is None:
        predicted = [targets is None or answer is not None for answer in answers]
    result: list[dict[str, object] | None] = []
    for i in range(T):
        if not predicted[i]:
            result.append(None)
            continue
        best = np.argsort(-table[i], kind="stable")[:_CLASSES_SHOWN]
        top = [[str(symbols[c]), float(f"{table[i, c]:.5g}")] for c in best]
        result.append({"top": top, "target": answers[i]})
    return result


def _assemble(title: str, data: dict[str, object]) -> str:
    folder = resources.files("stackformer.viz") / "explorer"

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    parts = {
        "title": html.escape(title),
        "style": read("page.css"),
        "script": "\n".join(read(name) for name in _SCRIPTS),
        "data": _script_json(data),
    }
    # One pass: text put in for one placeholder is never searched for another.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], read("page.html"))


def _script_json(data: object) -> str:
    """JSON that is safe inside a script element: without `<` no tag opens or ends."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
