"""How long a batch of strings takes: jitted on the device, and in plain Python.

`measure` is the part of `python -m experiments.benchmark` that times the samplers. The
other side of each ratio is a plain Python generator of the same distribution that makes
one string after another, as the benchmark of Deletang et al. (2023) does.
"""

import random
import statistics
import time
from collections.abc import Callable
from typing import Any


def _expression(rng: random.Random, length: int, operators: str) -> tuple[str, int]:
    if length <= 4:
        digit = rng.randrange(5)
        text = {1: "{}", 2: "-{}", 3: "({})", 4: "(-{})"}[length].format(digit)
        return text, digit if length % 2 else -digit % 5
    left_length = rng.randint(1, length - 4)
    left, a = _expression(rng, left_length, operators)
    right, b = _expression(rng, length - 3 - left_length, operators)
    operator = rng.choice(operators)
    value = {"+": a + b, "-": a - b, "*": a * b}[operator] % 5
    return f"({left}{operator}{right})", value


def _stack_manipulation(rng: random.Random, length: int) -> tuple[list[int], list[int]]:
    stack_length = rng.randint(1, length - 1)
    stack = [rng.randrange(2) for _ in range(stack_length)]
    actions = [rng.randrange(2, 5) for _ in range(length - stack_length)]
    string = stack + actions
    for action in actions:
        if action > 2:
            stack.append(action - 3)
        elif stack:
            stack.pop()
    return string, stack[::-1] + [2] * (length + 1 - len(stack))


def _modular_arithmetic(rng: random.Random, length: int) -> tuple[list[int], int]:
    text, value = _expression(rng, length, "+-*")
    return ["01234+-*()".index(symbol) for symbol in text], value


def _solve_equation(rng: random.Random, length: int) -> tuple[list[int], int]:
    text, value = _expression(rng, length - 2, "+-")
    place = rng.randrange(len(text))
    while not text[place].isdigit():
        place = (place + 1) % len(text)
    string = f"{text[:place]}z{text[place + 1 :]}={value}"
    return ["01234+-()z=".index(symbol) for symbol in string], int(text[place])


GENERATORS: dict[str, Callable[[random.Random, int], tuple[Any, Any]]] = {
    "SM": _stack_manipulation,
    "MA": _modular_arithmetic,
    "SE": _solve_equation,
}


def measure(
    batch_size: int = 128, length: int = 40, repeats: int = 30
) -> list[dict[str, Any]]:
    """Milliseconds for one batch of SM, MA and SE, medians of `repeats` batches.

    Both sides end with arrays on the device; a warm-up batch of each is not counted.

    Returns:
        One {"task", "batch_size", "length", "jax_ms", "python_ms", "ratio"} a task.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from stackformer import tasks

    rows = []
    for name, generate in GENERATORS.items():
        task, rng = tasks.get(name), random.Random(0)
        sample = jax.jit(lambda key, task=task: task.sample(key, batch_size, length))
        keys = list(jax.random.split(jax.random.key(0), repeats + 1))

        def on_device(i: int, sample=sample, keys=keys) -> Any:
            return sample(keys[i])

        def in_python(i: int, generate=generate, rng=rng) -> Any:
            pairs = [generate(rng, length) for _ in range(batch_size)]
            inputs, outputs = zip(*pairs, strict=True)
            return jnp.asarray(np.array(inputs)), jnp.asarray(np.array(outputs))

        jax_ms, python_ms = (_median_ms(f, repeats) for f in (on_device, in_python))
        rows.append(
            {
                "task": name,
                "batch_size": batch_size,
                "length": length,
                "jax_ms": jax_ms,
                "python_ms": python_ms,
                "ratio": python_ms / jax_ms,
            }
        )
    return rows


def _median_ms(run: Callable[[int], Any], repeats: int) -> float:
    import jax

    times = []
    for i in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(run(i))
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[1:])
