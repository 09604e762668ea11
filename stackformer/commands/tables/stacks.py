"""`--table=stacks`: one small transformer with every kind of stack, side by side."""

from typing import Any

from stackformer.commands import dcf, flags, paper_results
from stackformer.commands.paper_results import TASKS
from stackformer.commands.tables.cells import Cell, Settings, Table, read
from stackformer.problems.dcf.presets import preset_values
from stackformer.training.errors import UserError

# Rows: the paper's four tasks, and one that is not among them.
ROWS = {task: task for task in TASKS} | {"DYCK2": "stackformer.tasks.dyck_2:Dyck2"}
# Columns: what is in front of them in the table, the kind of stack, and its options.
COLUMNS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "none": ("No stack", None, {}),
    "superposition": ("Superposition", "superposition", {}),
    "projected": (
        "Projected superposition",
        "superposition",
        {"project": True, "value_features": 32},
    ),
    "nondeterministic": ("Nondeterministic", "nondeterministic", {}),
    "frames": ("Frames", "frames", {}),
    "pointer": ("Pointer", "pointer", {}),
    "several": ("Four stacks", "superposition", {"num_stacks": 4}),
}
# Small enough for two cores; what follows -- is over it.
BUDGET: dict[str, Any] = {
    "steps": 1_000,
    "batch_size": 16,
    "lr": 1e-3,
    "schedule": "cooldown",
    "train_length": 12,
    "test_length": 24,
    "test_strings": 32,
}
MODEL = {"num_layers": 1, "d_model": 32, "num_heads": 4}
NOTES = (
    "The same transformer (its size is in every command), the same steps, strings and "
    "seeds in every cell, all with MLM and soft actions in training; no column has a "
    "training of its own. What a stack learns with a longer or better one is not here.",
    "Accuracy counts single output symbols, over all lengths from one above the "
    "longest training string to the longest test string; mean ± sample standard "
    "deviation over seeds.",
    "Hard: the same model with the most probable action of its stack in place of the "
    "mixture; of a nondeterministic stack, the most probable run.",
    "The paper: Li, White, Sachan and Cotterell (2024), five layers of 64 features, "
    "trained on lengths 1..40 and tested on 41..100, five seeds, 100,000 steps (RS, "
    "SM) or 1,000,000 (MA, SE): another protocol, which our numbers cannot be "
    "compared with.",
    "Costs: a train step on RS in one process, contestants taking turns, the fastest "
    "repeat of each, as a multiple of that without a stack; memory is XLA's temporary "
    "memory.",
)


def stacks_table(settings: Settings) -> Table:
    """The table with the cells that the settings ask for.

    >>> from pathlib import Path
    >>> table = stacks_table(Settings(out=Path("runs"), tasks=["RS"], seeds=(0,)))
    >>> [cell.name for cell in table.cells][:2]
    ['RS-none-seeds0', 'RS-superposition-seeds0']
    """
    if settings.preset != "quick":
        raise UserError(
            "--preset should be left out with --table=stacks, which has a budget of "
            "its own; give other values after --, such as -- --train_length=20"
        )
    for name in ("models", "modes", "pos"):
        if getattr(settings, name) is not None:
            raise UserError(f"--{name} is not for --table=stacks; see --stacks")
    rows = [row for row in ROWS if settings.tasks is None or row in settings.tasks]
    columns = [
        column
        for column in COLUMNS
        if settings.stacks is None or column in settings.stacks
    ]
    if not rows:
        raise UserError(f"--tasks should be of {','.join(ROWS)} with --table=stacks")
    cells = [_cell(settings, row, column) for row in rows for column in columns]
    return Table(
        number="stacks",
        title="Stacks, side by side",
        unit="token accuracy in percent, on strings longer than any in training",
        rows=tuple(dict.fromkeys(cell.row for cell in cells)),
        columns=tuple(COLUMNS[column][0] for column in columns),
        cells=tuple(cells),
        notes=NOTES,
        costs=settings.out / "costs.json",
    )


def _cell(settings: Settings, row: str, column: str) -> Cell:
    label, stack, options = COLUMNS[column]
    task, model = ROWS[row], "stack_transformer" if stack else "transformer"
    words = [f"--task={task}", f"--model={model}", "--preset=smoke"]
    words += [f"--stack={stack}"] if stack else []
    budget = BUDGET | ({"steps": settings.steps} if settings.steps else {})
    over = {word.lstrip("-").partition("=")[0] for word in settings.extra}
    words += [f"--{name}={x}" for name, x in budget.items() if name not in over]
    # The preset's smaller frames are not wanted: the sizes of a stack are its own.
    sizes = {"item_features": 32, "hidden": 256} if stack == "frames" else {}
    fields = ",".join(f"{key}={x}" for key, x in (MODEL | sizes | options).items())
    words += [f"--model_config={fields}"]
    words += [f"--seeds={','.join(map(str, settings.seeds))}", *settings.extra]
    args = dcf.make_parser().parse_args(words)
    config = dcf.make_config(args)
    given = {"steps": settings.steps} if settings.steps else {}
    extra = dcf.given_fields(dcf.make_parser().parse_args(list(settings.extra)))
    name = flags.folder_of([row, column], given | extra | {"seeds": settings.seeds})
    identity = {"task": task, "model": model, "mode": "mlm", "pos": "none"}
    known = row in TASKS and column in ("none", "superposition")
    return Cell(
        row="Dyck-2" if row == "DYCK2" else row,
        column=label,
        identity=identity | {"stack": stack, "phases": config.phases},
        module="dcf",
        flags=tuple(words),
        folder=settings.out / name,
        expected=config.to_json(),
        paper=paper_results.lookup(row, model, "mlm") if known else None,
        paper_steps=preset_values("paper", row, model)["steps"] if known else None,
    )


def signature(table: Table) -> dict[str, Any]:
    """What measured costs are of; as long as it is the same they need no measuring."""
    one = table.cells[0].expected
    sizes = {cell.column: cell.expected["model_config"] for cell in table.cells}
    names = ("train_length", "test_length", "batch_size")
    return {**{name: one[name] for name in names}, "sizes": sizes}


def has_costs(table: Table) -> bool:
    """Whether the costs of just these columns are measured, or need not be."""
    if table.costs is None:
        return True
    return (read(table.costs) or {}).get("of") == signature(table)


def cost_rows(costs: dict[str, Any] | None, columns: list[str]) -> list[list[str]]:
    """Rows of text, the label first: time and memory as multiples of no stack.

    >>> timings = {"No stack": {"fastest": 2.0, "temp_mib": 1.0},
    ...            "Frames": {"fastest": 5.0, "temp_mib": 3.0}}
    >>> measured = [{"positions": 9, "batch_size": 4, "timings": timings}]
    >>> cost_rows({"measured": measured}, ["No stack", "Frames"])[0]
    ['Time of a train step, 9 positions', '1.0', '2.5']
    """
    rows = []
    for entry in (costs or {}).get("measured", []):
        timings = entry["timings"]
        base = timings.get(COLUMNS["none"][0])
        if base is None:
            continue
        for name, what in (("fastest", "Time of a train step"), ("temp_mib", "Memory")):
            texts = [
                f"{timings[column][name] / base[name]:.1f}" if column in timings else ""
                for column in columns
            ]
            rows.append([f"{what}, {entry['positions']} positions", *texts])
    return rows
