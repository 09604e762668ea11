"""The programs that are compiled: kernels, the train block, the decoding step.

Only shapes are made, no arrays: nothing runs, and a large model takes no memory.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer.ops import stack_attention
from stackformer.ops.stack_attention.form import Options
from stackformer.ops.stack_attention.forms import FORMS
from stackformer.problems.dcf.config import DCFConfig
from stackformer.problems.dcf.presets import preset_values
from stackformer.problems.dcf.problem import make_problem
from stackformer.training.mesh import Placement, parse_mesh
from stackformer.training.problem import Problem
from stackformer.training.state import abstract_state
from stackformer.training.step import make_block

# Above this T the reference, which Python unrolls, is left out.
LONGEST_REFERENCE = 33


class Program(NamedTuple):
    """Something to compile: what it is, and how it is lowered."""

    name: str
    lower: Callable[[], Any]


def kernels(
    devices: list[Any], *, batch: int = 2, length: int = 2049, features: int = 64
) -> Iterator[Program]:
    """Value and gradient of every form, and of softmax attention beside them."""
    where = Placement.create(devices=devices).replicated

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=where)

    arrays = (array(batch, length, 3), *[array(batch, length, features)] * 2)
    for name, kernel in {"softmax attention": _softmax, **_forms(length)}.items():
        if name == "reference" and length > LONGEST_REFERENCE:
            continue
        program = jax.jit(functools.partial(_with_gradient, kernel))
        label = f"{name}, B={batch} T={length} D={features}"
        yield Program(label, functools.partial(program.lower, *arrays))


def _forms(length: int) -> dict[str, Callable[..., jax.Array]]:
    found: dict[str, Callable[..., jax.Array]] = {}
    for name, form in FORMS.items():
        found[name] = functools.partial(stack_attention, implementation=name)
        if length > 128 and form.refuses(length, Options(max_depth=64)) is None:
            found[f"{name}, max_depth=64"] = functools.partial(
                stack_attention, implementation=name, max_depth=64
            )
    return found


def _with_gradient(kernel, actions, values, cotangent):
    tops, pull = jax.vjp(kernel, actions, values)
    return tops, *pull(cotangent)


def _softmax(actions, values, heads: int = 8):
    del actions
    split = values.reshape(*values.shape[:2], heads, -1)
    out = jax.nn.dot_product_attention(split, split, split, is_causal=True)
    return out.reshape(values.shape)


def train_block(problem: Problem, seeds, steps: int, placement: Placement) -> Any:
    """Lowers the block of train steps on abstract shapes."""
    state = abstract_state(problem, seeds, placement)

    def placed(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=placement.replicated
        )

    data = jax.tree.map(placed, problem.data)
    stop = placed(jax.ShapeDtypeStruct((), jnp.int32))
    block: Any = make_block(problem, problem.graph, placement, state, steps)
    return block.lower(state, data, stop)


def quick(*, task: str, stack: str | None, **fields: Any) -> DCFConfig:
    """What `experiments.dcf` trains with these flags.

    Raises:
      UserError: there is no such task or kind of stack.
    """
    values = preset_values("quick", task, "stack_transformer", stack)
    return DCFConfig(task=task, **values | fields)


def train(
    devices: list[Any], config: DCFConfig, *, mesh: str | None = None
) -> Iterator[Program]:
    """The block of train steps of `experiments.dcf` with this configuration."""
    sizes = parse_mesh(mesh, len(devices), config.batch_size)
    placement = Placement.create(sizes, devices=devices)
    lower = functools.partial(
        train_block,
        make_problem(config),
        config.seeds,
        config.steps_per_dispatch,
        placement,
    )
    shown = ",".join(f"{axis}:{n}" for axis, n in sizes.items() if n > 1)
    kind = "" if config.stack == "superposition" else f" {config.stack}"
    name = f"train {config.task} {config.mode}{kind} {shown}".rstrip()
    yield Program(f"{name}, {config.steps_per_dispatch} steps", lower)


def decoding(
    devices: list[Any], config: DCFConfig, *, batch: int = 8
) -> Iterator[Program]:
    """One step of the autoregressive stack transformer, at most 256 positions."""
    where = Placement.create(devices=devices).replicated
    problem = make_problem(dataclasses.replace(config, mode="alm"))
    build: Callable[[jax.Array], Any] = problem.init

    def abstract(make: Callable[[], Any]) -> Any:
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
            jax.eval_shape(make),
        )

    graph, state = nnx.split(nnx.eval_shape(lambda: build(jax.random.key(0))))
    state = abstract(lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state))

    def step(state: Any, cache: Any, tokens: jax.Array) -> Any:
        return nnx.merge(graph, state).decode_step(cache, tokens)

    cache = abstract(lambda: build(jax.random.key(0)).init_cache(batch, 256))
    tokens = jax.ShapeDtypeStruct((batch,), jnp.int32, sharding=where)
    program = jax.jit(step, donate_argnums=1)
    yield Program(
        f"decode {config.task}, batch {batch}",
        functools.partial(program.lower, state, cache, tokens),
    )
