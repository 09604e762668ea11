"""Every `>>>` example in a docstring or a README is run."""

import doctest
import importlib
import pathlib
import pkgutil

import pytest

import experiments
import stackformer

ROOT = pathlib.Path(stackformer.__file__).parents[1]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def modules_with_examples():
    for package in (stackformer, experiments):
        prefix = package.__name__ + "."
        for info in pkgutil.walk_packages(package.__path__, prefix):
            path = ROOT.joinpath(*info.name.split("."))
            path = path / "__init__.py" if info.ispkg else path.with_suffix(".py")
            if ">>>" in path.read_text():
                yield info.name


@pytest.mark.parametrize("name", list(modules_with_examples()))
def test_docstring_examples(name):
    module = importlib.import_module(name)
    failed, attempted = doctest.testmod(module, optionflags=FLAGS)
    assert attempted and not failed


def markdown_with_examples():
    folders = ("stackformer", "experiments", "docs")
    paths = [ROOT / "README.md"]
    paths += [path for folder in folders for path in (ROOT / folder).rglob("*.md")]
    built = ("_build", "results", "notebooks", "api")  # of the site
    return [
        str(path.relative_to(ROOT))
        for path in paths
        if ">>>" in path.read_text() and not set(built) & set(path.parts)
    ]


@pytest.mark.parametrize("path", markdown_with_examples())
def test_markdown_examples(path):
    failed, attempted = doctest.testfile(
        str(ROOT / path), module_relative=False, optionflags=FLAGS
    )
    assert attempted and not failed
