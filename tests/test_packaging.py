"""Names, what is imported, and what the source distribution holds."""

import ast
import pathlib
import subprocess
import sys
import tomllib

import pytest

import stackformer
import stackformer_jax

ROOT = pathlib.Path(stackformer.__file__).parents[1]
HEAVY = ("optax", "orbax", "tensorflow_datasets", "matplotlib", "tqdm", "tensorboardX")


def python(code: str, *path: pathlib.Path) -> subprocess.CompletedProcess:
    paths = [str(p) for p in (*path, ROOT)]
    code = f"import sys; sys.path[:0] = {paths!r}; {code}"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "code", ["import stackformer", "import stackformer; stackformer.stack_attention"]
)
def test_the_core_is_light(code):
    done = python(f"{code}; print([n for n in {HEAVY} if n in sys.modules])")
    assert done.stdout == "[]\n", done


def test_every_public_name_is_there():
    for name in stackformer.__all__:
        assert getattr(stackformer, name) is not None
    assert set(stackformer.__all__) == set(dir(stackformer))


def test_names_of_the_distribution():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "stackformer-jax"
    assert project["requires-python"] == ">=3.11"
    own = [n for n in project["optional-dependencies"]["test"] if "stackformer" in n]
    assert own == ["stackformer-jax[lm,tables,tensorboard,notebooks]"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {stackformer.__version__}" in citation
    assert stackformer_jax.is_ours()


def test_the_other_package_over_ours(tmp_path):
    (tmp_path / "stackformer").mkdir()
    (tmp_path / "stackformer/__init__.py").write_text("import no_such_torch\n")
    done = python("import stackformer_jax; stackformer_jax.main()", tmp_path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "pip install stackformer-jax" in done.stderr


def test_the_other_package_beside_ours(tmp_path):
    info = tmp_path / "stackformer-0.1.10.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: stackformer\nVersion: 0.1.10\n"
        "Requires-Dist: torch>=2\n"
    )
    done = python("import stackformer", tmp_path)
    assert done.returncode == 0
    assert "pip uninstall stackformer stackformer-jax" in done.stderr
    assert "pip install -e . in a clone" in done.stderr


def test_no_module_needs_what_windows_lacks():
    """`resource` and `fcntl` may be missing; everything imports without them."""
    done = python(
        "sys.modules['resource'] = sys.modules['fcntl'] = None; "
        "import stackformer.problems.lm.timing, stackformer.training.records, "
        "stackformer.commands.tables.command"
    )
    assert done.returncode == 0, done.stderr


def text_without_encoding(path: pathlib.Path) -> list[str]:
    """Calls that read or write text as the machine's locale has it."""
    found = []
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        given = {keyword.arg for keyword in call.keywords}
        binary = any(
            isinstance(x, ast.Constant) and isinstance(x.value, str) and "b" in x.value
            for x in call.args[:2]
        )
        opens = name in ("read_text", "write_text", "open", "fdopen") and not binary
        own = isinstance(call.func, ast.Name) and name == "write_text"
        runs = given >= {"capture_output", "text"}
        if ((opens and not own) or runs) and "encoding" not in given:
            found.append(f"{path.relative_to(ROOT)}:{call.lineno}")
    return found


def test_text_is_utf_8_everywhere():
    """Elsewhere the locale decides: cp1252 on Windows."""
    paths = [*(ROOT / "stackformer").rglob("*.py"), *(ROOT / "docs").glob("*.py")]
    assert [x for path in paths for x in text_without_encoding(path)] == []
