"""Stack attention maps and action probabilities as matplotlib figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from numpy.typing import ArrayLike

from stackformer.viz.layout import BOTTOM, MapLayout
from stackformer.viz.stack import Layers, action_names, check_actions
from stackformer.viz.style import (
    ATTENTION_CMAP,
    INK,
    LANE,
    MUTED,
    NotebookFigure,
    action_colors,
)

_ALL_LABELS_UP_TO = 64


def plot_stack_attention(
    weights: Layers,
    tokens: Sequence[str] | None = None,
    *,
    actions: Layers | None = None,
    titles: Sequence[str] | None = None,
    title: str | None = None,
    columns: int | None = None,
) -> Figure:
    r"""Draw stack attention, one panel a layer, all on the same colour scale 0..1.

    Row i of a panel is :math:`\alpha_i`, the distribution of the stack's top after
    position i; column n is the position attended to. Position 0 is the bottom of the
    stack. With `actions`, the probabilities of the actions at each position stand
    beside the map as bars.

    Args:
      weights: (T, T) for one layer, or a sequence with one entry a layer; an entry
        of shape (S, T, T) gives S panels, one for each stack of that layer.
      tokens: T readable symbols, position 0 included (its symbol is not used).
      actions: action probabilities, same structure as `weights`: (T, A) each.
      titles: one title a layer, default "Layer 1", "Layer 2", ...
      title: title of the whole figure.
      columns: panels in a row, default at most three.

    Returns:
      The figure: `figure.savefig("map.svg")`, or the last line of a notebook cell.

    >>> figure = plot_stack_attention(np.eye(3), ["bottom", "a", "M"])
    >>> figure.axes[0].get_xlabel()
    'position attended to'
    """
    panels = _panels(weights, actions, titles)
    T = panels[0][1].shape[0]
    labels = _labels(tokens, T)
    has_actions = any(panel[2] is not None for panel in panels)
    layout = MapLayout(len(panels), columns or 3, T, labels, has_actions, bool(title))
    figure = NotebookFigure(figsize=layout.size)
    images = []
    for index, (panel_title, alpha, probabilities) in enumerate(panels):
        axes = figure.add_axes(layout.map_box(index))
        images.append(_draw_map(axes, alpha, labels))
        if probabilities is not None:
            beside = figure.add_axes(layout.lanes_box(index), sharey=axes)
            _draw_lanes(beside, probabilities)
        axes.set_title(panel_title, fontsize=10, color=INK, loc="left", weight="bold")
        if index % layout.columns == 0:
            axes.set_ylabel("position", fontsize=9, color=MUTED)
        axes.set_xlabel("position attended to", fontsize=9, color=MUTED)
    bar = figure.colorbar(images[-1], cax=figure.add_axes(layout.colorbar_box()))
    bar.set_label("stack attention", fontsize=9, color=MUTED)
    bar.ax.tick_params(labelsize=8, colors=MUTED, length=0)
    bar.outline.set_visible(False)
    if title:
        x, y = layout.title_place()
        figure.text(x, y, title, fontsize=12, color=INK, weight="bold", va="top")
    return figure


def plot_actions(
    actions: ArrayLike,
    tokens: Sequence[str] | None = None,
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure | SubFigure:
    """Draw the action probabilities of one stack: a lane for each action.

    Args:
      actions: (T, A) action probabilities; position 0 has no action and stays empty.
      tokens: T readable symbols, position 0 included.
      title: title above the lanes.
      ax: axes to draw into; a new figure without it.

    Returns:
      The figure drawn into.

    >>> figure = plot_actions([[0, 0, 1], [0.9, 0.05, 0.05]], ["bottom", "a"])
    >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
    ['push', 'pop', 'no-op']
    """
    actions = check_actions(actions)
    T, num_actions = actions.shape
    labels = _labels(tokens, T)
    if ax is None:
        size = (float(np.clip(0.3 * T + 1.2, 3.5, 12.0)), 0.55 * num_actions + 0.9)
        ax = NotebookFigure(figsize=size, layout="constrained").add_subplot()
    for lane, color in enumerate(action_colors(num_actions)):
        base = (num_actions - 1 - lane) * 1.25
        ax.axhspan(base, base + 1.0, color=LANE, zorder=0, lw=0)
        ax.bar(np.arange(1, T), actions[1:, lane], _bar(T), bottom=base, color=color)
    ax.set_xlim(-0.5, T - 0.5)
    ax.set_ylim(-0.1, 1.25 * num_actions - 0.15)
    ax.set_yticks(
        [(num_actions - 1 - lane) * 1.25 + 0.5 for lane in range(num_actions)],
        action_names(num_actions),
        fontsize=9,
    )
    _token_ticks(ax.xaxis, labels, T)
    _clean(ax)
    if title:
        ax.set_title(title, fontsize=10, color=INK, loc="left", weight="bold")
    figure = ax.get_figure()
    assert figure is not None
    return figure


def _panels(
    weights: Layers, actions: Layers | None, titles: Sequence[str] | None
) -> list[tuple[str, np.ndarray, np.ndarray | None]]:
    """(title, (T, T) weights, (T, A) actions or None) for every stack of a layer."""
    layers = _as_layers(weights, "weights")
    layer_actions: list[np.ndarray | None] = [None] * len(layers)
    if actions is not None:
        layer_actions = [*_as_layers(actions, "actions")]
    titles = list(titles or (f"Layer {k}" for k in range(1, len(layers) + 1)))
    for name, other in (("actions", layer_actions), ("titles", titles)):
        if len(other) != len(layers):
            raise ValueError(
                f"{name} should have one entry for each of the {len(layers)} layers "
                f"of weights, but got {len(other)}."
            )
    panels = []
    for layer, (name, alpha) in enumerate(zip(titles, layers, strict=True)):
        stacks = alpha if alpha.ndim == 3 else alpha[None]
        given = beside = layer_actions[layer]
        if given is not None:
            beside = given if given.ndim == 3 else given[None]
            if beside.shape[:2] != stacks.shape[:2]:
                raise ValueError(
                    f"actions of layer {layer + 1} should have shape "
                    f"{alpha.shape[:-1]} + (A,) to match weights, but got "
                    f"{given.shape}."
                )
        for s, one in enumerate(stacks):
            label = name if len(stacks) == 1 else f"{name}, stack {s + 1}"
            panels.append(
                (label, one, None if beside is None else check_actions(beside[s]))
            )
    if len({panel[1].shape for panel in panels}) != 1:
        raise ValueError("weights should have the same T in every layer.")
    return panels


def _as_layers(arrays: Layers, name: str) -> list[np.ndarray]:
    entries = [arrays] if hasattr(arrays, "ndim") else arrays
    layers = [np.asarray(entry, dtype=np.float64) for entry in entries]
    if not layers:
        raise ValueError(f"{name} should have at least one layer, but got none.")
    for array in layers:
        square = name != "weights" or array.shape[-1] == array.shape[-2]
        if array.ndim not in (2, 3) or not square:
            expected = "(T, T) or (S, T, T)" if name == "weights" else "(T, A)"
            raise ValueError(
                f"{name} of a layer should have shape {expected}, one string, but got "
                f"{array.shape}; index the batch first."
            )
    return layers


def _labels(tokens: Sequence[str] | None, T: int) -> list[str] | None:
    if tokens is None:
        return None
    tokens = [str(token) for token in tokens]
    if len(tokens) != T:
        raise ValueError(
            f"tokens should have one symbol for each of the {T} positions, "
            f"position 0 included, but got {len(tokens)}."
        )
    return [BOTTOM, *(token.replace("$", r"\$") for token in tokens[1:])]


def _draw_map(axes: Axes, alpha: np.ndarray, labels: list[str] | None) -> AxesImage:
    T = len(alpha)
    image = axes.imshow(
        alpha, cmap=ATTENTION_CMAP, vmin=0.0, vmax=1.0, aspect="auto", origin="upper"
    )
    if T <= _ALL_LABELS_UP_TO:
        axes.set_xticks(np.arange(T + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(T + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="#e4e5ec", linewidth=0.5)
    _token_ticks(axes.xaxis, labels, T)
    _token_ticks(axes.yaxis, labels, T)
    _clean(axes)
    return image


def _draw_lanes(axes: Axes, actions: np.ndarray) -> None:
    """Action bars beside a map: one lane for each action, one bar for each position."""
    T, num_actions = actions.shape
    names = action_names(num_actions)
    for lane, color in enumerate(action_colors(num_actions)):
        left = lane * 1.18
        axes.axvspan(left, left + 1.0, color=LANE, zorder=0, lw=0)
        axes.barh(np.arange(1, T), actions[1:, lane], _bar(T), left=left, color=color)
        axes.text(
            left + 0.5,
            -0.62,
            names[lane],
            ha="center",
            va="bottom",
            fontsize=7.5,
            color=color if lane != 2 else MUTED,
            weight="bold",
        )
    axes.set_xlim(-0.04, 1.18 * num_actions - 0.14)
    axes.set_xticks([])
    axes.tick_params(labelleft=False)
    _clean(axes)


def _bar(T: int) -> float:
    """Width of a bar: gaps between bars only while they are wide enough to be even."""
    return 0.86 if T <= _ALL_LABELS_UP_TO else 1.0


def _token_ticks(axis: XAxis | YAxis, labels: list[str] | None, T: int) -> None:
    """Symbols on a tick axis; only some of them, with their position, if T is large."""
    step = 1 if T <= _ALL_LABELS_UP_TO else 10 * math.ceil(T / 250)
    places = np.arange(0, T, step)
    if labels is None:
        texts = [BOTTOM if i == 0 else str(i) for i in places]
    elif step == 1:
        texts = labels
    else:
        texts = [BOTTOM if i == 0 else f"{labels[i]} {i}" for i in places]
    size = 8.5 if T <= 24 else max(4.5, 8.5 * 24 / T) if step == 1 else 7
    axis.set_ticks(places, texts, fontsize=size, color=INK)
    if axis.axis_name == "x":
        for text in axis.get_ticklabels():
            long = len(text.get_text().replace("\\", "")) > 2
            text.set_rotation(90 if long else 0)
    axis.set_tick_params(which="both", length=0)


def _clean(axes: Axes) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(which="both", length=0)
