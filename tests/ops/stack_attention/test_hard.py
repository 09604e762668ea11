"""The stack of positions against the superposition stack and a Python list."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import tops_of_a_python_list

from stackformer.ops import init_stack_state, stack_attention, stack_step
from stackformer.ops.stack_attention.hard import hard_stack_step, init_hard_state

LENGTH = 20
MAX_POPS = 3
INDEX = {"push": 0, 1: 1, "noop": 2, 2: 3, 3: 4}
# Mostly pushes, so that a stack of bounded depth is full.
action = st.sampled_from(["push", "push", "push", "noop", 1, 2, 3])
strings = st.lists(action, min_size=LENGTH, max_size=LENGTH)


@functools.partial(jax.jit, static_argnames="max_depth")
def run_hard(actions, values, max_depth):
    """Actions (..., T) and values (..., T, D) to tops (..., T, D)."""
    *batch, length, features = values.shape
    state = init_hard_state(
        tuple(batch), length, features, max_depth=max_depth, dtype=values.dtype
    )

    def step(state, inputs):
        return hard_stack_step(state, *inputs)

    inputs = (
        jnp.moveaxis(actions, -1, 0),
        jnp.moveaxis(values, -2, 0),
        jnp.arange(length),
    )
    return jnp.moveaxis(jax.lax.scan(step, state, inputs)[1], 0, -2)


@functools.partial(jax.jit, static_argnames="max_depth")
def run_soft(actions, values, max_depth):
    state = init_stack_state(values[0], max_depth or LENGTH)

    def step(state, inputs):
        return stack_step(state, *inputs, max_pops=MAX_POPS)

    one_hot = jax.nn.one_hot(actions, MAX_POPS + 2)
    _, tops = jax.lax.scan(step, state, (one_hot[1:], values[1:]))
    return jnp.concatenate([values[:1], tops])


@pytest.mark.parametrize("max_depth", [None, 1, 4])
@settings(deadline=None, max_examples=60)
@given(string=strings)
def test_equals_the_superposition_stack_and_a_list(max_depth, string):
    actions = jnp.array([INDEX[a] for a in string])
    values = jax.random.normal(jax.random.key(0), (LENGTH, 3))
    tops = run_hard(actions, values, max_depth)
    np.testing.assert_array_equal(tops, run_soft(actions, values, max_depth))
    expected = tops_of_a_python_list(string, max_depth=max_depth)
    np.testing.assert_array_equal(tops, values[np.array(expected)])


def random_strings(dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(1), 2)
    logits = jnp.array([1.0, 0.5, 0.0])
    actions = jax.random.categorical(keys[0], logits, shape=(2, 3, 9))
    return actions, jax.random.normal(keys[1], (2, 3, 9, 4), dtype)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_leading_axes_and_dtype(dtype):
    actions, values = random_strings(dtype)
    expected = stack_attention(jax.nn.one_hot(actions, 3), values)
    tops = run_hard(actions, values, None)
    assert tops.dtype == dtype
    np.testing.assert_array_equal(tops, expected)


def test_gradient_of_the_values():
    actions, values = random_strings()

    def gradient(attend):
        def loss(values):
            return jnp.sin(3.0 * attend(values)).sum()

        return jax.jit(jax.grad(loss))(values)

    soft = jax.nn.one_hot(actions, 3)
    got = gradient(lambda values: run_hard(actions, values, None))
    expected = gradient(lambda values: stack_attention(soft, values))
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_one_position_reads_itself():
    value = jnp.array([[5.0]])
    np.testing.assert_array_equal(run_hard(jnp.array([0]), value, None), value)


def test_a_step_touches_no_more_where_the_stack_is_deeper():
    def compiled(length):
        state = jax.eval_shape(lambda: init_hard_state((8,), length, 16))
        step = jax.jit(hard_stack_step, donate_argnums=0)
        shapes = [
            jax.ShapeDtypeStruct(shape, dtype)
            for shape, dtype in (((8,), jnp.int32), ((8, 16), jnp.float32), ((), int))
        ]
        program = step.lower(state, *shapes).compile()
        size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
        return program.memory_analysis(), size

    (short, _), (long, size) = compiled(64), compiled(4096)
    # The state is written in place: nothing of its size is allocated.
    assert long.alias_size_in_bytes == size
    assert long.temp_size_in_bytes == short.temp_size_in_bytes < 2**14


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((jnp.zeros(2, int), jnp.zeros((3, 4))), r"`action` shape .*\(3,\).*\(2,\)"),
        ((jnp.zeros(3, int), jnp.zeros((3, 5))), r"`value` shape .*\(3, 4\).*\(3, 5\)"),
    ],
)
def test_wrong_shapes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        hard_stack_step(init_hard_state((3,), 5, 4), *arguments, 1)
    with pytest.raises(ValueError, match="`max_depth` should be an integer"):
        init_hard_state((3,), 5, 4, max_depth=0)
