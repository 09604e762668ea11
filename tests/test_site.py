"""What the site shows that stands elsewhere: every public name, links that lead on, and
the explorers of shipped models. `make -C docs html` builds it, in `.ci/run`."""

import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import stackformer

DOCS = Path(__file__).parent.parent / "docs"
# Not for users: forms of a kernel, behind `implementation=`.
INTERNAL = (
    "stackformer.ops.stack_attention.chunkwise",
    "stackformer.ops.stack_attention.pallas",
)


@pytest.fixture(scope="module")
def generate():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        yield importlib.import_module("generate")
        sys.modules.pop("generate")


def test_the_reference_has_every_public_name(generate, tmp_path):
    generate.write_api(tmp_path / "api")
    names = ["stackformer"]
    for module in pkgutil.walk_packages(stackformer.__path__, "stackformer."):
        commands = module.name.startswith("stackformer.commands")
        if module.ispkg and not commands and module.name not in INTERNAL:
            names.append(module.name)
    for package in names:
        public = getattr(importlib.import_module(package), "__all__", None)
        if public is None:
            continue
        text = (tmp_path / f"api/{package}.rst").read_text(encoding="utf-8")
        for name in public:
            assert re.search(rf"\b{re.escape(f'{package}.{name}')}\b", text), name
        assert not re.search(r"\b0x[0-9a-f]{6}", text), "an address, new at each build"


def test_what_the_texts_import_is_in_the_reference(generate, tmp_path):
    """And every note that stands beside the code is a page."""
    generate.write_api(tmp_path / "api")
    root = DOCS.parent
    notes = {str(p.relative_to(root)) for p in root.glob("stackformer/**/README.md")}
    assert notes <= set(generate.TEXTS)
    texts = [*DOCS.glob("*.md"), *DOCS.glob("guides/*.md"), root / "README.md"]
    texts += [root / note for note in notes if "/ops/" not in note]  # forms are inside
    found = 0
    for path in texts:
        text = path.read_text(encoding="utf-8")
        for module, names in re.findall(r"from (stackformer[\w.]*) import (.+)", text):
            for name in re.findall(r"\w+", names.partition("#")[0]):
                value = getattr(importlib.import_module(module), name)
                if isinstance(value, type(importlib)):
                    continue
                found += 1
                page = tmp_path / f"api/{module}.rst"
                assert page.exists(), f"{path.name}: {module}"
                assert f"{module}.{name}\n" in page.read_text(encoding="utf-8"), name
    assert found > 10


def test_links_of_copied_texts_lead_somewhere(generate, tmp_path):
    generate.copy_texts(tmp_path)
    pages = {*generate.PAGES.values()}
    for path in tmp_path.glob("*/*.md"):
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"```[^`]*```|`[^`\n]*`", "", text)
        links = re.findall(r"\]\((?!\w+:)([^()#\s]+)", text)
        for link in links:
            assert (path.parent / link).exists(), f"{path.name}: {link}"
        for link in re.findall(r'href="([^"]+)"', text):
            assert link.removeprefix("../") in pages
    assert "06_a_transformer" in (tmp_path / "notebooks/index.md").read_text()


def test_a_dead_link_is_refused(generate, tmp_path):
    source = "experiments/results/README.md"
    with pytest.raises(ValueError, match=r"no such file: nowhere\.md"):
        generate.with_links("[here](nowhere.md)", source, tmp_path)
    kept = "`[here](nowhere.md)` and [there](https://example.org)"
    assert generate.with_links(kept, source, tmp_path) == kept


def test_the_guide_to_a_task_of_ones_own_can_be_followed(tmp_path):
    """In a folder of its own, from which Python imports first."""
    text = (DOCS / "guides/your_task.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (lines,) = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    look, train = [shlex.split(line, comments=True) for line in lines.splitlines()]
    assert train[2] == "experiments.dcf" and train[3] == look[3]
    (tmp_path / look[3].partition("=")[2].partition(":")[0]).write_text(source)
    done = subprocess.run(
        [sys.executable, *look[1:]],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(DOCS.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("  ->  ") for line in done.stdout.splitlines()]
    assert len(rows) == 5 and all(x == y for x, y in rows)


def test_explorers_of_shipped_models_open_without_a_server(generate, tmp_path, browser):
    generate.write_pages(tmp_path / "pages")
    page = (DOCS / "explorer.md").read_text(encoding="utf-8")
    linked = set(re.findall(r'(?:src|href)="([^"]+)"', page))
    assert linked == {"stack_explorer.html", "frames_explorer.html"}
    for name, text in generate.LIVE.items():
        assert f"--out={name} --input=" in page and text in page
    for name, model in (("stack_explorer", "reverse"), ("frames_explorer", "modular")):
        browser.get((tmp_path / f"pages/{name}.html").as_uri())
        assert model in browser.find_element("css selector", "h1").text
        assert not [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]
