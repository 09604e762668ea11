"""Bad input: one line that says what is wrong, exit code 2, and nothing lost."""

import importlib
import io
import json
import shutil
import sys
import textwrap

import jax.numpy as jnp
import pytest
from flax import nnx

import stackformer
from stackformer.commands import cli
from stackformer.commands.main import COMMANDS
from stackformer.nn.stacks import FrameStack, stack_config
from stackformer.training.errors import UserError

GOLDEN = "tests/golden/gpt2"
TASK = """
    import jax.numpy as jnp
    from stackformer import tasks

    class Task(tasks.Task):
        name, level, chance = "mine", "dcf", 0.5
        input_symbols = output_symbols = ("a", "b")

        def strings(self, key, batch_size, length, max_length):
            {strings}

        def solve(self, inputs, length):
            {solve}
"""
ZEROS = "return jnp.zeros((batch_size, max_length), jnp.int32)"


def call(monkeypatch, capsys, line) -> tuple[int, str, str]:
    """Runs `stackformer NAME FLAGS` in this process: exit code and both outputs."""
    name, *flags = line
    module = importlib.import_module(f"stackformer.commands.{COMMANDS[name][0]}")
    monkeypatch.setattr(sys, "argv", [f"stackformer {name}", *flags])
    with pytest.raises(SystemExit) as end:
        cli.run(module.main)
    captured = capsys.readouterr()
    return end.value.code, captured.out, captured.err


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A finished smoke run, and folders that are wrong in one way each."""
    root = tmp_path_factory.mktemp("bad")
    small = "--model_config=d_model=4,num_layers=1,num_heads=1"
    flags = ["--task=RS", "--preset=smoke", "--steps=5", "--test_length=7", small]
    with pytest.MonkeyPatch.context() as patch:
        out = f"--out={root / 'run'}"
        patch.setattr(sys, "argv", ["stackformer dcf", *flags, out, "--no_progress"])
        assert importlib.import_module("stackformer.commands.dcf").main() == 0
    config = json.loads((root / "run/config.json").read_text())
    without = {name: x for name, x in config.items() if name != "batch_size"}
    for name, content in {
        "list": "[]",
        "torn": '{"experiment": "dcf", "ta',
        "lacks": json.dumps(without),
        "types": json.dumps({**config, "steps": "many"}),
        "lm": json.dumps({**config, "experiment": "lm"}),
        "model": json.dumps({**config, "model_config": {"d_model": "wide"}}),
    }.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(content)
    (root / "file").write_text("not a folder")
    (root / "empty").mkdir()
    shutil.copytree(root / "run", root / "part")
    for path in (root / "part/checkpoints/5").glob("*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(root / "run", root / "none")
    shutil.rmtree(root / "none/checkpoints")
    for name, strings, solve in (
        ("raises", "raise RuntimeError('no strings today')", "return inputs"),
        ("shape", ZEROS, "return inputs[:, :1]"),
        ("rank", "return jnp.zeros((batch_size,), jnp.int32)", "return inputs"),
        ("range", f"{ZEROS} + 7", "return inputs"),
        ("answers", ZEROS, "return inputs - 1"),
        ("text", "return 'aabb'", "return inputs"),
    ):
        text = TASK.format(strings=strings, solve=solve)
        (root / f"{name}.py").write_text(textwrap.dedent(text))
    abstract = textwrap.dedent(TASK.format(strings=ZEROS, solve="return inputs"))
    (root / "abstract.py").write_text(abstract.partition("    def solve")[0])
    (root / "syntax.py").write_text("class Task(:\n")
    (root / "fails.py").write_text("1 / 0\n")
    for name in ("hf_list", "hf_types", "hf_torn", "hf_lacks", "hf_missing"):
        shutil.copytree(GOLDEN, root / name)
    wrong = json.loads((root / "hf_types/config.json").read_text())
    (root / "hf_list/config.json").write_text("[1]")
    (root / "hf_types/config.json").write_text(json.dumps({**wrong, "n_embd": "8"}))
    (root / "hf_missing/config.json").write_text(json.dumps({**wrong, "n_layer": 99}))
    wrong.pop("n_layer")
    (root / "hf_lacks/config.json").write_text(json.dumps(wrong))
    weights = root / "hf_torn/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    (root / "cache").mkdir()
    (root / "text").mkdir()
    for split in ("train", "valid", "test"):
        text = " the cat sat on the mat , and a dog saw it .\n" * 300
        (root / f"text/wiki.{split}.tokens").write_text(text)
    return root


LM = ("lm", "--task=alm", "--dataset=wikitext2", "--data_dir={}/text")
RS = ("dcf", "--task=RS", "--preset=smoke", "--out={}/new")
# What is typed, and words of the answer.
BAD = [
    ((*RS, "--seeds=99999999999999999999"), "--seeds should be different whole"),
    ((*RS, "--seeds=0,4294967296"), "--seeds should be different whole"),
    ((*RS, "--seeds=0,0"), "--seeds should be different whole"),
    ((*RS, "--lr=nan"), "--lr: expected a finite number"),
    ((*RS, "--lr=0"), "--lr should be a finite number above 0"),
    ((*RS, "--test_length=1000000000"), "--test_length should be smaller"),
    ((*RS, "--train_length=10000000", "--test_length=20000000"), "should be smaller"),
    ((*RS, "--batch_size=100000000000"), "--batch_size should be smaller"),
    ((*RS, "--test_length=3"), "--test_length should be above"),
    ((*RS, "--mesh=data:1,data:1"), "--mesh"),
    ((*RS, "--mesh=rows:2"), "--mesh"),
    ((*RS, "--curriculum=fixed"), "--curriculum"),
    ((*RS, "--model_config=d_model=-3"), "d_model"),
    ((*RS, "--model_config=d_modell=3"), "d_modell"),
    ((*RS, "--unknown"), "unrecognized arguments: --unknown; see"),
    ((*RS, "--mode=both"), "see stackformer dcf --help"),
    ((*RS, "--stack=frames", "--model_config=max_pops=2"), "got max_pops"),
    ((*RS, "--stack=pointer", "--model_config=max_depth=0"), "max_depth"),
    ((*RS, "--stack=none"), "invalid choice: 'none'"),
    ((*RS, "--model=rnn", "--stack=frames"), "--stack should be None"),
    ((*RS, "--model=rnn", "--pos=rotary"), "should be 'none' with"),
    ((*RS, "--model_config=stack_layers=[]", "--phases=hard"), "--phases should be"),
    ((*RS, "--model=rnn", "--phases=hard"), "--phases should be that of a model"),
    ((*RS, "--model=transformer", "--balance=1"), "--balance should be that of a mod"),
    ((*RS, "--balance=-1"), "--balance should be a finite number of at least 0"),
    ((*RS, "--balance_steps=5"), "--balance_steps should be 0 without --balance"),
    ((*RS, "--balance_steps=-1"), "--balance_steps: expected a whole number of at l"),
    ((*RS, "--cooldown=0.5"), "--cooldown should go with --schedule cooldown"),
    ((*RS, "--sharpen_at=0.9"), "--sharpen_at should go with --phases sharpened or"),
    ((*RS, "--phases=sharpened", "--harden_at=1"), "--harden_at should go with --ph"),
    ((*RS, "--curriculum_start=3"), "--curriculum_start should go with --curriculum"),
    ((*RS, "--balance_learning_rate=1"), "should go with --balance_steps"),
    ((*RS, "--cooldown=7"), "--cooldown should be a finite number above 0 and at mos"),
    ((*RS, "--sharpen_at=2"), "--sharpen_at should be a finite number above 0 and"),
    ((*RS, "--curriculum=accuracy:2"), "accuracy:SHARE should have a share"),
    ((*RS, "--curriculum=accuracy:nan"), "--curriculum should be NAME"),
    ((*RS, "--lengths_per_step=3"), "--lengths_per_step should divide"),
    ((*RS, "--model_config=d_model=1000000"), "the model should be smaller"),
    ((*RS, "--model_config=stack=frames"), "got stack"),
    ((*RS, "--model_config=stack_layers=0"), "`stack_layers` should be a list such"),
    ((*RS, "--model_config=stack_layers=[0,x]"), "`stack_layers` should be a list"),
    ((*RS, "--model_config=stack_layers=[9]"), "`stack_layers` should lie in 0..1"),
    ((*RS, "--model_config=dropout=much"), "`dropout` should be a number"),
    ((*RS, "--model_config=max_depth=deep"), "`max_depth` should be a whole number"),
    ((*RS, "--model_config=sampling=foo"), "`sampling` should be one of"),
    ((*RS, "--model_config=dtype=int7"), "`dtype` should be one of"),
    ((*RS, "--model_config=pre_norm=maybe"), "`pre_norm` should be true or false"),
    ((*RS, "--actions=hard"), "--actions goes with --predict"),
    ((*RS, "--out="), "--out: expected a value"),
    (("dcf",), "--task is required"),
    (("dcf", "--task=XY"), "unknown task"),
    (("dcf", "--task=RS", "--preset=smoke", "--out={}/file"), "--out should be"),
    (("dcf", "--task=RS", "--preset=smoke", "--out=/proc/x/y"), "--out should be"),
    (("dcf", "--task=RS", "--preset=smoke", "--out={}/" + "x" * 300), "--out should"),
    (("dcf", "--eval_only", "--out={}/list"), "config.json should hold an object"),
    (("dcf", "--eval_only", "--out={}/torn"), "cannot be read"),
    (("dcf", "--eval_only", "--out={}/lacks"), "batch_size"),
    (("dcf", "--eval_only", "--out={}/types"), "--steps should be a whole number"),
    (("dcf", "--eval_only", "--out={}/lm"), "a run of stackformer dcf, but"),
    (("dcf", "--eval_only", "--out={}/model"), "d_model"),
    (("dcf", "--eval_only", "--out={}/nothing"), "does not exist"),
    (("dcf", "--eval_only", "--out={}/none"), "no checkpoints"),
    (("dcf", "--predict=ab", "--out={}/none"), "no checkpoints"),
    (("ship", "--out={}/run"), "--out and --name are required"),
    (("ship", "--out={}/nothing", "--name=x"), "does not exist"),
    (("ship", "--out={}/run", "--name=a/b"), "--name should be"),
    (("ship", "--out={}/run", "--name=x", "--seed=7"), "seeds [0], not 7"),
    (("dcf", "--predict=abc", "--out={}/run"), "--predict: "),
    (("dcf", "--predict=", "--out={}/run"), "--predict: "),
    (("dcf", "--predict=ab", "--out={}/nothing"), "--out should be one of"),
    (("dcf", "--predict=ab", "--out=rs", "--seeds=3"), "rs is of the seed"),
    (("dcf", "--predict=ab", "--out=rs", "--task=MA"), "--task should be that of"),
    (("dcf", "--predict=ab", "--out=rs", "--eval_only"), "without --eval_only"),
    (("dcf", "--predict=ab", "--out=rs", "--test_data=x"), "without --test_data"),
    (("dcf", "--predict=ab", "--out=rs", "--seeds=0,1"), "--seeds should be one seed"),
    (("dcf", "--predict=1+", "--out=ma"), "--predict: an expression should"),
    (("dcf", "--predict=(1+2)", "--out=se"), "--predict: an equation should"),
    (("dcf", "--predict=ab", "--out={}/list"), "config.json should hold an object"),
    (("dcf", "--task={}/abstract.py:Task"), "solve"),
    (("dcf", "--task={}/raises.py:Task"), "no strings today"),
    (("dcf", "--task={}/shape.py:Task"), "solve"),
    (("dcf", "--task={}/rank.py:Task"), "strings"),
    (("dcf", "--task={}/range.py:Task"), "strings"),
    (("dcf", "--task={}/answers.py:Task"), "solve"),
    (("dcf", "--task={}/text.py:Task"), "strings"),
    (("dcf", "--task={}/syntax.py:Task"), "invalid syntax"),
    (("dcf", "--task={}/fails.py:Task"), "division by zero"),
    (("dcf", "--task={}/raises.py:Other"), "raises.py has no Other"),
    (("dcf", "--task={}/raises.py"), "raises.py:Class)"),
    (("dcf", "--task={}/raises.py:"), "FILE.py:Class, but got"),
    (("tasks", "--task=all"), "--task=all goes with --export"),
    (("dcf", "--task={}/nowhere.py:Task"), "nowhere.py"),
    (("dcf", "--task=nowhere:Task"), "nowhere"),
    (("tasks", "--task=RS", "--length=1000000000"), "--length should be smaller"),
    (("tasks", "--task=RS", "--n=99999999999"), "--n should be smaller"),
    (("tasks", "--task=RS", "--n=0"), "--n: expected a whole number"),
    (("tasks", "--task=RS", "--seed=99999999999999999999"), "--seed"),
    (("tasks", "--task={}/raises.py:Task"), "no strings today"),
    (("tasks", "--task={}/range.py:Task"), "strings"),
    (("tasks", "--task=MA", "--answer=(1+2"), "(1+2"),
    (("tasks", "--task=MA", "--answer=1+"), "1+"),
    (("tasks", "--task=SE", "--answer=(1+2)=3"), "(1+2)=3"),
    (("tasks", "--task=RS", "--answer="), "empty"),
    (("tasks", "--answer=ab"), "--task"),
    (("tasks", "--task=RS", "--export={}/file"), "--export"),
    (("tasks", "--task=RS", "--export=/proc/x"), "--export"),
    (("attention_maps", "--out={}/run", "--length=100000"), "--length should be"),
    (("attention_maps", "--out={}/run", "--save_to={}/file"), "--save_to should be"),
    (("attention_maps", "--out={}/run", "--save_to=/proc/x"), "--save_to should be"),
    (("attention_maps", "--out={}/run", "--seed=7"), "seeds [0], not 7"),
    (("attention_maps", "--out={}/run", "--string_seed=-5"), "--string_seed"),
    (("attention_maps", "--out={}/run", "--layers=9"), "--layers"),
    (("attention_maps", "--out={}/nothing"), "--out should be one of"),
    (("attention_maps", "--out=rs", "--input=ab", "--length=7"), "without --input"),
    (("attention_maps", "--out=rs", "--input=ab", "--string_seed=0"), "without --inpu"),
    (("attention_maps", "--out="), "--out: expected a value"),
    (("attention_maps", "--out=rs", "--seed=5"), "rs is of the seed"),
    (("attention_maps", "--out={}/list"), "config.json should hold an object"),
    ((*LM, "--pretrained={}/hf_list"), "config.json"),
    ((*LM, "--pretrained={}/hf_types"), "hf_types"),
    ((*LM, "--pretrained={}/hf_torn"), "hf_torn"),
    ((*LM, "--pretrained={}/hf_lacks"), "n_layer"),
    ((*LM, "--pretrained={}/hf_missing"), "missing"),
    ((*LM, "--pretrained=gpt2"), "download"),
    ((*LM, "--size=tiny", "--out={}/file"), "--out should be"),
    ((*LM, "--size=tiny", "--out={}/new", "--cache_dir={}/file"), "--cache_dir"),
    ((*LM, "--size=tiny", "--out={}/new", "--cache_dir=/proc/x"), "--cache_dir"),
    ((*LM, "--size=tiny", "--vocab_size=3"), "--vocab_size should be"),
    ((*LM, "--size=tiny", "--vocab_size=100000000000"), "--vocab_size should be at m"),
    ((*LM, "--size=tiny", "--batch_size=100000000000"), "--batch_size should be at m"),
    ((*LM, "--size=tiny", "--dropout=2"), "dropout"),
    ((*LM, "--size=tiny", "--stack_layers=77"), "stack_layers"),
    (("lm", "--task=alm", "--dataset=ptb", "--data_dir={}/nothing"), "nothing"),
    (("lm", "--sample", "--out={}/run", "--prompt=a"), "a run of stackformer lm, but"),
    (("lm", "--export={}/file", "--out={}/run"), "a run of stackformer lm, but"),
    ((*LM, "--nostack", "--stack_init=gated"), "do not go with --nostack"),
    ((*LM, "--nostack", "--stack_layers=0"), "do not go with --nostack"),
    (("lm_table", "{}/nothing"), "does not exist"),
    (("lm_table", "{}/run"), "should be a run of stackformer lm, but"),
    (("tables", "--dry_run", "--", "--task=SM"), "--task"),
    (("tables", "--dry_run", "--", "--seeds=3"), "--seeds"),
    (("tables", "--dry_run", "--", "--nonsense"), "--nonsense"),
    (("tables", "--dry_run", "--seeds=0,0"), "--seeds should be different"),
    (("tables", "--report_only", "--out={}/nothing"), "does not exist"),
    (("tables", "--report_only", "--out={}/file"), "--out"),
    (("tables", "--report_only", "--out={}/empty"), "results.json files"),
    ((*RS, "--out", ""), "--out: expected a value, but got an empty one"),
    (("tables", "--dry_run", "--report_only"), "not allowed with argument --dry_run"),
    (("tables", "--tasks=RS", "--out="), "--out: expected a value"),
    (("tables", "--tasks=RS", "--out={}/file"), "--out should be"),
    (("tables", "--cluster=local", "--dry_run"), "go with --launcher=submitit"),
    (("tables", "--table=stacks", "--stacks=foo"), "--stacks: expected names of"),
    (("tables", "--stacks=frames", "--dry_run"), "--stacks is for --table=stacks"),
    (("tables", "--table=stacks", "--modes=alm"), "--modes is not for"),
    (("tables", "--table=stacks", "--preset=paper"), "--preset should be left out"),
    (("tables", "--tasks=DYCK2"), "no cell of table 1 is left"),
    (("tables", "--launcher=submitit", "--cluster=slurm", "--out={}/t"), "srun"),
    (("benchmark", "--lengths=7", "--out={}/b"), "--lengths should be"),
    (("benchmark", "train", "--lengths=81"), "--lengths is for the part kernel"),
    (("benchmark", "nothing"), "PART should be one of"),
    (("benchmark", "--out={}/file"), "--out should be"),
    (("compile", "--target=foo"), "invalid choice: 'foo'"),
    (("compile", "--target=cpu", "--what=train", "--task=XY"), "--task: unknown"),
    (("compile", "--target=cpu", "--what=decode", "--task=XY"), "--task: unknown"),
    (("compile", "--target=cpu", "--stack=foo"), "--stack: invalid choice: 'foo'"),
    (("compile", "--target=cpu", "--what=train", "--mesh=foo"), "--mesh"),
    (("compile", "--target=cpu", "--what=decode", "--model_config=x=3"), "but got x"),
    (("compile", "--target=cpu", "--out={}/file/x"), "--out should be"),
    (("compile", "--target=cpu", "--out={}/run"), "--out should be a file"),
]


@pytest.mark.parametrize(
    ("line", "words"), BAD, ids=[" ".join(line)[:90] for line, _ in BAD]
)
def test_one_line_says_what_is_wrong(folders, monkeypatch, capsys, line, words):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folders / "cache"))
    before = sorted(path.name for path in folders.iterdir())
    line = [part.replace("{}", str(folders)) for part in line]
    code, _, errors = call(monkeypatch, capsys, line)
    assert code == 2
    assert errors.startswith("error: ") and errors.count("\n") == 1, errors
    assert words in errors
    assert len(errors) < 900
    left = sorted(path.name for path in folders.iterdir())
    assert left == before, "a refused command leaves no folder"


@pytest.mark.parametrize(
    "line",
    [("dcf", "--eval_only"), ("dcf", "--predict=ab"), ("attention_maps", "--input=ab")],
)
def test_a_damaged_checkpoint_is_a_warning_and_a_line(
    folders, monkeypatch, capsys, line
):
    code, _, errors = call(monkeypatch, capsys, [*line, f"--out={folders / 'part'}"])
    warning, error = errors.splitlines()
    assert code == 2 and "is damaged and is skipped" in warning
    assert error.startswith("error: ") and "no whole checkpoint" in error


def test_a_stdout_that_is_not_utf_8(folders, monkeypatch, tmp_path):
    written = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", written)
    flags = [f"--out={folders / 'run'}", "--input=ab", f"--save_to={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["stackformer attention_maps", *flags])
    module = importlib.import_module("stackformer.commands.attention_maps")
    with pytest.raises(SystemExit) as end:
        cli.run(module.main)
    assert not end.value.code
    written.flush()
    assert b"reverse_string (mlm): ab" in written.buffer.getvalue()


HIDDEN, TOKENS = jnp.ones((2, 5, 8)), jnp.ones((1, 5), jnp.int32)
ACTIONS = jnp.full((2, 5, 3), 1 / 3)


@pytest.fixture(scope="module")
def parts():
    """What the calls of the table below are of."""
    config = stackformer.TransformerConfig(
        vocab_size=6, output_size=2, d_model=8, num_layers=1, num_heads=2
    )
    return {
        "stack": stackformer.StackAttention(8, rngs=nnx.Rngs(0)),
        "frames": FrameStack(8, hidden=8, item_features=4, rngs=nnx.Rngs(0)),
        "model": stackformer.StackTransformer(config, rngs=nnx.Rngs(0)),
        "rs": stackformer.load("rs"),
        "op": stackformer.stack_attention,
        "new": lambda n: stackformer.StackAttention(n, rngs=nnx.Rngs(0)),
        "new_frames": lambda n: FrameStack(n, rngs=nnx.Rngs(0)),
        "load": stackformer.load,
        "config": lambda n, **more: stackformer.TransformerConfig(
            vocab_size=6, output_size=2, d_model=n, **more
        ),
        "stack_config": stack_config,
    }


@pytest.mark.parametrize(
    ("what", "given", "options", "words"),
    [
        ("stack", HIDDEN, {"mask": jnp.ones((2, 9), bool)}, r"`mask` shape should be"),
        ("stack", HIDDEN, {"mask": [[True] * 5] * 2}, "`mask` should be an array"),
        ("frames", HIDDEN, {"mask": jnp.ones((2, 4), bool)}, "`mask` shape should be"),
        ("model", TOKENS, {"mask": jnp.ones((1, 4), bool)}, "`mask` shape should be"),
        ("stack", HIDDEN.tolist(), {}, "`h` should be an array, but got a list"),
        ("frames", HIDDEN.tolist(), {}, "`h` should be an array, but got a list"),
        ("model", TOKENS.tolist(), {}, "`tokens` should be an array, but got a list"),
        ("model", HIDDEN, {}, "`tokens` should be integers"),
        ("model", TOKENS[:, :0], {}, "`tokens` should have at least one position"),
        ("op", ACTIONS.tolist(), {"values": HIDDEN}, "`actions` should be an array"),
        ("op", ACTIONS, {"values": HIDDEN.tolist()}, "`values` should be an array"),
        (
            *("stack", HIDDEN, {"actions": ACTIONS, "weights": jnp.ones((2, 5, 5))}),
            "`weights` should be given without actions",
        ),
        *(("new", n, {}, "`features` should be") for n in (0, -1, 2.5, True)),
        *(("new_frames", n, {}, "`features` should be") for n in (0, 2.5)),
        ("load", None, {}, "`name` should be a text or a path"),
        ("load", "zz", {}, "`name` should be one of"),
        ("load", "", {}, "`name` should be one of"),
        ("op", None, {"values": HIDDEN}, "`actions` should be an array, but got None"),
        (
            *("op", ACTIONS, {"values": HIDDEN, "segment_ids": [[1] * 5] * 2}),
            "`segment_ids` should be an array, but got a list",
        ),
        ("config", 8, {"stack_layers": 3}, "`stack_layers` should be a list"),
        ("config", 8, {"dropout": "x"}, "`dropout` should be a number"),
        ("config", 8, {"stack": 7}, "`stack` should be one of .* but got 7"),
        ("stack_config", {"name": "pointer", "max_depth": "x"}, {}, "`max_depth` sho"),
        ("stack_config", {"name": "frames", "noise": "x"}, {}, "`noise` should be a n"),
        ("stack_config", {"name": "nondeterministic", "states": True}, {}, "`states`"),
        ("stack_config", {"name": [1]}, {}, "`stack` should be one of"),
        ("rs", "xyz", {}, "outside the alphabet"),
        ("rs", 7, {}, "`text` should be a text or several"),
        ("rs", ["ab", 7], {}, "`text` should be a text or several"),
    ],
)
def test_mistakes_in_python_are_named(parts, what, given, options, words):
    function = parts[what].predict if what == "rs" else parts[what]
    with pytest.raises((ValueError, TypeError, UserError), match=words):
        function(given, **options)
