"""Every notebook runs from a clean kernel, and was saved with its pictures."""

import os
import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

FOLDER = Path(__file__).parent.parent / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
QUICK = ("01_stack_attention_by_hand", "04_stack_in_your_model")


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def outputs_of(notebook):
    return [out for cell in notebook.cells for out in cell.get("outputs", [])]


def test_all_six_are_here():
    assert [name[:2] for name in NAMES] == ["01", "02", "03", "04", "05", "06"]


@pytest.mark.parametrize("name", NAMES)
def test_title_install_cell_and_links(name):
    notebook = read(name)
    nbformat.validate(notebook)
    first, install = notebook.cells[:2]
    assert first.source.startswith("# ")
    code = 'if "google.colab" in sys.modules:\n    %pip install -q stackformer-jax'
    assert code in install.source and "of a clone" in install.source
    text = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    for target in re.findall(r"\]\(([^):]+\.ipynb)\)", text):
        assert (FOLDER / target).exists(), target
    words = len(text.split())
    assert words > 150, "prose that teaches"


@pytest.mark.parametrize("name", NAMES)
def test_saved_outputs_have_pictures_and_no_errors(name):
    notebook = read(name)
    outputs = outputs_of(notebook)
    assert not [out for out in outputs if out.output_type == "error"]
    assert not [out for out in outputs if out.get("name") == "stderr"]
    assert any("image/png" in out.get("data", {}) for out in outputs)
    counts = [c.execution_count for c in notebook.cells if c.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "saved after one run, in order"
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 1_500_000


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES],
)
def test_runs_from_a_clean_kernel(name, tmp_path, monkeypatch):
    monkeypatch.setenv("STACKFORMER_SMALL", "1")
    path = os.pathsep.join(filter(None, [str(FOLDER.parent), os.getenv("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    notebook = read(name)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    assert any("image/png" in out.get("data", {}) for out in outputs_of(notebook))
