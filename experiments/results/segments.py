"""What `segment_ids` cost: value and gradient with them, over the time without.

    python experiments/results/segments.py

Both programs of a form take turns in one process; the fastest turn of each counts.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from stackformer import stack_attention
from stackformer.commands.benchmark.timing import Contestant, measure

# B, T and max_depth; strings of 20 positions on average.
SIZES = ((32, 81, None), (8, 513, None), (8, 513, 64))
FEATURES, MEAN_LENGTH = 64, 20


def contestants(name: str | None, batch: int, length: int, max_depth: int | None):
    """The two programs, with and without."""
    keys = jax.random.split(jax.random.key(0), 4)
    actions = jax.nn.softmax(jax.random.normal(keys[0], (batch, length, 3)))
    values, cotangent = (
        jax.random.normal(key, (batch, length, FEATURES)) for key in keys[1:3]
    )
    ids = jax.random.randint(keys[3], (batch, length), 0, length // MEAN_LENGTH)
    ids = jnp.sort(ids, axis=1)

    def both_ways(actions, values, segment_ids):
        def attend(actions, values):
            return stack_attention(
                actions,
                values,
                implementation=name,
                max_depth=max_depth,
                segment_ids=segment_ids,
            )

        tops, pull = jax.vjp(attend, actions, values)
        return tops, pull(cotangent)

    for label, segment_ids in (("without", None), ("with", ids)):
        yield Contestant(label, jax.jit(both_ways), (actions, values, segment_ids))


def main() -> None:
    """The command."""
    for batch, length, max_depth in SIZES:
        for name in (None, "scan", "chunkwise", "recurrent"):
            if max_depth is not None and name in (None, "scan"):
                continue
            found = list(contestants(name, batch, length, max_depth))
            timings = measure(found, repeats=30, seconds=15.0, label=str(name))
            ratio = timings["with"].fastest / timings["without"].fastest
            print(f"B={batch} T={length} max_depth={max_depth} {name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
