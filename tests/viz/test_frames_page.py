"""Frames as a text, as a picture, and as a page that replays them."""

import pytest

from stackformer import viz

STRING = "B(3*((1+4)-2))|"
CHOICE = [2, 0, 2, 2, 0, 0, 2, 2, 2, 1, 2, 2, 1, 1, 2]
VALUES = [None] * 9 + ["0", None, None, "3", "4", None]


@pytest.fixture
def steps():
    return viz.frame_steps(STRING, CHOICE, VALUES)


def test_every_bracket_leaves_its_value(steps):
    closed = {i: (s.closed, s.value) for i, s in enumerate(steps) if s.closed}
    assert closed == {
        9: (("1", "+", "4"), "0"),
        12: (("[0]", "-", "2"), "3"),
        13: (("3", "*", "[3]"), "4"),
    }
    assert steps[-1].frame == ("B", "[4]", "|") and not steps[-1].stack
    assert [len(step.stack) for step in steps][5:10] == [3, 3, 3, 3, 2]


def test_a_pop_of_nothing_is_a_noop():
    steps = viz.frame_steps("B)", [2, 1])
    assert steps[1].action == "no-op" and steps[1].frame == ("B", ")")


def test_picture_and_text(steps, tmp_path):
    figure = viz.plot_frames(steps, title="MA")
    figure.savefig(tmp_path / "frames.png")
    assert [text.get_text() for text in figure.axes[0].texts][-3:] == ["0", "3", "4"]
    assert "<- 3 * [3]" in viz.describe_frames(steps)


def test_page_in_a_browser(browser, steps, tmp_path):
    page = viz.explore_frames(steps, title="<b>MA</b>", answer="4")
    browser.get(page.save(tmp_path / "frames.html").as_uri())

    def text(name):
        return browser.find_element("id", name).text

    # It begins where the first bracket is closed.
    assert text("said") == "pop closes 1 + 4 and returns 0"
    assert browser.find_element("css selector", "h1").text == "<b>MA</b>"
    assert text("frame") == "[0]" and text("stack").split() == ["3", "*", "B"]
    for _ in range(3):
        browser.find_element("id", "forward").click()
    assert text("said") == "pop closes [0] - 2 and returns 3"
    browser.find_elements("css selector", "#tape button")[-1].click()
    assert text("said").endswith("The model answers 4")
