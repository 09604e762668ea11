"""The cells of the paper's tables: which command makes each, and where it lies."""

import contextlib
import dataclasses
import importlib.util
import itertools
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stackformer.checks import MODES
from stackformer.commands import dcf, paper_results
from stackformer.commands.paper_results import POSITIONS, TASKS
from stackformer.problems.dcf.config import OF_EVALUATION
from stackformer.problems.dcf.presets import preset_values
from stackformer.training.checkpoints import stamp
from stackformer.training.errors import UserError

# What results.json of stack transformers did not say before 0.2.
_BEFORE = {"stack": "superposition", "phases": "soft"}
MODELS = ("rnn", "stack_rnn", "transformer", "stack_transformer")
DATASETS = ("ptb", "wikitext2")
# The paper's training keeps actions soft; ours makes them hard, and evaluates brackets.
PAPERS_STACK = {"stack": "superposition", "phases": "soft"}
OUR_STACKS = {
    "hard": {"stack": "superposition", "phases": "hard"},
    "frames": {"stack": "frames", "phases": "soft"},
}
# Where ours is the paper's stack, made hard; elsewhere it is the stack of frames.
HARD = ("RS", "SM")
LABELS = {
    "rnn": "RNN",
    "stack_rnn": "Stack-RNN",
    "transformer": "Transformer",
    "stack_transformer": "Stack transformer",
    "ours": "Ours",
    "ptb": "Penn Treebank",
    "wikitext2": "WikiText-2",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table and the run that measures it.

    Attributes:
      row: label of its row.
      column: label of its column.
      identity: what results.json must say, such as {"task": "RS", "model": "rnn"}.
      module: "dcf" or "lm": the command.
      flags: its flags, without --out.
      folder: its --out.
      expected: what config.json must say; empty where only the identity counts.
      paper: the paper's number.
      paper_steps: the paper's training steps, or None.
      longer: another results file of the same run, of longer strings, or None.
    """

    row: str
    column: str
    identity: dict[str, Any]
    module: str
    flags: tuple[str, ...]
    folder: Path
    expected: dict[str, Any] = dataclasses.field(default_factory=dict)
    paper: paper_results.Cell | None = None
    paper_steps: int | None = None
    longer: Path | None = None

    @property
    def name(self) -> str:
        """The folder's own name, which says what is trained."""
        return self.folder.name

    @property
    def arguments(self) -> list[str]:
        """What follows `python`."""
        return [*_door(self.module), *self.flags, f"--out={self.folder}"]

    @property
    def command(self) -> str:
        """The command as a user would type it."""
        return shlex.join(["python", *self.arguments])

    def is_of(self, results: dict[str, Any]) -> bool:
        """Whether a results.json is of this row and column, whatever the settings."""
        found = {**_BEFORE, **results, "pretrained": bool(results.get("pretrained"))}
        sizes = self.expected.get("model_config")
        if sizes is not None and found.get("model_config", sizes) != sizes:
            return False
        return all(found.get(key) == value for key, value in self.identity.items())

    def finished(self) -> bool:
        """Whether the folder holds the result of exactly this run."""
        results = read(self.folder / "results.json")
        config = read(self.folder / "config.json")
        if not results or not config or not self.is_of(results):
            return False
        if any(config.get(name) != value for name, value in self.expected.items()):
            return False
        mark = results.get("fingerprint", {}).get("configuration")
        if mark not in (
            None,
            stamp(config, 0, {}, without=OF_EVALUATION)["configuration"],
        ):
            return False
        whole = results["steps"] == self.expected.get("steps", results["steps"])
        return whole and fits_protocol(results, config)


def _door(module: str) -> list[str]:
    """How python starts a command: from a clone, or from the installed package."""
    with contextlib.suppress(ModuleNotFoundError):
        if importlib.util.find_spec(f"experiments.{module}"):
            return ["-m", f"experiments.{module}"]
    return ["-m", "stackformer", module]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """One of the paper's tables, or ours: labels, cells, and what its numbers are.

    Attributes:
      number: the paper's, or a name.
      title: of the table.
      unit: of its numbers.
      rows: labels.
      columns: labels.
      cells: those that there are.
      notes: instead of those of the paper's tables.
      costs: the file of measured costs, for a table that has some.
    """

    number: int | str
    title: str
    unit: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] | None = None
    costs: Path | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What the flags of `experiments.tables` ask for; None means all of a table."""

    out: Path
    tasks: Sequence[str] | None = None
    models: Sequence[str] | None = None
    modes: Sequence[str] | None = None
    pos: Sequence[str] | None = None
    stacks: Sequence[str] | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    preset: str = "quick"
    steps: int | None = None
    extra: tuple[str, ...] = ()
    data_dirs: dict[str, str] = dataclasses.field(default_factory=dict)
    pretrained: dict[str, str] = dataclasses.field(default_factory=dict)


def read(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where the file is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def fits_protocol(results: dict[str, Any], config: dict[str, Any]) -> bool:
    """Whether an evaluation is at least what its run's configuration asks for.

    Another one (longer strings, but fewer of them) is no result for a table.

    >>> config = {"test_length": 100, "test_strings": 512}
    >>> fits_protocol({"test_length": 500, "test_strings": 1}, config)
    False
    """
    far = results.get("test_length", 0) >= config.get("test_length", 0)
    strings = config.get("test_strings", results.get("test_strings"))
    return far and results.get("test_strings") == strings


def make_table(number: int, settings: Settings) -> Table:
    """Table 1, 2 or 3 with the cells that the settings ask for.

    >>> table = make_table(1, Settings(out=Path("runs"), tasks=["RS"], seeds=(0,)))
    >>> len(table.cells), table.cells[3].column
    (8, 'Stack transformer, MLM')
    >>> table.cells[2].command.partition(" --out")[0]
    'python -m experiments.dcf --task=RS --model=transformer --seeds=0'
    """
    cells = {1: _table_1, 2: _table_2, 3: _table_3}[number](settings)
    if not cells:
        raise UserError(
            f"no cell of table {number} is left by --tasks, --models, --modes and --pos"
        )
    title, unit = {
        1: (
            "RNNs and transformers without and with stacks",
            "token accuracy in percent, on strings longer than any in training",
        ),
        2: (
            "Positional encodings",
            "token accuracy in percent, on strings longer than any in training",
        ),
        3: ("Language modeling", "perplexity on the test split (lower is better)"),
    }[number]
    return Table(
        number=number,
        title=title,
        unit=unit,
        rows=tuple(dict.fromkeys(cell.row for cell in cells)),
        columns=tuple(dict.fromkeys(cell.column for cell in cells)),
        cells=tuple(cells),
    )


def _dcf_cell(
    settings: Settings, row: str, column: str, identity: dict[str, str]
) -> Cell:
    flags = [f"--task={identity['task']}", f"--model={identity['model']}"]
    defaults = {"mode": "mlm", "pos": "none"}
    flags += [
        f"--{name}={identity[name]}"
        for name in ("mode", "pos", "stack", "phases")
        if identity.get(name) != defaults.get(name)
    ]
    if settings.preset != "quick":
        flags.append(f"--preset={settings.preset}")
    if settings.steps is not None:
        flags.append(f"--steps={settings.steps}")
    flags.append(f"--seeds={','.join(map(str, settings.seeds))}")
    flags += settings.extra
    args = dcf.make_parser().parse_args(flags)
    config = dcf.make_config(args)
    values = preset_values("paper", identity["task"], identity["model"])
    return Cell(
        row=row,
        column=column,
        identity=identity,
        module="dcf",
        flags=tuple(flags),
        folder=settings.out / dcf.default_out(config, args).name,
        expected=config.to_json(),
        paper=paper_results.lookup(**_lookup(identity)),
        paper_steps=values["steps"],
    )


def _lookup(identity: dict[str, str]) -> dict[str, str]:
    names = {"task": "task", "model": "model", "mode": "mode", "pos": "positions"}
    return {name: identity[key] for key, name in names.items()}


def _wanted(asked: Sequence[str] | None, value: str) -> bool:
    return asked is None or value in asked


def _table_1(settings: Settings) -> list[Cell]:
    columns = [("rnn", "mlm"), ("stack_rnn", "mlm")]
    columns += [(model, mode) for mode in MODES for model in MODELS[2:]]
    columns += [("ours", mode) for mode in MODES]
    cells = []
    for task in TASKS:
        for model, mode in columns:
            asked = (settings.tasks, task), (settings.models, model)
            if not all(
                _wanted(*pair) for pair in (*asked, (settings.modes, mode))
            ) or not _wanted(settings.pos, "none"):
                continue
            identity = {"task": task, "model": model, "mode": mode, "pos": "none"}
            recurrent = model.endswith("rnn")
            column = LABELS[model] + ("" if recurrent else f", {mode.upper()}")
            if model == "stack_transformer":
                identity |= PAPERS_STACK
            elif model == "ours":
                stack = OUR_STACKS["hard" if task in HARD else "frames"]
                identity |= {"model": "stack_transformer", **stack}
            cell = _dcf_cell(settings, task, column, identity)
            cells.append(
                dataclasses.replace(cell, paper=None) if model == "ours" else cell
            )
    return cells


def _table_2(settings: Settings) -> list[Cell]:
    cells = []
    for mode, task, model in itertools.product(MODES, TASKS, (*MODELS[2:], "ours")):
        if model == "ours" and task not in HARD:
            continue  # the stack of frames stands without attention: no positions
        for pos in POSITIONS:
            asked = (
                (settings.tasks, task),
                (settings.models, model),
                (settings.modes, mode),
                (settings.pos, pos),
            )
            if not all(_wanted(*pair) for pair in asked):
                continue
            identity = {"task": task, "model": model, "mode": mode, "pos": pos}
            paper = paper_results.TABLE_2.get((task, model, mode, pos))
            row = f"{task} {mode.upper()}, {LABELS[model].lower()}"
            if model == "stack_transformer":
                identity |= PAPERS_STACK
            elif model == "ours":
                identity |= {"model": "stack_transformer", **OUR_STACKS["hard"]}
            cell = _dcf_cell(settings, row, pos, identity)
            cells.append(dataclasses.replace(cell, paper=paper))
    return cells


def _table_3(settings: Settings) -> list[Cell]:
    cells = []
    for (start, mode, dataset, stack), paper in paper_results.TABLE_3.items():
        model = "stack_transformer" if stack else "transformer"
        asked = (
            (settings.tasks, dataset),
            (settings.models, model),
            (settings.modes, mode),
        )
        if not all(_wanted(*pair) for pair in asked):
            continue
        flags = [f"--task={mode}", f"--dataset={dataset}"]
        flags.append(f"--data_dir={settings.data_dirs.get(dataset, 'DIR')}")
        if start == "pretrained":
            flags.append(f"--pretrained={settings.pretrained.get(mode, 'DIR')}")
        if not stack:
            flags.append("--nostack")
        if settings.steps is not None:
            flags.append(f"--steps={settings.steps}")
        flags.append(f"--seeds={','.join(map(str, settings.seeds))}")
        flags += settings.extra
        seeds = "_".join(map(str, settings.seeds))
        parts = ["lm", start, mode, dataset, "stack" if stack else "vanilla"]
        parts += [f"steps{settings.steps}"] if settings.steps else []
        parts += [flag.lstrip("-").replace("=", "") for flag in settings.extra]
        name = "-".join([*parts, f"seeds{seeds}"]).replace("/", "_")
        cells.append(
            Cell(
                row=f"{'From scratch' if start == 'scratch' else 'Pretrained'}, "
                f"{mode.upper()}",
                column=f"{LABELS[dataset]}, {'stack' if stack else 'vanilla'}",
                identity={
                    "task": mode,
                    "dataset": dataset,
                    "stack": stack,
                    "pretrained": start == "pretrained",
                },
                module="lm",
                flags=tuple(flags),
                folder=settings.out / name,
                paper=paper,
            )
        )
    return cells


def missing_folder(cell: Cell) -> str | None:
    """Why a cell of table 3 cannot be run: the flag that is missing."""
    if cell.module != "lm":
        return None
    if "--data_dir=DIR" in cell.flags:
        return f"give the text with --{cell.identity['dataset']}_dir=DIR"
    if "--pretrained=DIR" in cell.flags:
        model = "gpt2" if cell.identity["task"] == "alm" else "roberta"
        return f"give the weights with --{model}_dir=DIR"
    return None
