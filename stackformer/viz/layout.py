"""Where the parts of a figure of attention maps stand."""

import math

import numpy as np

BOTTOM = "bottom"
Box = tuple[float, float, float, float]


class MapLayout:
    """Where everything goes, in inches, so that the cells of every map are square."""

    def __init__(
        self,
        panels: int,
        columns: int,
        T: int,
        labels: list[str] | None,
        has_actions: bool,
        has_title: bool,
    ) -> None:
        self.columns = min(panels, columns)
        self.rows = math.ceil(panels / self.columns)
        self.side = float(np.clip(0.26 * T, 2.4, 5.6))
        self.lanes = max(0.42 * self.side, 1.25) if has_actions else 0.0
        longest = max(len(text) for text in (labels or [BOTTOM, str(T)]))
        self.label = 0.16 + 0.085 * min(max(longest, len(BOTTOM)), 24)
        self.left = 0.25
        self.head = 0.45
        self.top = 0.45 if has_title else 0.05
        self.cell = (
            self.label + self.side + (self.lanes + 0.1 if has_actions else 0.0) + 0.25,
            self.head + self.side + self.label + 0.25,
        )
        self.size = (
            self.left + self.columns * self.cell[0] + 0.75,
            self.top + self.rows * self.cell[1] + 0.05,
        )

    def _box(self, x: float, y: float, width: float, height: float) -> Box:
        """Inches from the top left corner to matplotlib's fractions of the figure."""
        w, h = self.size
        return x / w, 1.0 - (y + height) / h, width / w, height / h

    def _corner(self, index: int) -> tuple[float, float]:
        x = self.left + (index % self.columns) * self.cell[0] + self.label
        return x, self.top + (index // self.columns) * self.cell[1] + self.head

    def map_box(self, index: int) -> Box:
        return self._box(*self._corner(index), self.side, self.side)

    def lanes_box(self, index: int) -> Box:
        x, y = self._corner(index)
        return self._box(x + self.side + 0.1, y, self.lanes, self.side)

    def colorbar_box(self) -> Box:
        x = self.left + self.columns * self.cell[0] + 0.02
        return self._box(x, self.top + self.head, 0.12, self.side)

    def title_place(self) -> tuple[float, float]:
        w, h = self.size
        return self.left / w, 1.0 - 0.15 / h
