"""The explorer's page as text: what is in it, what is refused, that it is safe."""

import json
import re

import numpy as np
import pytest

from stackformer import viz

PUSH, POP = [0.98, 0.01, 0.01], [0.01, 0.98, 0.01]


def data_of(page):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(found[1])


def test_page_holds_everything_and_asks_for_nothing(tmp_path):
    page = viz.explore(
        ["BOS", "a", "M"],
        [[PUSH, PUSH, POP], [PUSH, POP, POP]],
        probabilities=[[0.5, 0.5], [0.5, 0.5], [0.125, 0.875]],
        symbols=["a", "b"],
        targets=[None, None, "a"],
        title="Reverse a string",
    )
    data = data_of(page.html)
    assert [panel["name"] for panel in data["panels"]] == ["Layer 1", "Layer 2"]
    np.testing.assert_allclose(
        np.reshape(data["panels"][1]["actions"], (3, 3))[1:], [POP, POP]
    )
    assert data["predictions"] == [
        None,
        None,
        {"top": [["b", 0.875], ["a", 0.125]], "target": "a"},
    ]
    assert not re.search(r"https?:|//cdn|@import|\burl\(|fetch\(|import\(", page.html)
    assert "default-src 'none'" in page.html and "{{" not in page.html
    path = page.save(tmp_path / "new" / "page.html")
    assert path.read_text(encoding="utf-8") == page.html
    assert "<title>Reverse a string</title>" in page.html


def test_stacks_of_a_layer_and_larger_pops_are_panels():
    rng = np.random.default_rng(0)
    layers = [rng.dirichlet(np.ones(4), size=(2, 5)), rng.dirichlet(np.ones(4), size=5)]
    data = data_of(viz.explore(list("Babcd"), layers).html)
    names = [panel["name"] for panel in data["panels"]]
    assert names == ["Layer 1, stack 1", "Layer 1, stack 2", "Layer 2"]
    assert data["action_names"] == ["push", "pop", "no-op", "pop 2"]
    assert data["predictions"] == [None] * 5


def test_only_the_most_probable_classes_are_embedded():
    table = np.full((2, 50_000), 1e-6)
    table[1, [7, 11]] = 0.6, 0.3
    symbols = [str(c) for c in range(50_000)]
    page = viz.explore(["B", "x"], [PUSH, PUSH], probabilities=table, symbols=symbols)
    top = data_of(page.html)["predictions"][1]["top"]
    assert [name for name, _ in top[:2]] == ["7", "11"] and len(top) == 5
    assert len(page.html) < 60_000


def test_text_in_tokens_cannot_leave_the_data():
    hostile = ["</script><script>alert(1)</script>", "{{script}}", "\u2028", "<!--"]
    title = "<img src=x onerror=alert(1)>"
    page = viz.explore(["B", *hostile], [PUSH] * 5, title=title)
    assert data_of(page.html)["tokens"] == ["B", *hostile]
    assert page.html.count("<script") == 2 and "<img" not in page.html
    assert "<!--" not in page.html


def test_notebooks_get_a_frame_with_the_page():
    page = viz.explore(["B", "a"], [PUSH, PUSH], title='say "a"')
    frame = page._repr_html_()
    assert frame.startswith('<iframe title="say &quot;a&quot;"')
    assert 'sandbox="allow-scripts"' in frame and frame.count("<") == 2
    assert "KiB" in repr(page)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": []}, "1 to 1000 positions, but got 0"),
        ({"tokens": ["B"] * 1001}, "1001; explore a shorter string"),
        ({"tokens": ["B", "a"]}, "each of the 2 tokens, but got 3"),
        ({"actions": []}, "at least one layer"),
        ({"actions": np.ones((1, 2, 2, 3, 3)) / 3}, "index the batch"),
        ({"actions": [[PUSH] * 3, np.ones((3, 4)) / 4]}, r"got \[3, 4\]"),
        ({"titles": ["a", "b"]}, "1 layers and 2 titles"),
        ({"probabilities": np.ones((3, 2)) / 2}, "no symbols"),
        (
            {"probabilities": np.ones((4, 2)) / 2, "symbols": "ab"},
            r"\(3, 2\).*got \(4, 2\)",
        ),
        (
            {
                "probabilities": np.ones((3, 2)) / 2,
                "symbols": "ab",
                "targets": ["a"],
            },
            "targets should have one entry",
        ),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        viz.explore(**{"tokens": ["B", "a", "M"], "actions": [PUSH] * 3} | arguments)
