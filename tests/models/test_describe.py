"""Parameter counts, by hand and as printed."""

import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from stackformer import models, tasks

# Four special tokens, two input and two output symbols.
V, H, C = 8, 256, 8
HEADS = (H + 1) * 2
# Input and bias, recurrence, output; then reading, push head, action head.
COUNTS = {
    "rnn": V * H + H + H * H + HEADS,
    "lstm": 4 * (V * H + H + H * H) + HEADS,
    "stack_rnn": V * H + H + H * H + HEADS + C * H + (H * C + C) + (H * 3 + 3),
    "stack_lstm": 4 * (V * H + H + H * H + C * H) + HEADS + (H * C + C) + (H * 3 + 3),
    "tape_rnn": V * H + H + H * H + HEADS + C * H + (H * 5 + 5)
    + (H * 64 + 64) + (64 * 64 + 64) + (64 * C + C),
    "ndstack_rnn": V * H + H + H * H + HEADS + 6 * H + (H + 1) * (36 + 12 + 36),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_the_benchmark_sizes(name):
    model = models.build(name, tasks.get("RS"), rngs=nnx.Rngs(0))
    assert models.count_parameters(model) == COUNTS[name]


def test_the_table_adds_up():
    model = models.build("stack_transformer", tasks.get("RS"), rngs=nnx.Rngs(0))
    text = models.describe(model)
    title, *_ = text.splitlines()
    total = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model)))
    assert title.startswith(f"StackTransformer: {total:,} parameters")
    numbers = re.findall(r"^\S+ +([\d,]+)(?:  .*)?$", text, re.MULTILINE)
    *rows, last = [int(number.replace(",", "")) for number in numbers]
    assert sum(rows) == last == total
    assert len(rows) > 20
    assert re.search(r"^layers\.0\.stack\.action_head +195 ", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 100


def test_parameters_of_the_model_itself_and_bytes():
    class Scale(nnx.Module):
        def __init__(self):
            self.scale = nnx.Param(jnp.ones((1024, 512), jnp.bfloat16))

    text = models.describe(Scale())
    assert "Scale: 524,288 parameters, 1.00 MiB" in text
    assert "(model)" in text
