"""Accuracy over lengths: the picture of length generalization."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stackformer.viz.style import INK, MUTED, PUSH_COLOR, NotebookFigure

_COLORS = (PUSH_COLOR, "#5b45c2", "#d9580d", "#2f855a", "#b83280", "#6b7280")


def plot_length_generalization(
    results: dict[str, Any] | Sequence[dict[str, Any]],
    path: str | Path | None = None,
    *,
    labels: Sequence[str] | None = None,
) -> Figure:
    """Draws token accuracy over the length of the input.

    One line a result: the mean over seeds, with each seed thin behind it. The training
    range of the first result is shaded and its chance level is dashed.

    Args:
      results: the content of a results.json, or several to compare.
      path: where to save the picture (PNG, SVG, ...); not saved if None.
      labels: names of the lines; by default made from model, mode and encoding.

    Returns:
      The figure.

    Example:
      >>> result = {"task": "RS", "model": "rnn", "mode": "mlm", "pos": "none",
      ...           "train_length": 1, "test_length": 2, "chance": 0.5, "mean": 0.75,
      ...           "runs": [{"seed": 0, "per_length": {"1": 1.0, "2": 0.75}}]}
      >>> plot_length_generalization(result).axes[0].get_xlabel()
      'length of the input'
    """
    results = [results] if isinstance(results, dict) else list(results)
    if not results:
        raise ValueError(
            "`results` should hold at least one result, but got an empty list"
        )
    if labels is None:
        labels = [_label(result) for result in results]
    figure = NotebookFigure(figsize=(7.0, 4.0), layout="constrained")
    axes = figure.add_subplot()
    first = results[0]
    axes.axvspan(0.5, first["train_length"] + 0.5, color="#eceaf8", lw=0, zorder=0)
    axes.text(
        (first["train_length"] + 1) / 2,
        1.035,
        "trained",
        color=MUTED,
        ha="center",
        va="center",
        fontsize=9,
    )
    if first.get("chance") is not None:
        axes.axhline(first["chance"], color=MUTED, lw=1, ls="--", label="chance")
    for index, (result, label) in enumerate(zip(results, labels, strict=True)):
        color = _COLORS[index % len(_COLORS)]
        lengths = np.array(sorted(int(n) for n in result["runs"][0]["per_length"]))
        curves = np.array(
            [[run["per_length"][str(n)] for n in lengths] for run in result["runs"]]
        )
        if len(curves) > 1:
            axes.plot(lengths, curves.T, color=color, lw=0.7, alpha=0.45)
        axes.plot(lengths, curves.mean(axis=0), color=color, lw=2, label=label)
    axes.set_xlim(0.5, max(result["test_length"] for result in results) + 0.5)
    axes.set_ylim(0.0, 1.07)
    axes.set_xlabel("length of the input")
    axes.set_ylabel("token accuracy")
    tasks = dict.fromkeys(result["task"] for result in results)
    axes.set_title(", ".join(tasks), loc="left", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", frameon=False)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _label(result: dict[str, Any]) -> str:
    name = f"{result['model']} {result['mode']}"
    if result["pos"] != "none":
        name += f" {result['pos']}"
    return f"{name} (score {result['mean']:.3f})"
