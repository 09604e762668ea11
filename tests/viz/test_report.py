"""The report page: what stands in it, and how it behaves in headless Chromium."""

import json

import pytest

from stackformer.viz.report import format_number, report_page
from stackformer.viz.report_chart import accuracy_chart


def make_cell(row, column, level, *, seeds=2, longest=100, paper=54.8, **more):
    """A measured cell: right up to length 40, then `level`."""
    curve = [1.0] * 40 + [level] * (longest - 40)
    measured = {
        "mean": 100 * level,
        "std": 1.25 if seeds > 1 else None,
        "scores": [100 * level] * seeds,
        "seeds": list(range(seeds)),
        "steps": 1000,
        "preset": "quick",
        "seconds": 90.0,
        "lengths": [41, 100],
        "test_strings": 128,
        "curve": {"train_length": 40, "chance": 0.5, "seeds": [curve] * seeds},
    }
    return {
        "row": row,
        "column": column,
        "name": f"{row}-{column}".lower().replace(" ", "_"),
        "state": "finished",
        "reason": "",
        "command": f"python -m experiments.dcf --task={row}",
        "paper": {"mean": paper, "std": 0.0, "steps": 100_000},
        "measured": measured,
        **more,
    }


def make_table(**more):
    cells = [
        make_cell("RS", "Transformer, MLM", 0.6),
        make_cell("RS", "Stack transformer, MLM", 1.0, longest=500, paper=100.0),
        make_cell("SM", "Transformer, MLM", 0.4, seeds=1),
        make_cell(
            "SM",
            "Stack transformer, MLM",
            0.9,
            measured=None,
            state="broken",
            reason="error: <script>window.hacked = 1</script> & more",
        ),
    ]
    longer = {"lengths": [101, 500], "mean": 99.5, "std": 0.5, "test_strings": 1}
    cells[1]["measured"]["longer"] = longer
    return {
        "table": 1,
        "title": "RNNs and transformers",
        "unit": "token accuracy in percent",
        "rows": ["RS", "SM"],
        "columns": ["Transformer, MLM", "Stack transformer, MLM"],
        "command": "python -m experiments.tables --table=1",
        "notes": ["Dropout is off."],
        "machines": [{"device": "cpu", "cpu_count": 2, "packages": {"jax": "0.10.2"}}],
        "cells": cells,
        **more,
    }


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "report.html"
    path.write_text(report_page([make_table()]), encoding="utf-8")
    return path


def find(browser, selector):
    return browser.find_elements("css selector", selector)


def media(browser, scheme):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def test_numbers_steps_and_commands_are_in_the_page():
    text = report_page([make_table()])
    for words in (
        "60.0 ± 1.2",
        "paper 54.8 ± 0.0",
        "5.2",
        "1,000 steps, 2 seeds",
        "1,000 steps, 1 seed<",
        "100,000 steps",
        "Lengths 101–500",
        "99.5 ± 0.5, 1 string a length<",
        ">128 strings a length<",
        "python -m experiments.dcf --task=RS",
        "python -m experiments.tables --table=1",
        "Dropout is off.",
        "jax 0.10.2",
        "3 of 4 cells measured, 1 broken",
    ):
        assert words in text, words
    assert "<script>window.hacked" not in text and "&lt;script&gt;" in text
    assert "http://" not in text and "https://" not in text and "{{" not in text


def test_one_seed_has_no_deviation():
    assert format_number({"mean": 40.0, "std": None}, 2) == "40.00"


def test_perplexity_above_the_paper_is_worse():
    table = make_table(table=3, unit="perplexity")
    cell = make_cell("RS", "Transformer, MLM", 0.6)
    table["cells"] = [{**cell, "paper": {**cell["paper"], "steps": 1000}}]
    assert 'class="difference worse"' in report_page([table])


def test_unlike_protocols_are_not_judged():
    table = make_table(cells=[make_cell("RS", "Transformer, MLM", 0.6)])
    text = report_page([table])
    assert 'class="difference unlike"' in text
    assert "trained or tested otherwise" in text
    assert "difference better" not in text and "difference worse" not in text


def test_contents_and_a_run_in_two_tables_once():
    cell = make_cell("RS", "Transformer, MLM", 0.6)
    tables = [make_table(cells=[cell]), make_table(table=2, cells=[cell])]
    text = report_page(tables)
    assert text.count('<details class="card"') == 1
    assert text.count('href="#table1-rs-transformer,_mlm"') == 2
    for anchor in ("table1", "table2", "notes", "machines"):
        assert f'href="#{anchor}"' in text and f'id="{anchor}"' in text


def test_cells_fold_on_a_phone(browser, page):
    size = dict(width=390, height=800, deviceScaleFactor=1, mobile=True)
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get(page.as_uri())
        cards = find(browser, "details.card")
        assert cards and not any(card.get_attribute("open") for card in cards)
        browser.execute_script("arguments[0].click()", find(browser, "a.number")[0])
        assert cards[0].get_attribute("open")
        wide, seen = browser.execute_script(
            "return [document.documentElement.scrollWidth, innerWidth]"
        )
        assert wide <= seen
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_chart_puts_points_where_the_numbers_are():
    curve = {"seeds": [[1.0, 0.0], [1.0, 0.5]], "train_length": 1, "chance": None}
    svg = accuracy_chart(curve, title="a", paper=0.5, scored=[2, 2])
    lines = [part.split('"')[0] for part in svg.split('points="')[1:]]
    points = [[tuple(map(float, p.split(","))) for p in x.split()] for x in lines]
    (left, top), (right, bottom) = points[0]  # seed 0 falls from 100% to 0%
    assert left < right and top < bottom
    mean = points[2]
    assert mean[1] == (right, pytest.approx(bottom - 0.25 * (bottom - top), abs=0.11))
    assert f"M{right} " in svg.split('class="paper-line"')[1]


def test_page_in_a_browser(browser, page):
    browser.get(page.as_uri())
    # A click must not depend on how far a smooth scroll has come.
    browser.execute_script("document.documentElement.style.scrollBehavior = 'auto'")
    assert len(find(browser, "svg.chart")) == 3
    assert len(find(browser, "tbody td")) == 4
    shown = " ".join(find(browser, "tbody td")[0].text.split())
    assert shown == (
        "60.0 ± 1.2▲ above the paper by 5.2 paper 54.8 ± 0.0 1,000 steps, 2 seeds"
    )
    assert browser.execute_script("return window.hacked") is None
    assert "window.hacked = 1" in find(browser, ".broken-list")[0].text
    resources = "return performance.getEntriesByType('resource').length"
    assert browser.execute_script(resources) == 0

    link = find(browser, "a.number")[1]
    link.click()
    target = browser.execute_script("return document.querySelector(':target').id")
    assert target == link.get_attribute("href").partition("#")[2]

    details = find(browser, f"[id='{target}'] details")[0]
    summary = details.find_element("css selector", "summary")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", summary)
    summary.click()
    assert "python -m experiments.dcf --task=RS" in details.text


def test_reading_under_the_pointer(browser, page):
    browser.get(page.as_uri())
    reading = browser.execute_script(
        """const chart = document.querySelector('.chart');
        chart.scrollIntoView();
        const data = JSON.parse(chart.dataset.chart);
        const box = chart.getBoundingClientRect();
        const scale = box.width / chart.viewBox.baseVal.width;
        const at = (x) => {
          chart.dispatchEvent(new PointerEvent('pointermove',
            {clientX: box.left + x * scale, clientY: box.top + 20}));
          return chart.querySelector('.reading').textContent;
        };
        const result = [at(data.left), at(data.right)];
        chart.dispatchEvent(new PointerEvent('pointerleave'));
        return [...result, chart.querySelector('.reading').textContent];"""
    )
    assert reading == ["length 1: 100.0%", "length 100: 60.0%", ""]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_and_dark(browser, page, scheme):
    screen = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    try:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        media(browser, scheme)
        browser.get(page.as_uri())
        wide = "return document.documentElement.scrollWidth"
        assert browser.execute_script(wide) <= 360
        # Every row says which column it is of, since the head is out of sight.
        label = browser.execute_script(
            "const cell = document.querySelector('tbody td');"
            "return getComputedStyle(cell, '::before').content"
        )
        assert json.loads(label) == "Transformer, MLM"
        contrasts = browser.execute_script(
            """const light = (css) => {
              const parts = css.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255);
              const [r, g, b] = parts.map(
                (x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
              return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const ground = light(
              getComputedStyle(document.querySelector('.card')).backgroundColor);
            return [['body', 'color'], ['.paper', 'color'], ['.steps', 'color'],
              ['.difference', 'color'], ['dt', 'color'], ['summary', 'color'],
              ['.state.broken', 'color'], ['.chart .tick', 'fill'],
              ['.chart .mean', 'stroke']].map(([selector, property]) => {
                const style = getComputedStyle(document.querySelector(selector));
                const value = light(style[property]);
                const [a, b] = [Math.max(value, ground), Math.min(value, ground)];
                return [selector, (a + 0.05) / (b + 0.05)];
              });"""
        )
        assert min(ratio for _, ratio in contrasts) >= 4.5, contrasts
        ground = browser.execute_script(
            "return getComputedStyle(document.body).backgroundColor"
        )
        assert (
            ground == {"light": "rgb(246, 246, 250)", "dark": "rgb(20, 22, 29)"}[scheme]
        )
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
