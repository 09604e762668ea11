"""(e) The stack of frames: every form, forward and backward, on strings of MA."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer import tasks
from stackformer.commands.benchmark.timing import Contestant, measure
from stackformer.nn.stacks import FramesConfig
from stackformer.ops.frames import FORMS, stack_of_frames

LENGTHS = (40, 100)
_BATCH, _FEATURES = 32, 64


def run(*, repeats: int, seconds: float) -> dict[str, Any]:
    """Brackets are given: "(" pushes, ")" pops; F is that of `FramesConfig()`."""
    record = {}
    stack = FramesConfig().make(_FEATURES, rngs=nnx.Rngs(0))
    graph, params = nnx.split(stack)
    print(f"\nstack of frames on MA, batch {_BATCH}, forward + backward")
    for length in LENGTHS:
        actions = _brackets(length)
        h = jax.random.normal(jax.random.key(1), (*actions.shape[:2], _FEATURES))
        contestants = [
            Contestant(name, _gradient(graph, name), (params, h, actions))
            for name in FORMS
            if name != "reference"
        ]
        label = f"frames, {length} symbols"
        timings = measure(contestants, repeats=repeats, seconds=seconds, label=label)
        for timing in timings.values():
            print(
                f"  {length:>4} symbols  {timing.name:<10}"
                f"{timing.milliseconds:>9.1f} ms   temp {timing.temp_mib:.0f} MiB"
            )
        record[str(length)] = {k: dataclasses.asdict(t) for k, t in timings.items()}
    return record


def _gradient(graph: nnx.GraphDef, implementation: str) -> Callable[..., Any]:
    def loss(params: Any, h: jax.Array, actions: jax.Array) -> jax.Array:
        stack = nnx.merge(graph, params)
        frames = stack_of_frames(
            actions,
            stack.items(h),
            stack.close,
            num_items=stack.config.items,
            implementation=implementation,
        )
        return jnp.sum(frames**2)

    return jax.grad(loss, argnums=(0, 1))


def _brackets(length: int) -> jax.Array:
    """One-hot actions of random expressions, BOS first: (B, T, 3)."""
    task = tasks.get("MA")
    sample = task.sample(jax.random.key(0), _BATCH, length)
    symbols = jnp.asarray([{"(": 0, ")": 1}.get(s, 2) for s in task.input_symbols])
    actions = jnp.pad(symbols[sample.inputs], ((0, 0), (1, 0)), constant_values=2)
    return jax.nn.one_hot(actions, 3)
