"""The numbers of the paper, "A Transformer with Stack Attention" (Li et al.).

Accuracies are in percent, mean and standard deviation over five seeds, token accuracy
on lengths 41..100 after the training of the `paper` preset. Copied from the tables as
printed; two cells of Table 1 disagree with the same cells of Table 2 there (SM vanilla
ALM: 50.4 and 64.9; MA stack ALM: 29.5 and 30.0), and both are kept.
"""

from typing import NamedTuple


class Cell(NamedTuple):
    """Mean and standard deviation as printed in the paper."""

    mean: float
    std: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.std:.1f}"


TASKS = ("RS", "SM", "MA", "SE")
POSITIONS = ("none", "sincos", "relative", "rotary", "alibi")

# (model, mode) -> task -> cell. The paper's RNNs read the input once, like MLM.
_TABLE_1_ROWS = {
    "RS": "81.0 0.8 100.0 0.0 54.8 0.0 100.0 0.0 55.4 0.8 100.0 0.0",
    "SM": "73.2 1.0 100.0 0.0 50.4 0.1 93.1 4.4 50.4 0.1 92.8 2.6",
    "MA": "75.8 4.3 91.0 6.3 30.1 0.0 34.3 1.4 30.2 0.1 29.5 0.6",
    "SE": "56.7 10.3 89.9 7.2 20.0 0.0 29.8 8.0 20.2 0.1 20.3 0.2",
}
_TABLE_1_COLUMNS = (
    ("rnn", "mlm"),
    ("stack_rnn", "mlm"),
    ("transformer", "mlm"),
    ("stack_transformer", "mlm"),
    ("transformer", "alm"),
    ("stack_transformer", "alm"),
)
# (task, model, mode): cells in the order of POSITIONS.
_TABLE_2_ROWS = {
    ("RS", "transformer", "mlm"): "54.8 0.0 50.7 0.2 67.6 2.2 55.4 1.2 79.4 3.5",
    ("RS", "stack_transformer", "mlm"): (
        "100.0 0.0 99.1 1.7 100.0 0.0 86.3 15.0 100.0 0.0"
    ),
    ("SM", "transformer", "mlm"): "50.4 0.1 49.5 0.6 67.5 1.0 52.1 1.8 70.9 1.2",
    ("SM", "stack_transformer", "mlm"): "93.1 4.4 74.7 8.8 98.5 1.1 73.1 4.5 92.9 2.7",
    ("MA", "transformer", "mlm"): "30.1 0.0 30.1 0.0 30.1 0.0 30.1 0.0 30.1 0.0",
    ("MA", "stack_transformer", "mlm"): "34.3 1.4 33.8 0.8 35.0 1.1 34.5 1.3 34.7 1.1",
    ("SE", "transformer", "mlm"): "20.0 0.0 20.0 0.0 20.0 0.0 20.0 0.0 20.0 0.0",
    ("SE", "stack_transformer", "mlm"): "29.8 8.0 23.9 3.0 25.2 1.8 30.0 3.8 27.9 5.8",
    ("RS", "transformer", "alm"): "55.4 0.8 55.2 0.7 62.0 6.1 72.9 3.5 57.1 0.6",
    ("RS", "stack_transformer", "alm"): (
        "100.0 0.0 96.8 4.5 100.0 0.0 100.0 0.0 100.0 0.0"
    ),
    ("SM", "transformer", "alm"): "64.9 2.0 60.8 3.1 70.5 0.9 71.9 0.9 70.5 1.6",
    ("SM", "stack_transformer", "alm"): "92.8 2.6 49.6 4.4 93.2 2.3 83.8 1.7 93.4 1.2",
    ("MA", "transformer", "alm"): "30.2 0.1 25.7 2.3 30.3 0.1 26.0 0.8 30.3 0.1",
    ("MA", "stack_transformer", "alm"): "30.0 0.1 28.0 2.8 30.3 0.3 25.6 0.3 30.3 0.1",
    ("SE", "transformer", "alm"): "20.2 0.1 20.2 0.3 20.7 0.2 20.3 0.2 20.5 0.3",
    ("SE", "stack_transformer", "alm"): "20.3 0.2 20.2 0.1 20.7 0.1 20.2 0.3 20.3 0.1",
}
# Perplexities: (start, mode): PTB vanilla, PTB stack, WikiText-2 vanilla, stack.
_TABLE_3_ROWS = {
    ("scratch", "mlm"): "95.53 19.66 34.28 2.76 73.74 3.79 64.75 1.75",
    ("scratch", "alm"): "73.14 0.34 69.86 0.26 191.01 0.71 206.42 0.80",
    ("pretrained", "mlm"): "3.99 0.08 4.46 0.11 4.41 0.12 4.65 0.06",
    ("pretrained", "alm"): "21.26 0.03 32.36 0.16 29.29 0.02 54.96 0.19",
}
_TABLE_3_COLUMNS = (
    ("ptb", False),
    ("ptb", True),
    ("wikitext2", False),
    ("wikitext2", True),
)


def _cells(row: str) -> list[Cell]:
    numbers = [float(number) for number in row.split()]
    return [Cell(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]


TABLE_1: dict[tuple[str, str, str], Cell] = {
    (task, model, mode): cell
    for task, row in _TABLE_1_ROWS.items()
    for (model, mode), cell in zip(_TABLE_1_COLUMNS, _cells(row), strict=True)
}
"""(task, model, mode) -> accuracy in percent, no positional encoding."""

TABLE_2: dict[tuple[str, str, str, str], Cell] = {
    (*key, positions): cell
    for key, row in _TABLE_2_ROWS.items()
    for positions, cell in zip(POSITIONS, _cells(row), strict=True)
}
"""(task, model, mode, positions) -> accuracy in percent."""

TABLE_3: dict[tuple[str, str, str, bool], Cell] = {
    (start, mode, dataset, stack): cell
    for (start, mode), row in _TABLE_3_ROWS.items()
    for (dataset, stack), cell in zip(_TABLE_3_COLUMNS, _cells(row), strict=True)
}
"""(scratch or pretrained, mode, dataset, with a stack) -> perplexity."""


def lookup(
    task: str | None, model: str, mode: str, positions: str = "none"
) -> Cell | None:
    """The paper's accuracy in percent for a DCF run, or None where it has none.

    Table 1 where it has the cell, else Table 2.

    >>> str(lookup("SM", "stack_transformer", "mlm"))
    '93.1 ± 4.4'
    """
    if task is None:
        return None
    if positions == "none" and (task, model, mode) in TABLE_1:
        return TABLE_1[task, model, mode]
    return TABLE_2.get((task, model, mode, positions))
