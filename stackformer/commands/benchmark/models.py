"""(b) A whole train step and (c) decoding: stack against vanilla transformer."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from stackformer import models, tasks
from stackformer.commands.benchmark.timing import (
    Contestant,
    measure,
    summarize,
    take_turns,
)
from stackformer.models.generate import generate
from stackformer.problems.dcf.problem import masked_loss

MODELS = ("stack_transformer", "transformer")


def train_step(*, repeats: int, seconds: float) -> dict[str, Any]:
    """A step of the paper's setting: RS, 40 symbols (81 positions), batch 32."""
    task = tasks.get("RS")
    framed = tasks.frame(task, task.sample(jax.random.key(0), 32, 40), "mlm")
    contestants = [
        Contestant(
            name,
            *make_train_step(models.build(name, task, rngs=nnx.Rngs(0)), framed),
        )
        for name in MODELS
    ]
    timings = measure(contestants, repeats=repeats, seconds=seconds, label="train step")
    stack, vanilla = (timings[name].milliseconds for name in MODELS)
    print(f"\ntrain step, T={framed.tokens.shape[1]}, batch 32, five layers")
    for timing in timings.values():
        print(
            f"  {timing.name:<20}{timing.milliseconds:>9.1f} ms   compiled in "
            f"{timing.compile_seconds:.1f} s   temp {timing.temp_mib:.0f} MiB"
        )
    print(f"  stack / vanilla {stack / vanilla:.2f}")
    return {
        "timings": {k: dataclasses.asdict(v) for k, v in timings.items()},
        "ratio": stack / vanilla,
    }


def make_train_step(
    model: nnx.Module, framed: tasks.Framed
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A train step on these strings, and its arguments."""
    graph, params = nnx.split(model)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-4))

    def step(params, opt_state, key):
        def loss(params):
            logits = nnx.merge(graph, params)(
                framed.tokens, mask=framed.mask, rngs=nnx.Rngs(dropout=key)
            )
            return masked_loss(logits, framed.targets, framed.target_mask)[0]

        value, grads = jax.value_and_grad(loss)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return step, (params, optimizer.init(params), jax.random.key(0))


def decoding(*, length: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Writing the answer to |x| = length of RS: cache against full passes."""
    task = tasks.get("RS")
    model = models.build("stack_transformer", task, mode="alm", rngs=nnx.Rngs(0))
    sample = task.sample(jax.random.key(0), 1, length)
    framed = tasks.frame(task, sample, "alm")
    width = length + 2  # BOS, the string, SEP
    prompts = framed.tokens[:, :width]
    lengths = jnp.full(1, width)
    outputs = jnp.asarray(task.output_tokens)

    cached = functools.partial(
        generate, model, prompts, lengths, length, output_tokens=outputs
    )
    again = functools.partial(_full_passes, *nnx.split(model), prompts, outputs, length)
    if not bool((cached()[0] == again()).all()):
        raise RuntimeError("decoding with a cache writes another answer; not timed")
    names = ("with cache and stack state", "full pass for every symbol")
    runs: dict[str, Callable[[], Any]] = {names[0]: cached, names[1]: again}
    times = take_turns(runs, repeats=repeats, seconds=seconds, label="decoding")
    timings = {name: summarize(name, times[name]) for name in names}
    speedup = timings[names[1]].milliseconds / timings[names[0]].milliseconds
    print(f"\ndecoding, |x| = {length}, {length} symbols written, batch 1")
    for timing in timings.values():
        print(f"  {timing.name:<28}{timing.milliseconds:>10.1f} ms")
    print(f"  {speedup:.1f} times faster")
    return {
        "timings": {k: dataclasses.asdict(v) for k, v in timings.items()},
        "speedup": speedup,
    }


def _full_passes(graph, params, prompts, outputs, num_new):
    """What one would do without a cache: the whole string again for each symbol."""
    width = prompts.shape[1]
    tokens = jnp.pad(prompts, ((0, 0), (0, num_new)))
    classes = []
    for t in range(num_new):
        tokens, written = _full_pass(graph, params, tokens, outputs, width + t)
        classes.append(written)
    return jnp.stack(classes, axis=1)


@functools.partial(jax.jit, static_argnames="graph")
def _full_pass(graph, params, tokens, outputs, position):
    mask = jnp.broadcast_to(jnp.arange(tokens.shape[1]) < position, tokens.shape)
    logits = nnx.merge(graph, params)(tokens, mask=mask)
    at = jax.lax.dynamic_index_in_dim(logits, position - 1, axis=1, keepdims=False)
    written = jnp.argmax(at, axis=-1)
    column = outputs[written].astype(tokens.dtype)[:, None]
    tokens = jax.lax.dynamic_update_slice(tokens, column, (0, position))
    return tokens, written
