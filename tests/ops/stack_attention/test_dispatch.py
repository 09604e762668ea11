"""A dispatch table of your own, and the fused kernels apart from the registry."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_checks import random_inputs

from stackformer.commands.benchmark.kernel import best_table
from stackformer.commands.benchmark.timing import summarize
from stackformer.ops.stack_attention.dispatch import assume_backend
from stackformer.ops.stack_attention.forms import choose
from stackformer.ops.stack_attention.pallas import attend, gpu
from stackformer.ops.stack_attention.recurrent import stack_attention_recurrent


def test_a_table_of_the_user_is_used(tmp_path, monkeypatch):
    rows = [
        {"longest": 64, "implementation": "pallas"},
        {"implementation": "chunkwise", "chunk_size": 8},
    ]
    path = tmp_path / "dispatch.json"
    path.write_text(json.dumps({"gpu": rows}))
    monkeypatch.setenv("STACKFORMER_DISPATCH", str(path))
    assert choose(64, 4, backend="gpu").implementation == "pallas"
    assert choose(65, 4, backend="gpu").options.chunk_size == 8
    assert choose(64, 4, backend="cpu").implementation == "scan"
    with assume_backend("gpu"):
        assert choose(9, 4).implementation == "pallas"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no JSON", "`STACKFORMER_DISPATCH` should be a JSON file"),
        ('{"gpu": [{"form": "scan"}]}', "should be a JSON file"),
        ('{"gpu": [{"longest": 9, "implementation": "scan"}]}', "the last without"),
        ('{"cuda": [{"implementation": "scan"}]}', "rows for cpu, gpu, tpu"),
        ('{"gpu": [{"implementation": "fast"}]}', "`implementation` should be"),
    ],
)
def test_a_bad_table_is_explained(tmp_path, monkeypatch, content, message):
    path = tmp_path / "dispatch.json"
    path.write_text(content)
    monkeypatch.setenv("STACKFORMER_DISPATCH", str(path))
    with pytest.raises(ValueError, match=message):
        choose(9, 4, backend="gpu")


def test_the_benchmark_says_what_the_table_should_be():
    def timed(**milliseconds):
        names = {"chunk": "chunkwise b=32", "bounded": "chunkwise, max_depth=64"}
        found = {names.get(k, k): v / 1e3 for k, v in milliseconds.items()}
        return {"forward + backward": {n: summarize(n, [t]) for n, t in found.items()}}

    results = {
        "B=32 T=81 D=64": timed(pallas=1.0, chunk=2.0, bounded=0.1),
        "B=32 T=201 D=64": timed(pallas=1.0, chunk=2.0),
        "B=8 T=513 D=64": timed(pallas=3.0, chunk=2.0),
        "B=8 T=129 D=768": timed(chunk=1.0),
    }
    assert best_table(results) == [
        {"longest": 201, "implementation": "pallas"},
        {"longest": None, "implementation": "chunkwise", "chunk_size": 32},
    ]


@pytest.mark.usefixtures("compiled_as_users_do")
@pytest.mark.parametrize(
    ("length", "max_depth", "begin"), [(20, None, ()), (23, 5, (4, 5, 17))]
)
def test_the_kernels_for_gpus_equal_the_recurrent_form(
    length, max_depth, begin, monkeypatch
):
    """Interpreted, with several blocks of rows; a barrier has nothing to wait for."""
    sizes = gpu.plan

    def plan(*arguments):
        return dataclasses.replace(sizes(*arguments), barrier=lambda: None)

    monkeypatch.setattr(gpu, "_ROWS", 4)
    monkeypatch.setattr(gpu, "plan", plan)
    for name in ("forward", "backward"):
        function = functools.partial(_interpreted, getattr(gpu, name))
        monkeypatch.setattr(gpu, name, function)
    logits, values = random_inputs(length, (2,))
    starts = jnp.isin(jnp.arange(length), jnp.array(begin)) if begin else None
    starts = starts if starts is None else jnp.stack([starts, ~starts])
    fused = functools.partial(
        attend.stack_attention_pallas,
        max_depth=max_depth,
        starts=starts,
        backend="gpu",
    )

    def steps(actions, values):
        return stack_attention_recurrent(
            actions, values, max_depth=max_depth, starts=starts
        )[0]

    got, wanted = (_pulled(f, jax.nn.softmax(logits), values) for f in (fused, steps))
    for found, right in zip(got, wanted, strict=True):
        np.testing.assert_allclose(found, right, atol=1e-5)


def _interpreted(function, *arguments, interpret):
    del interpret
    return function(*arguments, interpret=True)


def _pulled(attend, actions, values):
    def run(actions, values):
        top, pull = jax.vjp(attend, actions, values)
        return top, *pull(top**2)

    return jax.jit(run)(actions, values)
