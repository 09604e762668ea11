"""(c) One decoding step of a stack: soft actions move values, hard ones an integer."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from stackformer.commands.benchmark.timing import Contestant, measure
from stackformer.ops.stack_attention.hard import hard_stack_step, init_hard_state
from stackformer.ops.stack_attention.recurrent import (
    init_stack_state,
    reachable_depth,
    stack_step,
)

LENGTHS = (101, 401, 1601)
_BATCH, _FEATURES, _STEPS = 32, 64, 100


def stack_steps(*, repeats: int, seconds: float) -> dict[str, Any]:
    """Steps in the middle of a string of T positions, as deep a stack as it can need.

    Both run a scan of a hundred steps, as `generate` does; times are those of one.
    """
    record = {}
    print(f"\none step of a stack, batch {_BATCH}, {_FEATURES} features")
    for length in LENGTHS:
        contestants = [_soft(length), _hard(length)]
        timings = measure(
            contestants, repeats=repeats, seconds=seconds, label=f"steps, T={length}"
        )
        soft, hard = (timings[c.name].milliseconds / _STEPS for c in contestants)
        print(
            f"  T={length:<6}soft {1e3 * soft:>8.1f} us   hard {1e3 * hard:>8.1f} us"
            f"   soft / hard {soft / hard:.1f}"
        )
        record[str(length)] = {
            "timings": {k: dataclasses.asdict(v) for k, v in timings.items()},
            "steps": _STEPS,
            "ratio": soft / hard,
        }
    return record


def _soft(length: int) -> Contestant:
    bottom = jnp.zeros((_BATCH, _FEATURES))
    state = init_stack_state(bottom, reachable_depth(length))

    def step(state: Any, action: jax.Array, value: jax.Array, index: jax.Array) -> Any:
        return stack_step(state, jax.nn.one_hot(action, 3), value)

    return Contestant("soft", _scan(step), (state, *_inputs(length)))


def _hard(length: int) -> Contestant:
    state = init_hard_state((_BATCH,), length, _FEATURES)
    return Contestant("hard", _scan(hard_stack_step), (state, *_inputs(length)))


def _scan(step: Callable[..., Any]) -> Callable[..., Any]:
    def run(state: Any, *inputs: jax.Array) -> Any:
        return jax.lax.scan(lambda state, x: step(state, *x), state, inputs)[1]

    return run


def _inputs(length: int) -> tuple[jax.Array, ...]:
    """Actions, values and indices of the steps."""
    actions = jax.random.randint(jax.random.key(0), (_STEPS, _BATCH), 0, 3)
    values = jax.random.normal(jax.random.key(1), (_STEPS, _BATCH, _FEATURES))
    return actions, values, (length - _STEPS) // 2 + 1 + jnp.arange(_STEPS)
