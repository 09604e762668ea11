"""The site: Sphinx, the book theme, Markdown, and the API from the docstrings."""

import importlib
import inspect
import pathlib
import shutil
import sys

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

import stackformer  # noqa: E402

project = "stackformer"
author = "The stackformer authors"
copyright = "2026, the stackformer authors; Apache-2.0"
release = version = stackformer.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "sphinx_book_theme"
html_title = "stackformer"
html_theme_options = {"show_toc_level": 2, "home_page_in_toc": True}
html_extra_path = ["../experiments/results/report.html"]
exclude_patterns = ["_build", "images"]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # tests/test_notebooks.py runs them
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_use_ivar = True
# Links into the repository, in texts that are shown here as they stand there.
suppress_warnings = ["myst.xref_missing", "mystnb.unknown_mime_type", "ref.python"]

SECTIONS = (
    *("Args", "Attributes", "Returns", "Raises", "Yields"),
    *("Example", "Examples", "Reference", "References", "Note", "Notes"),
)
# Public packages; every name in their `__all__` has an entry.
PACKAGES = {
    "stackformer": "The names that most users need.",
    "stackformer.ops": "Kernels: pure functions of arrays.",
    "stackformer.nn": "NNX modules.",
    "stackformer.models": "Whole models.",
    "stackformer.models.huggingface": "Folders of the Hugging Face hub.",
    "stackformer.tasks": "Formal languages, sampled on the device.",
    "stackformer.training": "The engine.",
    "stackformer.problems.dcf": "Length generalization on formal languages.",
    "stackformer.problems.lm": "Language modeling on text.",
    "stackformer.viz": "Curves, maps, the explorer.",
}


def write_api() -> None:
    """A page for each package, an entry for each public name."""
    folder = HERE / "api"
    folder.mkdir(exist_ok=True)
    entries = "\n".join(f"   {name}" for name in PACKAGES)
    title = "API reference"
    (folder / "index.rst").write_text(
        f"{title}\n{'=' * len(title)}\n\n.. toctree::\n\n{entries}\n", encoding="utf-8"
    )
    seen: set[int] = set()
    for package, words in PACKAGES.items():
        module = importlib.import_module(package)
        lines = [package, "=" * len(package), "", words, ""]
        for name in module.__all__:
            value = getattr(module, name)
            # What stands in two packages is indexed once.
            again = ["   :no-index:"] if id(value) in seen else []
            if isinstance(value, type):
                lines += [f".. autoclass:: {package}.{name}", *again, ""]
            elif callable(value) and hasattr(value, "__module__"):
                lines += [f".. autofunction:: {package}.{name}", *again, ""]
            elif not isinstance(value, type(importlib)):
                lines += [f".. py:data:: {package}.{name}", f"   :value: {value!r}", ""]
            seen.add(id(value))
        (folder / f"{package}.rst").write_text("\n".join(lines), encoding="utf-8")


def copy_texts() -> None:
    """Results and notebooks, as they stand in the repository."""
    shutil.rmtree(HERE / "results", ignore_errors=True)
    shutil.rmtree(HERE / "notebooks", ignore_errors=True)
    (HERE / "results").mkdir()
    for path in (ROOT / "experiments/results").glob("*.md"):
        name = "index.md" if path.name == "README.md" else path.name
        text = path.read_text(encoding="utf-8")
        if name == "index.md":
            names = ("table1", "table2", "table3")
            tree = "\n".join(f"{one}" for one in names)
            text += f"\n```{{toctree}}\n:maxdepth: 1\n\n{tree}\n```\n"
        (HERE / "results" / name).write_text(text, encoding="utf-8")
    shutil.copytree(
        ROOT / "notebooks", HERE / "notebooks", ignore=shutil.ignore_patterns("*.py")
    )
    names = sorted(path.stem for path in (HERE / "notebooks").glob("*.ipynb"))
    tree = "\n".join(names)
    (HERE / "notebooks/index.md").write_text(
        f"# Notebooks\n\n```{{toctree}}\n:maxdepth: 1\n\n{tree}\n```\n",
        encoding="utf-8",
    )


def keep_layout(app, what, name, obj, options, lines: list[str]) -> None:
    """Indented parts that belong to no section are equations: kept as they are."""
    kept, head, inside = [], "", False
    for line in lines:
        indented = line.startswith(" ")
        if line.strip() and not indented:
            head, inside = line.rstrip(), False
        elif indented and not inside and head.rstrip(":") not in SECTIONS:
            inside = True
            kept += ["", "::", ""]
        kept.append(line)
    lines[:] = kept


def real_signature(app, what, name, obj, options, signature, returns):
    """NNX's metaclass hides what a module takes."""
    if what != "class" or signature != "(*args, **kwargs)":
        return None
    parameters = list(inspect.signature(obj.__init__).parameters.values())[1:]
    plain = [one.replace(annotation=one.empty) for one in parameters]
    return str(inspect.Signature(plain)), returns


def setup(app) -> None:
    app.connect("autodoc-process-docstring", keep_layout, priority=100)
    app.connect("autodoc-process-signature", real_signature)


write_api()
copy_texts()
