"""The site: Sphinx, the book theme, Markdown, and the API from the docstrings."""

import inspect
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]

import generate  # noqa: E402

import stackformer  # noqa: E402

project = "stackformer"
author = "The stackformer authors"
copyright = "2026, the stackformer authors; Apache-2.0"
release = version = stackformer.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "sphinx_book_theme"
html_title = "stackformer"
html_theme_options = {"show_toc_level": 2, "home_page_in_toc": True}
html_extra_path = ["_pages"]
exclude_patterns = ["_build", "_pages", "images"]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # tests/test_notebooks.py runs them
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_use_ivar = True
suppress_warnings = ["mystnb.unknown_mime_type", "ref.python"]

SECTIONS = (
    *("Args", "Attributes", "Returns", "Raises", "Yields"),
    *("Example", "Examples", "Reference", "References", "Note", "Notes"),
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
    """NNX's metaclass hides what a module takes; functions are shown by their names."""
    if what == "class" and signature == "(*args, **kwargs)":
        parameters = list(inspect.signature(obj.__init__).parameters.values())[1:]
        plain = [one.replace(annotation=one.empty) for one in parameters]
        signature = str(inspect.Signature(plain))
    return signature and generate.without_addresses(signature), returns


def setup(app) -> None:
    app.connect("autodoc-process-docstring", keep_layout, priority=100)
    app.connect("autodoc-process-signature", real_signature)


generate.write_api(HERE / "api")
generate.copy_texts(HERE)
generate.write_pages(HERE / "_pages")
