"""Attention maps: right panels, labels, colours and bars; files that can be read."""

import numpy as np
import pytest
from matplotlib.image import imread

from stackformer import viz

TOKENS = ["BOS", "a", "b", "M", "M"]


def example(T=5, layers=2, seed=0):
    rng = np.random.default_rng(seed)
    actions = [rng.dirichlet(np.ones(3), size=T) for _ in range(layers)]
    return [viz.depth_distribution(a, depth=1)[:, 0] for a in actions], actions


def maps_of(figure):
    return [axes for axes in figure.axes if axes.images]


def test_one_panel_a_layer_with_symbols_and_a_shared_scale():
    weights, actions = example()
    figure = viz.plot_stack_attention(weights, TOKENS, actions=actions, title="RS")
    panels = maps_of(figure)
    assert [axes.get_title(loc="left") for axes in panels] == ["Layer 1", "Layer 2"]
    for axes, alpha in zip(panels, weights, strict=True):
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            texts = [text.get_text() for text in labels]
            assert texts == ["bottom", "a", "b", "M", "M"]
        (image,) = axes.images
        np.testing.assert_allclose(image.get_array(), alpha)
        assert image.get_clim() == (0.0, 1.0)


def test_bars_beside_a_map_are_the_action_probabilities():
    weights, actions = example(layers=1)
    figure = viz.plot_stack_attention(weights[0], TOKENS, actions=actions[0])
    (lanes,) = [axes for axes in figure.axes if len(axes.containers) == 3]
    widths = [[bar.get_width() for bar in lane] for lane in lanes.containers]
    np.testing.assert_allclose(np.transpose(widths), actions[0][1:])
    assert [text.get_text() for text in lanes.texts] == ["push", "pop", "no-op"]
    assert lanes.get_ylim() == maps_of(figure)[0].get_ylim()


def test_cells_are_square_and_nothing_leaves_the_figure():
    weights, actions = example(layers=5)
    figure = viz.plot_stack_attention(
        weights, ["", "a long token", *"bMM"], actions=actions, title="RS"
    )
    for axes in maps_of(figure):
        box = axes.get_window_extent()
        assert box.width == pytest.approx(box.height)
    whole = figure.get_tightbbox()
    assert whole.x0 >= -0.01 and whole.y0 >= -0.01
    assert whole.x1 <= figure.get_figwidth() and whole.y1 <= figure.get_figheight()


def test_several_stacks_in_a_layer_are_several_panels():
    weights, actions = example()
    figure = viz.plot_stack_attention(
        [np.stack(weights), weights[0]], actions=[np.stack(actions), actions[0]]
    )
    titles = [axes.get_title(loc="left") for axes in maps_of(figure)]
    assert titles == ["Layer 1, stack 1", "Layer 1, stack 2", "Layer 2"]


def test_long_strings_label_some_positions():
    weights, _ = example(T=200, layers=1)
    figure = viz.plot_stack_attention(weights, ["B", *("ab" * 100)[1:]])
    texts = [text.get_text() for text in maps_of(figure)[0].get_yticklabels()]
    assert texts[:3] == ["bottom", "a 10", "a 20"] and len(texts) == 20


def test_plot_actions_has_a_lane_for_each_action():
    actions = np.random.default_rng(0).dirichlet(np.ones(4), size=5)
    figure = viz.plot_actions(actions, TOKENS, title="Layer 1")
    (axes,) = figure.axes
    heights = [[bar.get_height() for bar in lane] for lane in axes.containers]
    np.testing.assert_allclose(np.transpose(heights), actions[1:])
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["push", "pop", "no-op", "pop 2"]
    again = viz.plot_actions(actions, ax=axes)
    assert again is figure


def test_files_and_notebook_picture(tmp_path):
    weights, actions = example()
    tokens = ["B", "$x", "<b>&", "M", "_^"]  # neither mathtext nor markup
    figure = viz.plot_stack_attention(weights, tokens, actions=actions)
    figure.savefig(tmp_path / "map.svg")
    assert "<svg" in (tmp_path / "map.svg").read_text()
    (tmp_path / "map.png").write_bytes(figure._repr_png_())
    assert imread(tmp_path / "map.png").std() > 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": np.ones((2, 3, 5, 5))}, r"\(T, T\) or .*index the batch"),
        ({"weights": [np.ones((4, 5))]}, r"got \(4, 5\)"),
        ({"weights": []}, "at least one layer"),
        ({"tokens": ["B", "a"]}, "each of the 5 positions.*got 2"),
        ({"actions": [np.ones((5, 3)) / 3]}, "each of the 2 layers.*got 1"),
        ({"actions": [np.ones((4, 3)) / 3] * 2}, r"layer 1 should have shape \(5,\)"),
        ({"titles": ["one"]}, "titles should have one entry"),
        ({"weights": [np.eye(4), np.eye(5)]}, "same T"),
    ],
)
def test_mistakes_are_named(arguments, message):
    weights, _ = example()
    with pytest.raises(ValueError, match=message):
        viz.plot_stack_attention(**{"weights": weights} | arguments)
