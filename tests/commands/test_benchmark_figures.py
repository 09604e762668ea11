"""What the benchmark prints and records: figures, and no targets of ours."""

import json
import re
from pathlib import Path

import numpy as np

from stackformer.commands.benchmark import kernel, samplers
from stackformer.commands.benchmark.timing import summarize


def test_ratios_are_to_the_faster_softmax(capsys):
    fused, products = kernel.SOFTMAX
    times = {"chunkwise b=8": 1, "chunkwise b=32": 3, fused: 4, products: 2}
    timings = {n: summarize(n, [0.001 * t] * 3) for n, t in times.items()}
    results = {"B=8 T=513 D=64": {"forward + backward": timings}}
    rows = kernel.figures(results, None)
    measured = {row.name: row.measured for row in rows}
    assert measured["T=513 B=8: chunkwise / softmax"] == 0.5
    assert measured["T=513 B=8: chunkwise / scan"] is None  # no scan was timed
    assert measured["T=81 B=32: best form / softmax"] is None  # nor this shape
    kernel.print_figures(rows)
    head, *lines = capsys.readouterr().out.strip().splitlines()
    assert head.split() == ["ratios,", "forward", "+", "backward", "measured"]
    assert [line.split()[-1] for line in lines].count("0.500") == 1
    assert [line.split()[-1] for line in lines].count("-") == len(rows) - 1


def test_samplers_are_figures(monkeypatch, capsys):
    monkeypatch.setattr(samplers, "BATCH", 2)
    monkeypatch.setattr(samplers, "LENGTH", 7)
    record = samplers.run(repeats=3, seconds=1.0)
    printed = capsys.readouterr().out
    assert set(record) == {"SM", "MA", "SE"}
    assert all(set(row) == {"jax", "python"} for row in record.values())
    assert "must" not in printed + json.dumps(record)


def test_the_note_beside_the_kernel_has_the_measured_figures():
    root = Path(__file__).parents[2]
    record = root / "experiments/results/benchmark/benchmark.json"
    figures = json.loads(record.read_text())["kernel"]["figures"]
    note = (root / "stackformer/ops/stack_attention/README.md").read_text()
    table = re.search(r"\| measured \|\n\|---\|---\|\n((?:\|.*\n)+)", note)
    assert table is not None
    shown = [float(row.split("|")[2]) for row in table[1].splitlines()]
    np.testing.assert_allclose(shown, [f["measured"] for f in figures], rtol=0.01)
