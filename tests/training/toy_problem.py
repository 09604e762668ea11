"""A small problem for tests of the engine, and a command that trains it.

python toy_problem.py OUT [--steps=N] [--seeds=0,1] [--mesh=...] [--distributed ...]
"""

import argparse
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from stackformer import training
from stackformer.training import distributed

FEATURES = 4


def noise(key, shape):
    """Numbers in -1..1 from a key; jax.random takes a second to compile on a CPU."""
    words = jax.random.key_data(key).astype(jnp.float32) * 2.0**-32
    index = jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)
    return jnp.sin((1.0 + 9.0 * words[0]) * index + 6.3 * words[1])


class ToyModel(nnx.Module):
    """Two layers and dropout."""

    def __init__(self, rngs: nnx.Rngs, hidden: int = 8):
        self.inner = nnx.Linear(FEATURES, hidden, rngs=rngs)
        self.outer = nnx.Linear(hidden, 1, rngs=rngs)

    def __call__(self, x, *, rngs=None):
        hidden = jnp.tanh(self.inner(x))
        if rngs is not None:
            keep = noise(rngs.dropout(), hidden.shape) < 0.95
            hidden = jnp.where(keep, hidden / 0.9, 0.0)
        return self.outer(hidden)


def toy_problem(*, validation=None, bad_step=None, lr=1e-2, hidden=8):
    """Regression; the bucket is the width of a batch's second axis."""

    def batch(data, key, step, bucket, progress):
        x = noise(jax.random.fold_in(key, step), (16, bucket, FEATURES))
        y = x.sum(axis=-1, keepdims=True)
        if bad_step is not None:
            y = jnp.where(step == bad_step, jnp.nan, y)
        return x, y

    def loss(model, batch, rngs, progress):
        x, y = batch
        error = jnp.square(model(x, rngs=rngs) - y)
        return error.mean(), {"accuracy": (error < 0.1).mean()}

    def choose_bucket(step, progress):
        return (step // 3 + step // 5) % 2

    return training.Problem(
        init=lambda key: ToyModel(nnx.Rngs(key), hidden),
        batch=batch,
        loss=loss,
        optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adam(lr)),
        buckets=(2, 5),
        choose_bucket=choose_bucket,
        validation=validation,
    )


def toy_measure():
    """Mean square error on two fixed batches."""

    def batch(data, index):
        x = noise(jax.random.fold_in(jax.random.key(3), index), (8, FEATURES))
        return x, x.sum(axis=-1, keepdims=True)

    def count(model, batch):
        x, y = batch
        return {"error": jnp.square(model(x) - y).sum(), "count": jnp.float32(8)}

    return training.Measure(batch=batch, count=count, num_batches=2)


def run(out, *, seeds=(0,), mesh=None, hidden=8, **options):
    """Trains the toy problem and returns the final state."""
    sizes = training.parse_mesh(mesh, jax.device_count(), 16)
    with training.RunFolder(out, {"toy": 1}) as folder:
        return training.train(
            toy_problem(hidden=hidden),
            training.TrainOptions(
                seeds=seeds, progress=False, **{"steps_per_dispatch": 5, **options}
            ),
            folder=folder,
            placement=training.Placement.create(sizes),
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--mesh")
    parser.add_argument("--hidden", type=int, default=8)
    parser.add_argument("--checkpoint_every", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a block")
    parser.add_argument("--coordinator")
    parser.add_argument("--process_id", type=int)
    args = parser.parse_args()
    if args.coordinator:
        distributed.initialize(args.coordinator, 2, args.process_id)
    if args.pause:
        append = training.RunFolder.append

        def slow(*arguments):
            time.sleep(args.pause)
            append(*arguments)

        training.RunFolder.append = slow
    try:
        state = run(
            args.out,
            seeds=tuple(int(seed) for seed in args.seeds.split(",")),
            mesh=args.mesh,
            hidden=args.hidden,
            steps=args.steps,
            checkpoint_every=args.checkpoint_every,
        )
    except training.Interrupted as stop:
        print("interrupted", stop.step)
        sys.exit(0)
    print("finished", int(state.step))
    if jax.process_index() == 0:
        flat = jax.tree.leaves(state.params)
        np.savez(f"{args.out}/final.npz", *[x.addressable_data(0) for x in flat])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
