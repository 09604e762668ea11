"""The tables' runner, with a stand-in for `experiments.dcf` that takes no time."""

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from stackformer.commands import paper_results
from stackformer.commands.tables import command as tables
from stackformer.commands.tables import launch as tables_launch
from stackformer.commands.tables.cells import Settings, make_table
from stackformer.commands.tables.launch import LocalLauncher
from stackformer.commands.tables.live import LiveTable, progress
from stackformer.commands.tables.results import (
    collect,
    find_results,
    measure,
    to_markdown,
    write_outputs,
)
from stackformer.commands.tables.run import Entry, Runner
from stackformer.commands.tables.stacks import has_costs, signature, stacks_table
from stackformer.problems import dcf
from stackformer.training.errors import UserError

# A `python` that behaves like experiments.dcf: vanilla is broken, the stack RNN runs
# until it is told to stop, everything else is right at once.
STAND_IN = """\
#!{python}
import json, signal, sys, time
from pathlib import Path

flags = dict(word[2:].partition("=")[::2] for word in sys.argv[3:])
out = Path(flags["out"])
out.mkdir(parents=True, exist_ok=True)
count = out / "starts"
count.write_text(count.read_text() + "x" if count.exists() else "x")
if flags["model"] == "transformer":
    print("step 1\\nerror: the loss became nan at step 40, seed 1")
    sys.exit(2)
if flags["model"] == "stack_rnn" and not (out / "saved").exists():
    def stop(*_):
        (out / "saved").touch()
        sys.exit(0)
    signal.signal(signal.SIGTERM, stop)
    (out / "metrics.jsonl").write_text('{{"step": 7, "accuracy": [0.5, 0.7]}}\\n')
    time.sleep(60)
config = json.loads((out / "expected.json").read_text())
(out / "config.json").write_text(json.dumps({{**config, "command": "python x"}}))
per_length = {{str(n): 1.0 if n < 9 else 0.5 for n in range(1, 13)}}
run = {{"per_length": per_length, "seconds": 60.0}}
names = ("task", "model", "mode", "pos", "steps", "train_length", "test_length",
         "test_strings")
(out / "results.json").write_text(json.dumps({{
    **{{name: config[name] for name in names}}, "chance": 0.5,
    "runs": [{{"seed": seed, **run}} for seed in config["seeds"]],
}}))
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    script = tmp_path / "python"
    script.write_text(textwrap.dedent(STAND_IN).format(python=sys.executable))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(tables_launch, "PYTHON", str(script))
    return script


def smoke_table(out, number=1, **settings):
    table = make_table(
        number, Settings(out=out, **{"preset": "smoke", "seeds": (0, 1), **settings})
    )
    for cell in table.cells:
        cell.folder.mkdir(parents=True, exist_ok=True)
        (cell.folder / "expected.json").write_text(json.dumps(cell.expected))
    return table


def starts(cell):
    path = cell.folder / "starts"
    return len(path.read_text()) if path.exists() else 0


def test_tables_are_the_papers():
    one = make_table(1, Settings(out=Path("x")))
    assert len(one.cells) == 32 and one.rows == ("RS", "SM", "MA", "SE")
    ours = [cell for cell in one.cells if cell.column.startswith("Ours")]
    assert len(ours) == 8 and not any(cell.paper for cell in ours)
    stacks = {(cell.row, cell.identity["stack"]) for cell in ours}
    assert {("RS", "superposition"), ("MA", "frames")} < stacks
    assert one.columns[1:3] == ("Stack-RNN", "Transformer, MLM")
    two = make_table(2, Settings(out=Path("x")))
    assert len(two.cells) == 100
    assert len({cell.folder for cell in two.cells}) == 100
    ours = [cell for cell in two.cells if cell.row.endswith("ours")]
    assert {cell.row[:6] for cell in ours} == {"RS MLM", "RS ALM", "SM MLM", "SM ALM"}
    assert all(cell.identity["phases"] == "hard" for cell in ours)
    # The two tables share runs, but not every number that the paper prints for them.
    shared = {cell.folder: cell for cell in two.cells}
    both = [(cell, shared[cell.folder]) for cell in one.cells if cell.folder in shared]
    assert len(both) == 20
    differ = [a.name.split("-quick")[0] for a, b in both if a.paper != b.paper]
    assert differ == [
        "SM-transformer-alm-none",
        "MA-stack_transformer-superposition-alm-none",
    ]
    three = make_table(3, Settings(out=Path("x"), tasks=["wikitext2"]))
    assert len(three.cells) == 8 and three.cells[0].paper.mean == 73.74
    some = make_table(2, Settings(out=Path("x"), tasks=["SM"], pos=["alibi"]))
    assert [cell.paper for cell in some.cells] == [
        paper_results.TABLE_2.get(("SM", model, mode, "alibi"))
        for mode in ("mlm", "alm")
        for model in ("transformer", "stack_transformer", "ours")
    ]


def test_jobs_share_the_cores_and_a_free_share_is_used_again(
    stand_in, tmp_path, monkeypatch
):
    given = []
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda pid: {0, 1, 2, 5}, raising=False
    )
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda pid, cores: given.append(cores), raising=False
    )
    table = smoke_table(tmp_path / "out", tasks=["RS"], models=["rnn", "stack_rnn"])
    launcher = LocalLauncher(jobs=2)
    waits = launcher.start(table.cells[1])
    for _ in range(2):
        ended = launcher.start(table.cells[0])
        while ended.poll() is None:
            time.sleep(0.01)
    waits.kill()
    assert given == [[0, 2], [1, 5], [1, 5]]


def test_broken_cells_do_not_stop_the_rest_and_finished_ones_are_skipped(
    stand_in, tmp_path
):
    table = smoke_table(
        tmp_path / "out",
        tasks=["RS"],
        models=["rnn", "transformer", "stack_transformer"],
    )
    runner = Runner(table.cells, LocalLauncher(jobs=2), jobs=2)
    runner.run()
    states = [entry.state for entry in runner.entries]
    assert states == ["finished", "broken", "finished", "broken", "finished"]
    assert runner.entries[1].reason == "error: the loss became nan at step 40, seed 1"
    assert progress(runner.entries[0]) == "66.7 ± 0.0 (paper 81.0 ± 0.8)"
    again = Runner(table.cells, LocalLauncher())
    assert again.entries[0].state == "finished"
    again.run()
    assert [starts(cell) for cell in table.cells] == [1, 2, 1, 2, 1]

    # A result of other settings in the folder, or a damaged one, is not "finished".
    cell = table.cells[0]
    path = cell.folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "steps": 3}))
    assert not cell.finished()
    path.write_text(json.dumps(config))
    assert cell.finished()
    (cell.folder / "results.json").write_text('{"task": "RS", "mo')
    assert not cell.finished()


def test_budget_stops_cleanly_and_the_next_start_goes_on(stand_in, tmp_path):
    table = smoke_table(tmp_path, tasks=["RS", "SM"], models=["stack_rnn"])
    begin = time.monotonic()
    runner = Runner(table.cells, LocalLauncher(), budget_seconds=1.0)
    runner.run()
    assert time.monotonic() - begin < 20
    assert runner.stopped_by == "the time budget is spent"
    assert [entry.state for entry in runner.entries] == ["stopped", "waiting"]
    first = table.cells[0]
    assert (first.folder / "saved").exists(), "the cell was killed, not told to stop"
    assert "step 7/20" in progress(runner.entries[0])
    (table.cells[1].folder / "saved").touch()
    again = Runner(table.cells, LocalLauncher(), budget_seconds=60.0)
    again.run()
    assert [entry.state for entry in again.entries] == ["finished", "finished"]
    assert starts(first) == 2


def test_signal_stops_cleanly(stand_in, tmp_path):
    table = smoke_table(tmp_path, tasks=["RS"], models=["stack_rnn"])

    class Live(LiveTable):
        def update(self, entries, note=""):
            if (table.cells[0].folder / "metrics.jsonl").exists() and not note:
                os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    runner = Runner(table.cells, LocalLauncher(), live=Live(sys.stderr))
    runner.run()
    assert runner.stopped_by == "interrupted"
    assert runner.entries[0].state == "stopped"
    assert (table.cells[0].folder / "saved").exists()
    assert signal.getsignal(signal.SIGTERM) == before


def test_submitit_local_executor_runs_breaks_and_stops(stand_in, tmp_path):
    pytest.importorskip("submitit")
    models = ["stack_rnn", "transformer", "stack_transformer"]
    table = smoke_table(tmp_path / "out", tasks=["RS"], models=models, modes=["mlm"])
    launcher = tables_launch.SubmititLauncher(
        tmp_path / "jobs", "local", timeout_min=5, stderr_to_stdout=True
    )
    stack = table.cells[0].folder / "metrics.jsonl"

    class UntilAllAreThere(LiveTable):
        def update(self, entries, note=""):
            states = [entry.state for entry in entries]
            if states[1:] == ["broken", "finished"] and stack.exists() and not note:
                os.kill(os.getpid(), signal.SIGTERM)

    runner = Runner(
        table.cells,
        launcher,
        jobs=3,
        live=UntilAllAreThere(sys.stderr),
        budget_seconds=60,
    )
    runner.run()
    assert [entry.state for entry in runner.entries] == [
        "stopped",
        "broken",
        "finished",
    ]
    assert (table.cells[0].folder / "saved").exists()
    assert "nan at step 40" in runner.entries[1].reason


def test_submitit_missing_says_how_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"pip install 'stackformer-jax\[tables\]'"):
        tables_launch.SubmititLauncher(tmp_path)


def test_numbers_in_json_and_markdown(stand_in, tmp_path):
    table = smoke_table(tmp_path, tasks=["RS"], models=["rnn", "transformer"])
    runner = Runner(table.cells, LocalLauncher())
    runner.run()
    measured = measure(table.cells[0])
    # The score is over lengths 7..12: 7 and 8 right, four lengths half right.
    assert measured["lengths"] == [7, 12]
    assert measured["mean"] == pytest.approx(100 * (2 + 4 * 0.5) / 6)
    assert measured["std"] == pytest.approx(0) and measured["steps"] == 20
    content = collect(table, runner.states(), "python -m experiments.tables")
    paths = write_outputs(content, tmp_path)
    assert [path.name for path in paths] == ["table1.md", "table1.json", "report.html"]
    text = paths[0].read_text()
    name = table.cells[0].name
    assert f"[**66.7 ± 0.0**](#{name.lower()})<br>81.0 ± 0.8" in text
    assert f"### {name}" in text and "python x" in text
    assert "lengths 7..12, 32 strings a length; the paper" in text
    assert "broken<br>54.8 ± 0.0" in text and "nan at step 40" in text
    assert json.loads(paths[1].read_text()) == content
    assert "66.7 ± 0.0" in paths[2].read_text()


def test_longer_measurement_keeps_the_papers_range(stand_in, tmp_path):
    table = smoke_table(tmp_path, tasks=["RS"], models=["stack_transformer"])
    Runner(table.cells, LocalLauncher()).run()
    cell = table.cells[0]
    path = cell.folder / "results.json"
    results = json.loads(path.read_text())
    for run in results["runs"]:
        run["per_length"] |= {str(n): 0.25 for n in range(13, 21)}
    path.write_text(json.dumps({**results, "test_length": 20}))
    assert cell.finished()
    measured = measure(cell)
    assert measured["lengths"] == [7, 12]
    assert measured["mean"] == pytest.approx(100 * 4 / 6)
    assert measured["longer"]["lengths"] == [13, 20]
    assert measured["longer"]["mean"] == pytest.approx(25)

    # The same from another folder: fewer strings there, so only what is longer counts.
    far = tmp_path / "far"
    far.mkdir()
    for run in results["runs"]:
        run["per_length"] |= {"7": 0.0}
    content = {**results, "test_length": 20, "test_strings": 8}
    (far / "results.json").write_text(json.dumps(content))
    results["runs"] = [
        {**run, "per_length": {str(n): 1.0 for n in range(1, 13)}}
        for run in results["runs"]
    ]
    path.write_text(json.dumps(results))
    found = find_results(table, tmp_path).cells[0]
    measured = measure(found)
    assert (found.folder, found.longer) == (cell.folder, far / "results.json")
    assert measured["mean"] == 100 and measured["longer"]["mean"] == pytest.approx(25)
    assert measured["curve"]["seeds"][0] == [1.0] * 12 + [0.25] * 8


def test_a_result_of_another_protocol_is_no_result(stand_in, tmp_path):
    """What --eval_only --test_strings=1 once left in results.json fills no cell."""
    table = smoke_table(tmp_path, tasks=["RS"], models=["stack_transformer"])
    Runner(table.cells, LocalLauncher()).run()
    cell = table.cells[0]
    path = cell.folder / "results.json"
    results = json.loads(path.read_text())
    assert cell.finished() and measure(cell)
    for run in results["runs"]:
        run["per_length"] |= {str(n): 0.25 for n in range(13, 21)}
    other = {**results, "test_length": 20, "test_strings": 1}
    path.write_text(json.dumps(other))
    assert not cell.finished() and measure(cell) is None
    assert find_results(table, tmp_path).cells[0].longer is None
    # As another file beside the run's own result it gives the longer lengths.
    path.write_text(json.dumps({**results, "test_length": 12}))
    (cell.folder / "results-20x1.json").write_text(json.dumps(other))
    found = find_results(table, tmp_path).cells[0]
    assert cell.finished() and found.longer == cell.folder / "results-20x1.json"
    measured = measure(found)
    assert measured["test_strings"] == 32
    assert measured["longer"]["test_strings"] == 1


def test_report_only_takes_the_run_with_most_steps(stand_in, tmp_path):
    for steps in (3, 9, 5):
        table = smoke_table(tmp_path, tasks=["RS"], models=["rnn"], steps=steps)
        Runner(table.cells, LocalLauncher()).run()
    plain = make_table(1, Settings(out=tmp_path, tasks=["RS"]))
    found = find_results(plain, tmp_path)
    cells = collect(found, {}, "")["cells"]
    assert cells[0]["measured"]["steps"] == 9
    assert [cell["state"] for cell in cells] == ["finished", *["not run"] * 7]


def test_report_only_takes_answer_symbols_of_their_own_first(stand_in, tmp_path):
    for steps in (9, 3):
        table = smoke_table(tmp_path, tasks=["RS"], models=["rnn"], steps=steps)
        Runner(table.cells, LocalLauncher()).run()
    path = table.cells[0].folder / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"phases": "soft"}))
    plain = make_table(1, Settings(out=tmp_path, tasks=["RS"], models=["rnn"]))
    assert measure(find_results(plain, tmp_path).cells[0])["steps"] == 3


def test_report_only_keeps_curricula_apart(stand_in, tmp_path):
    flag = ("--curriculum=reverse_exponential:0.9",)
    for steps, extra in ((3, ()), (9, flag)):
        table = smoke_table(
            tmp_path, tasks=["RS"], models=["rnn"], steps=steps, extra=extra
        )
        Runner(table.cells, LocalLauncher()).run()

    def steps_found(extra):
        settings = Settings(out=tmp_path, tasks=["RS"], models=["rnn"], extra=extra)
        cell = find_results(make_table(1, settings), tmp_path).cells[0]
        found = measure(cell)
        return found and found["steps"]

    assert steps_found(()) == 3 and steps_found(flag) == 9
    assert "follow the curriculum reverse_exponential:0.9" in to_markdown(
        collect(table, {}, "")
    )
    assert steps_found(("--curriculum=fixed:6",)) is None


def test_lm_cells_wait_for_their_folders(tmp_path):
    table = make_table(3, Settings(out=tmp_path, data_dirs={"ptb": "/data/ptb"}))
    runner = Runner(table.cells, LocalLauncher())
    reasons = {entry.cell.row + entry.cell.column: entry for entry in runner.entries}
    entry = reasons["From scratch, MLMWikiText-2, stack"]
    assert entry.state == "skipped" and "--wikitext2_dir" in entry.reason
    entry = reasons["Pretrained, ALMPenn Treebank, stack"]
    assert entry.state == "skipped" and "--gpt2_dir" in entry.reason
    entry = reasons["From scratch, ALMPenn Treebank, vanilla"]
    assert entry.state == "waiting" and "--nostack" in entry.cell.flags
    folder = entry.cell.folder
    folder.mkdir()
    run = {"seed": 0, "perplexity_test": 80.0}
    results = {"task": "alm", "dataset": "ptb", "stack": False, "pretrained": None}
    results |= {"steps": 5, "size": "small", "runs": [run]}
    (folder / "results.json").write_text(json.dumps(results))
    assert measure(entry.cell)["mean"] == 80.0
    text = write_outputs(collect(table, {}, ""), tmp_path)[0].read_text()
    assert "**80.00**" in text and "73.14 ± 0.34" in text


def test_live_table_in_a_terminal_redraws_its_lines(tmp_path):
    class Terminal:
        text = ""

        def isatty(self):
            return True

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    table = make_table(1, Settings(out=tmp_path, tasks=["RS"], models=["rnn"]))
    terminal = Terminal()
    live = LiveTable(terminal, every=0.0)
    entry = Entry(table.cells[0], state="running", seconds=75)
    live.update([entry])
    assert "1 running" in terminal.text
    assert "▶ RS · RNN  compiling, 1:15" in terminal.text
    folder = table.cells[0].folder
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 100, "accuracy": [0.5]}\n{"st')
    speeds = "".join(f'{{"steps_per_second": {n}}}\n' for n in (0.1, 9, 10, 11, 12))
    (folder / "timing.jsonl").write_text(speeds)
    words = "step 100/1,000  10%, 1:30 to train, accuracy 0.500, 1:15"
    assert progress(entry) == words
    terminal.text = ""
    entry.state = "finished"
    live.close([entry])
    assert terminal.text.startswith("\x1b[2F") and "1 finished" in terminal.text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tasks=RS,XY"], "expected names of RS, SM"),
        (["--budget_minutes=-1"], "a number of minutes above 0"),
        (["--table=4"], "invalid choice: 4"),
        (["--table=1", "--pos=alibi"], "no cell of table 1 is left"),
        (["--report_only", "--out=no-such-folder"], "does not exist"),
        (["--", "--out=x"], "the runner chooses it"),
    ],
)
def test_mistakes_are_one_line(flags, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tables", *flags])
    try:
        tables.main()
    except UserError as error:
        assert words in str(error)
    except SystemExit as exit:
        assert exit.code == 2 and words in capsys.readouterr().err
    else:
        pytest.fail("accepted")


def test_one_real_cell(tmp_path):
    """The command itself, with a real run of experiments.dcf; then it is skipped."""
    command = [sys.executable, "-m", "experiments.tables", "--table=1", "--tasks=RS"]
    command += ["--models=rnn", "--preset=smoke", "--seeds=0", f"--out={tmp_path}"]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 finished" in done.stdout and "running   RS-rnn" in done.stderr
    content = json.loads((tmp_path / "table1.json").read_text())
    assert content["cells"][0]["measured"]["steps"] == 20
    assert "python -m experiments.dcf --task=RS" in content["cells"][0]["command"]
    first = time.monotonic() - begin
    again = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0 and "running" not in again.stderr
    print(f"first {first:.1f} s, then {time.monotonic() - begin - first:.1f} s")


def test_stacks_differ_in_the_stack_alone(tmp_path):
    table = stacks_table(Settings(out=tmp_path))
    assert len(table.cells) == 35 == len({cell.folder for cell in table.cells})
    assert table.rows[-1] == "Dyck-2" and len(table.columns) == 7
    for cell in table.cells:
        first = table.cells[0].expected
        differ = {name for name in first if cell.expected[name] != first[name]}
        assert differ <= {"task", "model", "stack", "model_config"}
        sizes = cell.expected["model_config"]
        assert first["model_config"].items() <= sizes.items()
        assert (cell.paper is not None) == (
            cell.row != "Dyck-2" and cell.column in table.columns[:2]
        )
    for cell in table.cells[:7]:  # every column can be trained
        dcf.make_problem(dcf.DCFConfig.from_json(cell.expected))
    some = Settings(out=tmp_path, tasks=["DYCK2"], stacks=["frames"])
    (one,) = stacks_table(some).cells
    assert one.identity["stack"] == "frames"
    assert one.expected["model_config"]["hidden"] == 256
    with pytest.raises(UserError, match="a budget of its own"):
        stacks_table(Settings(out=tmp_path, preset="paper"))


def test_stacks_are_reported_with_their_costs(tmp_path):
    table = stacks_table(Settings(out=tmp_path, tasks=["RS"], seeds=(0, 1)))
    assert not has_costs(table)
    for cell in table.cells[:3]:
        accuracy = {"No stack": 0.25}.get(cell.column, 0.75)
        per_length = {str(n): accuracy for n in range(1, 25)}
        names = ("task", "model", "stack", "phases", "mode", "pos", "model_config")
        names += ("steps", "train_length", "test_length", "test_strings")
        run = {"per_length": per_length, "per_length_hard": per_length, "seconds": 1.0}
        results = {name: cell.expected[name] for name in names}
        results |= {"chance": 0.5, "runs": [{"seed": seed, **run} for seed in (0, 1)]}
        cell.folder.mkdir()
        (cell.folder / "results.json").write_text(json.dumps(results))
        (cell.folder / "config.json").write_text(json.dumps(cell.expected))
    timings = {
        name: {"fastest": 2.0 + i, "temp_mib": 4.0 + i}
        for i, name in enumerate(table.columns)
    }
    costs = {"positions": 25, "batch_size": 16, "timings": timings}
    content = {"of": signature(table), "measured": [costs]}
    table.costs.write_text(json.dumps(content))
    assert has_costs(table)
    # Other sizes of the same stack are other cells, of other tables too.
    found = find_results(table, tmp_path)
    assert [measure(cell) is not None for cell in found.cells] == [True] * 3 + [
        False
    ] * 4
    papers = find_results(make_table(1, Settings(out=tmp_path)), tmp_path)
    assert not any(measure(cell) for cell in papers.cells)
    collected = collect(found, {}, "x")
    paths = write_outputs(collected, tmp_path)
    assert [path.name for path in paths] == ["stacks.md", "stacks.json", "report.html"]
    text = paths[0].read_text()
    assert text.startswith("# Stacks, side by side")
    assert "[**75.0 ± 0.0**](#rs-superposition-seeds0_1)<br>hard 75.0 ± 0.0" in text
    assert "| Time of a train step, 25 positions | 1.0 | 1.5 |" in text
    assert "Memory, 25 positions" in paths[2].read_text()
