"""Perplexities of finished `experiments.lm` runs beside the paper's Table 3.

    python -m experiments.lm_table runs/lm-small/*

prints a table in Markdown, one row a run.
"""

from pathlib import Path
from typing import Any

from stackformer.commands import cli, paper_results
from stackformer.training.errors import UserError
from stackformer.training.records import read_json

EXAMPLES = ["python -m experiments.lm_table runs/lm-small/*"]
HEADER = (
    "| task | dataset | size | model | seeds | steps | valid perplexity | "
    "test perplexity | paper, base size |\n|---|---|---|---|---|---|---|---|---|"
)


def row(results: dict[str, Any]) -> str:
    """One run as a row of the table."""
    start = "pretrained" if results["pretrained"] else "scratch"
    key = (start, results["task"], results["dataset"], results["stack"])
    paper = paper_results.TABLE_3[key]
    cells = [
        results["task"].upper(),
        results["dataset"],
        results["size"],
        "stack" if results["stack"] else "vanilla",
        str(len(results["runs"])),
        f"{results['steps']:,}",
    ]
    for split in ("valid", "test"):
        mean = results[f"perplexity_{split}"]
        cells.append(f"{mean:.2f} ± {results[f'perplexity_{split}_std']:.2f}")
    cells.append(f"{paper.mean:.2f} ± {paper.std:.2f}")
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """The command."""
    parser = cli.parser("lm_table", (__doc__ or "").split("\n\n")[0], EXAMPLES)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    args = parser.parse_args()
    rows = [HEADER]
    for folder in args.runs:
        results = read_json(folder / "results.json")
        if "perplexity_test" not in results:
            raise UserError(f"{folder} should be a run of experiments.lm, but is not")
        rows.append(row(results))
    print("\n".join(rows))
    return 0
