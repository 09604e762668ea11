"""The rules that the whole library keeps, read from its source."""

import ast
import pathlib
import re

import stackformer

ROOT = pathlib.Path(stackformer.__file__).parent
# What each part may import, beside itself and the helpers that import nothing.
MAY_IMPORT = {
    "ops": (),
    "nn": ("ops",),
    "models": ("nn", "ops"),
    "tasks": (),
    "data": ("tasks",),
    "training": (),
    "viz": (),
    "problems": ("data", "models", "nn", "ops", "tasks", "training"),
    "commands": ("data", "models", "nn", "ops", "problems", "tasks", "training", "viz"),
}
HELPERS = ("checks", "extras")


def sources():
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT), ast.parse(path.read_text())


def imported(tree) -> set[str]:
    """The parts of the library that a module imports, inside functions too."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    parts = [name.split(".") for name in names]
    return {part[1] for part in parts if part[0] == "stackformer" and part[1:]}


def test_imports_point_one_way():
    wrong, seen = [], set()
    for path, tree in sources():
        part = path.parts[0].removesuffix(".py")
        if part in ("__init__", "__main__"):
            continue
        seen.add(part)
        allowed = {part, *HELPERS, *MAY_IMPORT.get(part, ())}
        wrong += [f"{path}: {name}" for name in imported(tree) - allowed]
    assert not wrong
    assert seen == {*MAY_IMPORT, *HELPERS}


def test_settings_have_one_source():
    """The modes of a model, and what they are called, stand in one place."""
    lines = [
        str(path)
        for path, _ in sources()
        if '"mlm", "alm"' in (ROOT / path).read_text(encoding="utf-8")
    ]
    assert lines == ["checks.py"]


def raised(tree):
    """The words of every error that a module raises."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            words = (n.value for n in ast.walk(node.exc) if isinstance(n, ast.Constant))
            yield " ".join(word for word in words if isinstance(word, str))


def test_errors_have_one_wording():
    """Errors say "`x` should be …, but got …"; the commands alone name flags."""
    wrong = []
    for path, tree in sources():
        for words in raised(tree):
            old = " must " in words or (
                "got" in words.split() and "but got" not in words
            )
            flag = " --" in f" {words}" and "python -m" not in words
            flag = flag and path.parts[0] != "commands"
            wrong += [f"{path}: {words}"] * (old or flag)
    assert not wrong


def test_docstrings_have_one_indent():
    """What stands under `Args:` and its kin is two columns further in."""
    section = re.compile(
        r"^( *)(?:Args|Attributes|Returns|Raises|Example):\n( *)\S", re.MULTILINE
    )
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    seen, wrong = 0, []
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                text = ast.get_docstring(node, clean=False) or ""
                for found in section.finditer(text):
                    seen += 1
                    if len(found[2]) != len(found[1]) + 2:
                        wrong.append(f"{path}: {found[0]!r}")
    assert seen > 300 and not wrong
