"""`stackformer compile`: the static cost, a missing package, the table for a CPU."""

import importlib.util
import json
import os
import types

import jax
import pytest

from stackformer.commands import flags
from stackformer.commands.compile import command, programs, targets
from stackformer.commands.compile.cost import static_cost
from stackformer.problems.dcf.config import DCFConfig
from stackformer.problems.dcf.presets import preset_values
from stackformer.training.errors import UserError

PROGRAM = """
%body (p: s32[]) -> s32[] {
  %p = s32[] parameter(0)
  %f = s32[] fusion(%p), kind=kLoop, backend_config={"estimated_cycles":"10"}
  ROOT %r = s32[] all-reduce(%f), backend_config={"estimated_cycles":"5"}
}

%condition (p: s32[]) -> pred[] {
  %limit = s32[] constant(7)
  %p = s32[] parameter(0)
  ROOT %lt = pred[] compare(%p, %limit), direction=LT
}

%unknown (p: s32[]) -> pred[] {
  ROOT %p = pred[] parameter(0)
}

ENTRY %main (a: s32[]) -> s32[] {
  %a = s32[] parameter(0)
  %w = s32[] while(%a), condition=%condition, body=%body
  %c = s32[] conditional(%a, %w, %w), branch_computations={%body, %condition}
  ROOT %x = s32[] fusion(%c), kind=kLoop, backend_config={"estimated_cycles":"100"}
}
"""


def test_loops_count_as_often_as_they_run():
    cost = static_cost(PROGRAM)
    # Seven turns, the more expensive branch, and the last fusion.
    assert cost.cycles == 7 * 15 + 15 + 100
    assert cost.collectives == {"all-reduce": 8}
    assert cost.launches == 7 * (2 + 1) + 2 + 1
    assert cost.exact
    known = PROGRAM.replace(
        "body=%body\n", 'body=%body, backend_config={"known_trip_count":{"n":"3"}}\n'
    )
    assert static_cost(known).collectives == {"all-reduce": 4}


def test_a_loop_of_unknown_length_makes_the_sum_a_bound():
    cost = static_cost(PROGRAM.replace("condition=%condition", "condition=%unknown"))
    assert not cost.exact
    assert cost.cycles == 15 + 15 + 100


@pytest.mark.parametrize(
    ("target", "extra"), [("v5e:2x2", "aot-tpu"), ("h100", "aot-gpu")]
)
def test_a_missing_package_is_named(target, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"pip install 'stackformer-jax\[{extra}\]'"):
        command.main([f"--target={target}"])
    assert targets.missing_package("cpu") is None


@pytest.mark.parametrize("wrong", [{"task": "XX"}, {"stack": "foo"}])
def test_a_wrong_name_is_a_line_not_a_traceback(wrong):
    with pytest.raises(UserError, match=r"foo|XX"):
        programs.quick(**{"task": "RS", "stack": None} | wrong)


def test_a_kind_of_stack_brings_its_preset():
    config = programs.quick(task="RS", stack="frames", mode="alm")
    expected = preset_values("quick", "RS", "stack_transformer", "frames")
    assert config.mode == "alm"
    assert config == DCFConfig(**expected, task="RS", mode="alm")


def test_fields_of_the_model_are_over_the_preset(monkeypatch):
    configs = []
    monkeypatch.setattr(
        programs, "train", lambda devices, config, mesh: [configs.append(config)]
    )
    flags = "--target=cpu --what=train --task=MA --model_config=scan_layers=False"
    command.programs(command.make_parser().parse_args(flags.split()), [])
    expected = preset_values("quick", "MA", "stack_transformer")["model_config"]
    assert configs[0].model_config == expected | {"scan_layers": False}


def test_a_folder_that_cannot_be_made_is_refused_before_compiling(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--out"):
        command.main(["--target=cpu", f"--out={tmp_path / 'file' / 'x.json'}"])


def test_the_table_for_a_cpu(tmp_path, capsys):
    # The command switches the cache off, and chooses the CPU, in its own process.
    before = jax.config.jax_enable_compilation_cache, jax.config.jax_platforms
    try:
        out = tmp_path / "cpu.json"
        code = command.main(["--target=cpu", "--what=decode", f"--out={out}"])
    finally:
        jax.config.update("jax_enable_compilation_cache", before[0])
        jax.config.update("jax_platforms", before[1])
    assert code == 0
    printed = capsys.readouterr().out
    assert "not a measurement" in printed and "decode RS" in printed
    (row,) = json.loads(out.read_text())["programs"]
    assert row["launches"] > 0 and row["cycles"] is None and row["temp_mib"] > 0
    assert not [
        name for name in row if name.endswith("seconds") and "compile" not in name
    ]


@pytest.mark.parametrize("switched_off", [False, True])
def test_where_compiled_programs_are_kept(switched_off, tmp_path, monkeypatch):
    updates = {}
    monkeypatch.setattr(jax.config, "update", updates.__setitem__)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    args = types.SimpleNamespace(no_compilation_cache=switched_off)
    monkeypatch.setitem(os.environ, "JAX_COMPILATION_CACHE_DIR", "/elsewhere")
    flags.keep_programs(args)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    assert updates == ({"jax_enable_compilation_cache": False} if switched_off else {})
    flags.keep_programs(args)
    if not switched_off:
        folder = tmp_path / "stackformer" / "xla"
        assert updates == {"jax_compilation_cache_dir": str(folder)}
