"""The task of the README is under 40 lines, registers, and answers rightly."""

import pathlib
import re

import jax
import numpy as np

from stackformer import tasks
from stackformer.tasks import registry

README = pathlib.Path(tasks.__file__).with_name("README.md")


def close(text):
    stack = []
    for symbol in text:
        if symbol in "([":
            stack.append({"(": ")", "[": "]"}[symbol])
        else:
            assert stack.pop() == symbol
    return "".join(reversed(stack)) + "$"


def test_dyck_2(monkeypatch):
    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (source,) = [block for block in blocks if "class Dyck2" in block]
    assert len(source.splitlines()) < 40
    before, namespace = tasks.get("RS"), {}
    exec(source, namespace)
    exec(source, namespace)  # as a notebook cell that is run again

    assert tasks.get("RS") is before
    task = tasks.get("dyck_2")
    assert task is tasks.get("DYCK_2") and "dyck_2" in tasks.names()
    assert task.answer("([](") == "))$"
    sample = jax.jit(lambda key, n: task.sample(key, 512, n, max_length=60))
    constant = []
    for length in (1, 6, 41, 60):
        drawn = sample(jax.random.key(length), length)
        for x, y in task.decode_sample(drawn):
            assert len(x) == length and y == close(x)
        outputs, mask = np.asarray(drawn.outputs), np.asarray(drawn.output_mask)
        constant.append(np.bincount(outputs[mask], minlength=3) / mask.sum())
    assert abs(np.mean(constant[2:], axis=0).max() - task.chance) < 0.02

    exact = task.sample(jax.random.key(6), 512, 6)
    padded = sample(jax.random.key(6), 6)
    np.testing.assert_array_equal(exact.inputs, padded.inputs[:, :6])
    np.testing.assert_array_equal(exact.outputs, padded.outputs[:, :7])


def test_the_packages_dyck_2_is_that_of_the_readme(monkeypatch):
    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (source,) = [block for block in blocks if "class Dyck2" in block]
    exec(source, {})
    ours = tasks.get("stackformer.tasks.dyck_2:Dyck2")
    key = jax.random.key(0)
    for got, expected in zip(
        jax.tree.leaves(ours.sample(key, 8, 9)),
        jax.tree.leaves(tasks.get("dyck_2").sample(key, 8, 9)),
        strict=True,
    ):
        np.testing.assert_array_equal(got, expected)


def test_readme_lists_every_task():
    text = README.read_text()
    for name in tasks.names():
        assert name in text
