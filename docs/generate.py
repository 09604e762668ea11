"""What the site shows that stands elsewhere: API, results, notebooks, live pages."""

import contextlib
import importlib
import inspect
import io
import os
import re
import shutil
import types
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Public packages, of which every name in `__all__` has an entry, and modules that are
# imported by their own names, with all functions that they define.
PACKAGES = {
    "stackformer": "The names that most users need.",
    "stackformer.ops": "Kernels: pure functions of arrays.",
    "stackformer.ops.stack_attention": "Stack attention in all its forms.",
    "stackformer.ops.frames": "The stack of frames as functions.",
    "stackformer.ops.nondeterministic": "The nondeterministic stack.",
    "stackformer.ops.pointer": "The stack with a pointer.",
    "stackformer.nn": "NNX modules.",
    "stackformer.nn.stacks": "Stacks behind one protocol.",
    "stackformer.nn.stacks.frames": "The stack of frames.",
    "stackformer.nn.stacks.superposition": "The stack of the paper.",
    "stackformer.nn.cells": "Cells of the recurrent baselines.",
    "stackformer.models": "Whole models.",
    "stackformer.models.transformer": "The stack transformer.",
    "stackformer.models.language": "GPT-2 and RoBERTa, with stacks or without.",
    "stackformer.models.huggingface": "Folders of the Hugging Face hub.",
    "stackformer.tasks": "Formal languages, sampled on the device.",
    "stackformer.tasks.sampling": "Draws for a task of your own.",
    "stackformer.data.chunks": "Streams and documents of tokens in rows of one length.",
    "stackformer.data.dcf": "Frozen test sets of the tasks, as TFDS data sets.",
    "stackformer.data.masking": "Masked tokens, for MLM.",
    "stackformer.data.text": "WikiText-2 and Penn Treebank from a folder of yours.",
    "stackformer.training": "The engine.",
    "stackformer.problems.dcf": "Length generalization on formal languages.",
    "stackformer.problems.lm": "Language modeling on text.",
    "stackformer.viz": "Curves, maps, the explorer.",
}
# Texts of the repository that are pages of the site, too.
TEXTS = {
    "experiments/results/README.md": "results/index.md",
    "experiments/results/table1.md": "results/table1.md",
    "experiments/results/table2.md": "results/table2.md",
    "experiments/results/table3.md": "results/table3.md",
    "experiments/results/curriculum/table1.md": "results/curriculum.md",
    "experiments/results/accuracy/table1.md": "results/accuracy.md",
    "experiments/results/stacks/stacks.md": "results/stacks.md",
    "experiments/results/lm/README.md": "results/lm.md",
    "stackformer/ops/stack_attention/README.md": "inside/kernel.md",
    "stackformer/ops/frames/README.md": "inside/frames.md",
    "stackformer/ops/nondeterministic/README.md": "inside/nondeterministic.md",
    "stackformer/ops/pointer/README.md": "inside/pointer.md",
    "stackformer/nn/README.md": "inside/nn.md",
    "stackformer/tasks/README.md": "inside/tasks.md",
    "stackformer/training/README.md": "inside/training.md",
    "stackformer/viz/README.md": "inside/viz.md",
}
# Whole pages, which Sphinx copies as they are, and the address they get.
PAGES = {
    "experiments/results/report.html": "report.html",
    "experiments/results/curriculum/report.html": "curriculum.html",
    "experiments/results/accuracy/report.html": "accuracy.html",
    "experiments/results/stacks/report.html": "stacks.html",
}
# Models of the package that can be played with, and the string that they are shown.
LIVE = {"rs": "abbaab", "ma": "((3*(1+4))-(2+(-3)))"}
_LINK = re.compile(
    r"(?<!!)\[([^][]+|\*\*[^][]+\*\*)\]\((?!\w+:)([^()#\s]+)(#[^()\s]*)?\)"
)
_OBJECT = re.compile(
    r"<(?:function|class|object|bound method) '?([\w.]+?)(?:\.<\w+>[\w.<>]*)?'?"
    r"(?: at 0x\w+)?>"
)
_PICTURE = re.compile(r"!\[([^][]*)\]\((?!\w+:)([^()\s]+)\)")


def write_api(folder: Path) -> None:
    """A page for each package, an entry for each public name."""
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
        for name in public_names(module):
            value = getattr(module, name)
            # What stands in two packages is indexed once.
            again = ["   :no-index:"] if id(value) in seen else []
            if isinstance(value, type(importlib)):
                lines += [f"`{package}.{name}`: a package.", ""]
            elif isinstance(value, type):
                lines += [f".. autoclass:: {package}.{name}", *again, ""]
            elif callable(value) and hasattr(value, "__module__"):
                lines += [f".. autofunction:: {package}.{name}", *again, ""]
            else:
                shown = without_addresses(repr(value))
                lines += [f".. py:data:: {package}.{name}", f"   :value: {shown}"]
                lines += [*again, ""]
            seen.add(id(value))
        (folder / f"{package}.rst").write_text("\n".join(lines), encoding="utf-8")


def public_names(module: types.ModuleType) -> list[str]:
    """What a package exports, or the functions that a module defines.

    >>> from stackformer.data import masking
    >>> public_names(masking)
    ['mask_tokens', 'mask_rows']
    """
    own = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    public = [name for name in own if not name.startswith("_")]
    return getattr(module, "__all__", public)


def without_addresses(text: str) -> str:
    """Functions and types in a text by their names alone.

    >>> without_addresses("(f=<function init.<locals>.g at 0x7f>, d=<class 'a.b'>)")
    '(f=init, d=a.b)'
    """
    return _OBJECT.sub(r"\1", text)


def copy_texts(site: Path) -> None:
    """Results, the notes beside the code, and the notebooks."""
    for name in ("results", "inside", "notebooks"):
        shutil.rmtree(site / name, ignore_errors=True)
    for source, target in TEXTS.items():
        text = with_links((ROOT / source).read_text(encoding="utf-8"), source, site)
        if target == "results/index.md":
            text += _contents(
                *("table1", "table2", "table3"),
                *("Table 1, short strings first <curriculum>", "stacks"),
                *("RNNs, short strings first <accuracy>", "lm"),
            )
        (site / target).parent.mkdir(exist_ok=True)
        (site / target).write_text(text, encoding="utf-8")
    pages = [Path(name).stem for name in TEXTS.values() if name.startswith("inside/")]
    head = (
        "# Inside\n\nThe notes that stand beside the code: derivations, costs, rules.\n"
    )
    text = head + _contents(*pages)
    (site / "inside/index.md").write_text(text, encoding="utf-8")
    shutil.copytree(
        ROOT / "notebooks", site / "notebooks", ignore=shutil.ignore_patterns("*.py")
    )
    names = sorted(path.stem for path in (site / "notebooks").glob("*.ipynb"))
    text = f"# Notebooks\n{_contents(*names)}"
    (site / "notebooks/index.md").write_text(text, encoding="utf-8")


def _contents(*names: str) -> str:
    tree = "\n".join(names)
    return f"\n```{{toctree}}\n:maxdepth: 1\n\n{tree}\n```\n"


def with_links(text: str, source: str, site: Path) -> str:
    """A text of the repository, with links that lead somewhere on the site.

    A link to a page of the site leads to it, one to a picture or data brings the file
    along, and a folder, which only a clone has, is named instead.
    """
    here = Path(TEXTS[source]).parent

    def at(link: str) -> str:
        path = os.path.normpath(Path(source).parent / link)
        if not (ROOT / path).exists():
            raise ValueError(f"{source}: no such file: {link}")
        return Path(path).as_posix()

    def bring(path: str) -> str:
        name = "-".join(Path(path).parts[-2:])
        (site / here).mkdir(exist_ok=True)
        shutil.copy(ROOT / path, site / here / name)
        return name

    def link(match: re.Match) -> str:
        words, path, anchor = match[1], at(match[2]), match[3] or ""
        if path in TEXTS:
            return f"[{words}]({os.path.relpath(TEXTS[path], here)}{anchor})"
        if path in PAGES:
            address = os.path.relpath(PAGES[path], here)
            return f'<a href="{address}">{words}</a>'
        if (ROOT / path).is_dir():
            return f"`{path}` of the repository"
        return f"[{words}]({bring(path)})"

    def picture(match: re.Match) -> str:
        return f"![{match[1]}]({bring(at(match[2]))})"

    # Code is no text: what looks like a link there is none.
    parts = re.split(r"(```[^`]*```|`[^`\n]*`)", text)
    for i in range(0, len(parts), 2):
        parts[i] = _PICTURE.sub(picture, _LINK.sub(link, parts[i]))
    return "".join(parts)


def write_pages(folder: Path) -> None:
    """Reports, and the explorers of shipped models, which need no server."""
    from stackformer.commands.attention_maps import main

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for source, target in PAGES.items():
        shutil.copy(ROOT / source, folder / target)
    for name, text in LIVE.items():
        with contextlib.redirect_stdout(io.StringIO()):
            main([f"--out={name}", f"--input={text}", "--html", f"--save_to={folder}"])
