"""The module around the stack with a pointer; the protocol's own tests run it too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stackformer import StackAttention
from stackformer.nn.stacks import PointerConfig, PointerStack, stack_config


@pytest.fixture(scope="module")
def stack():
    rngs = nnx.Rngs(0)
    return PointerStack(6, kernel_init=nnx.initializers.normal(1.0), rngs=rngs)


@pytest.fixture(scope="module")
def h():
    return jax.random.normal(jax.random.key(1), (2, 7, 6))


def test_hard_is_the_stack_of_the_paper(stack, h):
    other = StackAttention(6, rngs=nnx.Rngs(0))
    other.action_head = stack.action_head
    mine, paper = (s(h, hard=True, return_weights=True) for s in (stack, other))
    np.testing.assert_allclose(mine.top, paper.top, atol=1e-5)
    np.testing.assert_allclose(mine.weights, paper.weights, atol=1e-5)
    assert not np.allclose(stack(h).top, mine.top, atol=1e-2)


def test_weights_say_what_is_read(stack, h):
    out = stack(h, return_weights=True)
    np.testing.assert_allclose(out.weights @ h, out.top, atol=1e-5)
    assert np.all(np.triu(out.weights[0], 1) == 0.0)


@pytest.mark.parametrize("hard", [False, True])
def test_steps_equal_the_whole_sequence(stack, h, hard):
    whole = stack(h, hard=hard).top
    state = stack.init_state((2,), 7, hard=hard)
    step = jax.jit(lambda *inputs: stack.step(*inputs))
    for t in range(7):
        state, top = step(state, h[:, t], jnp.int32(t))
        np.testing.assert_allclose(top, whole[:, t], atol=1e-5)


def test_a_padded_position_changes_nothing_and_given_actions_are_data(stack, h):
    mask = jnp.ones((2, 7), bool).at[:, jnp.array([2, 5])].set(False)
    kept = jnp.array([0, 1, 3, 4, 6])
    with_gaps = stack(h, mask=mask).top[:, kept]
    np.testing.assert_allclose(with_gaps, stack(h[:, kept]).top, atol=1e-5)
    actions = stack(h).actions
    given = stack(h, actions=actions)
    np.testing.assert_allclose(given.top, stack(h).top, atol=1e-6)
    gradient = jax.grad(lambda a: stack(h, actions=a).top.sum())(actions)
    assert not np.any(gradient)


def test_wrong_use_is_named(stack, h):
    with pytest.raises(ValueError, match=r"`h` shape should be \(..., T, 6\)"):
        stack(h[..., :5])
    with pytest.raises(ValueError, match="`max_depth` should be an integer"):
        PointerConfig(max_depth=0)
    with pytest.raises(ValueError, match="`sampling` should be one of"):
        PointerConfig(sampling="loud")
    assert stack_config("pointer") == PointerConfig()
