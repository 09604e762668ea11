"""One look for every picture: colours, and a figure that shows itself in notebooks."""

import io
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

INK = "#1f2430"
MUTED = "#6b7280"
LANE = "#f1f2f6"
PUSH_COLOR = "#0a7d8c"
POP_COLOR = "#d9580d"
NOOP_COLOR = "#9aa1ad"
EXTRA_POP_COLORS = ("#b3340a", "#7d1d05", "#4d0f00")

ATTENTION_CMAP = LinearSegmentedColormap.from_list(
    "stackformer", ["#ffffff", "#dcd7f7", "#a498e6", "#5b45c2", "#241463"]
)


def action_colors(num_actions: int) -> list[str]:
    """A colour for each action: push, pop, no-op, then the larger pops.

    >>> len(action_colors(4))
    4
    """
    extra = [
        EXTRA_POP_COLORS[k % len(EXTRA_POP_COLORS)] for k in range(num_actions - 3)
    ]
    return [PUSH_COLOR, POP_COLOR, NOOP_COLOR, *extra]


class NotebookFigure(Figure):
    """A matplotlib figure that needs no pyplot, neither to draw nor to be shown."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()
