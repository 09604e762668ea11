"""The example in stackformer/nn/README.md: a block of one's own with a stack in it."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import stackformer.nn

README = pathlib.Path(stackformer.nn.__file__).parent / "README.md"


@pytest.fixture(scope="module")
def code() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    return block


def make_block(code: str) -> nnx.Module:
    names = {}
    exec(code, names)
    return names["Block"](16, rngs=nnx.Rngs(0))


def test_it_is_three_lines(code):
    marked = re.findall(r"# (\d)$", code, re.MULTILINE)
    assert marked == ["1", "2", "3"]
    lines = [line for line in code.splitlines() if "tack" in line]
    assert len(lines) == 3


def test_the_block_with_a_stack_learns_and_stays_causal(code):
    block = make_block(code)
    h = jax.random.normal(jax.random.key(0), (2, 6, 16))

    @nnx.jit
    def run(block, h):
        return block(h)

    @nnx.jit
    @nnx.grad
    def gradient(block):
        return jnp.mean(block(h) ** 2)

    out = run(block, h)
    assert out.shape == h.shape
    later = run(block, h.at[:, 4:].add(1.0))
    np.testing.assert_allclose(out[:, :4], later[:, :4], atol=1e-6)
    assert jnp.abs(out[:, 4:] - later[:, 4:]).max() > 1e-2
    kernel = gradient(block).stack.action_head.kernel[...]
    assert jnp.abs(kernel).max() > 1e-6
