"""The benchmark of one step: what is compared does the same."""

import jax
import numpy as np

from stackformer.commands.benchmark import steps


def test_soft_and_hard_steps_read_the_same(monkeypatch, capsys):
    monkeypatch.setattr(steps, "_STEPS", 6)
    monkeypatch.setattr(steps, "LENGTHS", (13,))
    soft, hard = (make(13) for make in (steps._soft, steps._hard))
    tops = [jax.jit(c.function)(*c.arguments) for c in (soft, hard)]
    np.testing.assert_allclose(*tops, atol=1e-6)
    assert np.abs(tops[0]).max() > 0
    record = steps.stack_steps(repeats=3, seconds=1.0)
    assert record["13"]["ratio"] > 0
    assert "soft / hard" in capsys.readouterr().out
