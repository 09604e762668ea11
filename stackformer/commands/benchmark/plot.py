"""The log-log picture: time over the number of positions."""

from pathlib import Path
from typing import Any

from stackformer.viz.style import NotebookFigure


def draw(shapes: dict[str, Any], path: Path) -> None:
    """Milliseconds for one string, forward + backward, one line a kernel."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for name, directions in shapes.items():
        sizes = dict(part.split("=") for part in name.split())
        if sizes["D"] != "64":
            continue
        for kernel, timing in directions["forward + backward"].items():
            point = (int(sizes["T"]), timing["milliseconds"] / int(sizes["B"]))
            lines.setdefault(kernel, []).append(point)
    figure = NotebookFigure(figsize=(7.5, 5.0), layout="constrained")
    axes = figure.subplots()
    for kernel, points in lines.items():
        softmax = kernel.startswith("softmax")
        axes.plot(
            *zip(*sorted(points), strict=True),
            marker="o",
            markersize=4,
            linestyle="--" if softmax else "-",
            label=kernel,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = sorted({length for points in lines.values() for length, _ in points})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("positions T")
    axes.set_ylabel("milliseconds a string, forward + backward")
    axes.set_title("Stack attention and softmax attention, D = 64, float32")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
