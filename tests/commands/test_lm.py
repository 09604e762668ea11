"""`python -m experiments.lm` from text files to perplexities, and back from folders."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import textwrap
import types

import numpy as np
import pytest

from stackformer.commands import cli
from stackformer.commands.flags import RunFlags
from stackformer.commands.lm import actions as lm_commands
from stackformer.commands.lm import command
from stackformer.commands.tables import language as lm_table
from stackformer.models.huggingface.pretrained import read_config, read_weights
from stackformer.problems.lm import problem as lm
from stackformer.problems.lm.config import LMConfig
from stackformer.training.mesh import Placement
from stackformer.training.state import create_state

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"


def run(monkeypatch, *flags: str) -> None:
    """The command in this process; fails unless it ends well."""
    monkeypatch.setattr(sys, "argv", ["lm", "--no_progress", *flags])
    assert command.main() == 0


def results_of(out: pathlib.Path) -> dict:
    return json.loads((out / "results.json").read_text())


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> list[str]:
    """A small text with something to learn, as flags of the command."""
    folder = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    for split, lines in (("train", 400), ("valid", 60), ("test", 60)):
        words = [" ".join(rng.choice(["a", "b", "( c )"], 8)) for _ in range(lines)]
        (folder / f"{split}.txt").write_text("".join(f" {line} \n" for line in words))
    cache = tmp_path_factory.mktemp("cache")
    return ["--dataset=wikitext2", f"--data_dir={folder}", f"--cache_dir={cache}"]


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory) -> pathlib.Path:
    """A trained run, GPT-2 with one stack."""
    out = tmp_path_factory.mktemp("runs") / "alm"
    with pytest.MonkeyPatch.context() as patch:
        run(patch, *alm_flags(text, out))
    return out


def alm_flags(text: list[str], out: pathlib.Path) -> list[str]:
    flags = "--task=alm --size=tiny --vocab_size=270 --stack_layers=1 --batch_size=4 "
    flags += "--lr=1e-3"
    return [*text, *flags.split(), "--steps=30", "--seeds=0,1", f"--out={out}"]


def test_training_learns_and_says_what_it_did(trained):
    results = results_of(trained)
    assert [entry["seed"] for entry in results["runs"]] == [0, 1]
    test = [entry["perplexity_test"] for entry in results["runs"]]
    assert results["perplexity_test"] == pytest.approx(np.mean(test))
    assert results["perplexity_test_std"] == pytest.approx(np.std(test, ddof=1))
    # 270 tokens at the start; after 30 steps most of the unused ones are unlikely.
    assert results["perplexity_test"] < 100
    assert results["tokens"]["test"] % 127 == 0
    config = json.loads((trained / "config.json").read_text())
    assert config["model"]["stack_layers"] == [1]
    assert config["special_ids"] == {}


def test_the_same_command_goes_on_from_its_end(trained, text, monkeypatch):
    before = (trained / "metrics.jsonl").read_bytes()
    results = results_of(trained)
    run(monkeypatch, *alm_flags(text, trained))
    assert (trained / "metrics.jsonl").read_bytes() == before
    assert results_of(trained)["runs"] == results["runs"]


@pytest.mark.parametrize("task", ["alm", "mlm"])
def test_packing_says_how_much_is_padding(task, tmp_path, monkeypatch, capsys):
    for split, articles in (("train", 60), ("valid", 9), ("test", 9)):
        text = [
            f" = Number {n} = \n" + " ( a b ) \n" * (n % 9) for n in range(articles)
        ]
        (tmp_path / f"{split}.txt").write_text("".join(text))
    out = tmp_path / "run"
    where = f"--data_dir={tmp_path} --cache_dir={tmp_path / 'cache'} --out={out}"
    flags = f"--task={task} --size=tiny --vocab_size=270 --batch_size=2 --steps=4"
    flags = f"{flags} {where} --dataset=wikitext2 --packing"
    run(monkeypatch, *flags.split())
    printed = capsys.readouterr().out
    assert "train: " in printed and "% padding" in printed
    assert json.loads((out / "config.json").read_text())["packing"] is True
    results = results_of(out)
    run(monkeypatch, "--eval_only", *where.split())
    assert results_of(out)["perplexity_test"] == pytest.approx(
        results["perplexity_test"], rel=1e-4
    )


def test_an_exported_run_measures_the_same_elsewhere(
    trained, text, tmp_path, monkeypatch
):
    run(monkeypatch, f"--out={trained}", f"--export={tmp_path / 'hf'}", "--seed=1")
    assert (tmp_path / "hf" / "merges.txt").is_file()
    flags = ["--task=alm", f"--pretrained={tmp_path / 'hf'}", "--stack_layers=1"]
    out = tmp_path / "out"
    run(monkeypatch, *text, *flags, f"--out={out}", "--eval_only", "--save_chunks")
    expected = results_of(trained)["runs"][1]
    for split in ("valid", "test"):
        found = results_of(out)[f"perplexity_{split}"]
        assert found == pytest.approx(expected[f"perplexity_{split}"], rel=1e-5)
    chunks = np.load(out / "chunks.npz")
    assert results_of(out)["tokens"]["test"] == chunks["test"][:, 1:].size


def test_a_run_is_measured_again_without_training(trained, text, monkeypatch):
    before = results_of(trained)
    run(monkeypatch, *text, "--task=alm", f"--out={trained}", "--eval_only")
    after = results_of(trained)
    assert after["perplexity_valid"] == pytest.approx(before["perplexity_valid"])


def test_sampling_continues_the_prompt(trained, monkeypatch, capsys):
    pytest.importorskip("stackformer.models.generate")
    flags = ["--sample", f"--out={trained}", "--prompt= a b", "--num_tokens=20"]
    run(monkeypatch, *flags, "--temperature=0")
    first = capsys.readouterr().out
    assert first.startswith(" a b") and len(first) > 8
    run(monkeypatch, *flags, "--temperature=0")
    assert capsys.readouterr().out == first


def test_perplexity_is_that_of_torch_on_the_same_chunks():
    expected = np.load(GOLDEN / "gpt2" / "expected.npz")
    chunks = expected["chunks"].astype(np.int32)
    model = read_config(GOLDEN / "gpt2", stack=False)
    config = LMConfig(
        task="alm",
        dataset="wikitext2",
        size="pretrained",
        model=model.to_json(),
        batch_size=3,
    )
    chunks = {split: chunks for split in ("train", "valid", "test")}
    weights = read_weights(GOLDEN / "gpt2", model)
    problem = lm.make_problem(config, chunks, weights)
    state = create_state(problem, (0,), Placement.create())
    (entry,) = lm.evaluate(config, problem, state.params, Placement.create())
    assert entry["perplexity_test"] == pytest.approx(np.exp(expected["loss"]), rel=1e-4)
    assert entry["tokens_test"] == 4 * 127


def test_masked_language_modeling_learns(text, tmp_path, monkeypatch):
    size = "--size=tiny --vocab_size=270 --batch_size=4"
    flags = ["--task=mlm", "--nostack", "--dropout=0", "--lr=3e-3", *size.split()]
    flags += ["--steps=40", "--save_chunks", f"--out={tmp_path}"]
    run(monkeypatch, *text, *flags)
    results = results_of(tmp_path)
    # Three words at random: a guess among the few tokens in use.
    assert results["perplexity_test"] < 20
    chunks = np.load(tmp_path / "chunks.npz")["test"]
    assert 0.08 < results["tokens"]["test"] / chunks[:, 1:-1].size < 0.25


def test_tuning_takes_the_rate_with_the_best_validation(tmp_path, monkeypatch):
    scores = {1e-5: 3.0, 2e-5: 2.0, 1e-4: 1.0, 2e-4: 1.5}
    tried = []

    def train(self, config, problem, folder):
        tried.append((config.learning_rate, config.seeds))
        best = types.SimpleNamespace(score=np.array([scores[config.learning_rate]]))
        return types.SimpleNamespace(best=best)

    monkeypatch.setattr(lm_commands.Run, "train", train)
    monkeypatch.setattr(lm_commands.Run, "problem", lambda self, config: None)
    config = LMConfig(
        task="alm", dataset="ptb", size="tiny", model={}, seeds=(3, 4), epochs=2
    )
    flags = RunFlags(
        out=tmp_path,
        placement=None,
        checkpoint_every=None,
        keep=1,
        progress=False,
        command="",
    )
    context = lm_commands.Run(flags=flags, corpus=None, weights=None)
    best, found = lm_commands.tune_learning_rate(config, context)
    assert tried == [(rate, (3,)) for rate in scores]
    assert best == dataclasses.replace(config, learning_rate=1e-4)
    assert found["0.0001"] == pytest.approx(np.exp(1.0))


@pytest.mark.parametrize(
    "flags, words",
    [
        ([], "--task is required"),
        (["--task=alm", "--dataset=ptb"], "--data_dir is required"),
        (["--task=alm", "--dataset=ptb", "--data_dir=TEXT"], "ptb.train.txt"),
        (["--task=alm", "--pretrained=TEXT", "WIKI", "TEXT"], "config.json; download"),
        (["--task=mlm", "--pretrained=GPT2", "WIKI", "TEXT"], "token <s>"),
        (["--eval_only"], "--eval_only needs --pretrained=DIR, or --out=RUN"),
        (["--sample"], "need --out"),
        (["--sample", "--out=TEXT"], "config.json does not exist"),
        (["--task=alm", "--lr=1", "--tune_lr"], "exclude each other"),
    ],
)
def test_mistakes_are_one_line(flags, words, text, monkeypatch, capsys):
    folder = text[1].removeprefix("--data_dir=")
    known = {"WIKI": text[0], "TEXT": text[1]}
    flags = [known.get(flag, flag) for flag in flags]
    flags = [f.replace("=TEXT", f"={folder}") for f in flags]
    flags = [f.replace("=GPT2", f"={GOLDEN / 'gpt2'}") for f in flags]
    monkeypatch.setattr(sys, "argv", ["lm", *flags])
    with pytest.raises(SystemExit) as stop:
        cli.run(command.main)
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert words in error and "Traceback" not in error


def test_losses_are_equal_on_eight_devices_and_on_one(tmp_path):
    program = f"""
    import dataclasses, json, math, pathlib
    import jax, numpy as np
    from stackformer.models.language.gpt2 import GPT2Config
    from stackformer.training import Placement, RunFolder
    from stackformer.problems.lm import problem as lm
    from stackformer.problems.lm.config import LMConfig
    from stackformer.training.state import abstract_state

    model = GPT2Config.of_size(
        "tiny", vocab_size=512, max_length=128, num_layers=1,
        dropout=0.0)
    config = LMConfig(
        task="alm", dataset="ptb", size="tiny", model=model.to_json(),
        batch_size=8, steps=4, steps_per_dispatch=1, learning_rate=1e-3,
    )
    rng = np.random.default_rng(0)
    chunks = {{
        split: rng.integers(0, 512, (16, 128), np.int32)
        for split in ("train", "valid", "test")
    }}
    losses = []
    for name, sizes in (("one", {{}}), ("eight", {{"data": 2, "params": 4}})):
        out = pathlib.Path({str(tmp_path)!r}) / name
        placement = Placement.create(sizes)
        with RunFolder(out, config.to_json()) as folder:
            problem = lm.make_problem(config, chunks)
            state = lm.train(config, problem, folder, placement, progress=False)
        lines = (out / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"][0] for line in lines])
        table = state.params["token_embedding"]["embedding"]
        print(name, table.sharding.shard_shape(table.shape), losses[-1])
    assert table.sharding.shard_shape(table.shape) == (1, 128, 32)
    np.testing.assert_allclose(*losses, rtol=1e-5)

    # Parameters, moments and best parameters of `base` lie in eighths.
    base = dataclasses.replace(config, model=GPT2Config().to_json())
    placement = Placement.create({{"params": 8}})
    leaves = jax.tree.leaves(abstract_state(lm.make_problem(base), (0,), placement))
    whole = sum(math.prod(leaf.shape) for leaf in leaves)
    local = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in leaves)
    assert whole > 4 * 124e6 and local < 1.01 * whole / 8, (whole, local)
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        check=True,
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
    )


def test_the_table_has_a_row_for_each_run(trained, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lm_table", str(trained)])
    assert lm_table.main() == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("| ALM | wikitext2 | tiny | stack | 2 | 30 |")
    assert last.endswith("| 206.42 ± 0.80 |")


@pytest.mark.slow
def test_tune_lr_takes_the_best_on_the_validation_split(
    text, tmp_path, monkeypatch, capsys
):
    flags = "--task=alm --size=tiny --vocab_size=270 --batch_size=4 --steps=10"
    run(monkeypatch, *text, *flags.split(), "--tune_lr", f"--out={tmp_path / 'out'}")
    found = {}
    for line in capsys.readouterr().out.splitlines():
        if ": validation perplexity " in line:
            rate, perplexity = line.removeprefix("lr ").split(
                ": validation perplexity "
            )
            found[float(rate)] = float(perplexity)
    assert sorted(found) == [1e-5, 2e-5, 1e-4, 2e-4]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["learning_rate"] == min(found, key=found.get)
