"""The benchmark of frames: brackets are those of the strings, all forms take part."""

import numpy as np

from stackformer.commands.benchmark import frames


def test_every_form_is_timed_on_given_brackets(monkeypatch, capsys):
    monkeypatch.setattr(frames, "_BATCH", 2)
    monkeypatch.setattr(frames, "LENGTHS", (7,))
    actions = np.asarray(frames._brackets(7))
    assert actions.shape == (2, 8, 3)
    # Seven symbols cannot do without brackets, and all of them are closed.
    assert (actions[..., 0].sum(1) > 0).all()
    np.testing.assert_array_equal(actions[..., 0].sum(1), actions[..., 1].sum(1))
    record = frames.run(repeats=3, seconds=1.0)
    assert set(record["7"]) == {"recurrent", "by_pops", "by_levels"}
    assert "by_pops" in capsys.readouterr().out
