"""(d) The task samplers against plain Python generators of the same strings."""

import dataclasses
import functools
import random
from typing import Any

import jax

from stackformer import tasks
from stackformer.commands.benchmark.timing import summarize, take_turns

BATCH, LENGTH = 128, 40


def run(*, repeats: int, seconds: float) -> dict[str, Any]:
    """A jitted batch of 128 strings of length 40, for SM, MA and SE."""
    generators = {
        "SM": _stack_manipulation,
        "MA": _modular_arithmetic,
        "SE": _solve_equation,
    }
    record = {}
    print(f"\nsamplers, {BATCH} strings of length {LENGTH}")
    for name, generator in generators.items():
        task = tasks.get(name)
        sample = jax.jit(functools.partial(_sample, task))
        jax.block_until_ready(sample(jax.random.key(0)))
        rng = random.Random(0)
        runs = {
            "jax": lambda sample=sample: sample(jax.random.key(1)),
            "python": lambda g=generator, rng=rng: [
                g(rng, LENGTH) for _ in range(BATCH)
            ],
        }
        times = take_turns(runs, repeats=repeats, seconds=seconds, label=name)
        jitted, python = (summarize(k, times[k]) for k in ("jax", "python"))
        print(
            f"  {name}{jitted.milliseconds:>8.2f} ms"
            f"   Python{python.milliseconds:>8.2f} ms"
            f"   ratio {jitted.milliseconds / python.milliseconds:.2f}"
        )
        record[name] = {
            "jax": dataclasses.asdict(jitted),
            "python": dataclasses.asdict(python),
        }
    return record


def _sample(task: tasks.Task, key: jax.Array) -> tasks.Sample:
    return task.sample(key, BATCH, LENGTH)


def _stack_manipulation(rng: random.Random, length: int) -> tuple[list[str], list[str]]:
    size = rng.randint(1, length - 1)
    string = [rng.choice("ab") for _ in range(size)]
    actions = [rng.choice(("pop", "push a", "push b")) for _ in range(length - size)]
    stack = list(string)
    for action in actions:
        if action != "pop":
            stack.append(action[-1])
        elif stack:
            stack.pop()
    answer = [*reversed(stack), "end"]
    return string + actions, answer + ["end"] * (length + 1 - len(answer))


def _expression(rng: random.Random, length: int, operators: str) -> tuple[str, int]:
    """A bracketed expression of this length, and its value modulo 5."""
    if length <= 2:
        digit = rng.randrange(5)
        return (
            "-" * (length == 2) + str(digit),
            (-digit if length == 2 else digit) % 5,
        )
    if length <= 4:
        text, value = _expression(rng, length - 2, operators)
        return f"({text})", value
    left_length = rng.randint(1, length - 4)
    left, a = _expression(rng, left_length, operators)
    right, b = _expression(rng, length - 3 - left_length, operators)
    operator = rng.choice(operators)
    value = {"+": a + b, "-": a - b, "*": a * b}[operator] % 5
    return f"({left}{operator}{right})", value


def _modular_arithmetic(rng: random.Random, length: int) -> tuple[str, int]:
    return _expression(rng, length, "+-*")


def _solve_equation(rng: random.Random, length: int) -> tuple[str, int]:
    text, value = _expression(rng, length - 2, "+-")
    start = rng.randrange(len(text))
    places = [i % len(text) for i in range(start, start + len(text))]
    place = next(i for i in places if text[i].isdigit())
    return f"{text[:place]}z{text[place + 1 :]}={value}", int(text[place])
