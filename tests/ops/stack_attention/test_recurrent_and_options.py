"""The recurrent form, bounded depth, several pops, and the choice of a form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import (
    check_against,
    golden,
    one_hot_actions,
    random_inputs,
    tops_of_a_python_list,
    value_and_gradients,
    weights,
)

from stackformer import ops, stack_attention
from stackformer.ops.stack_attention.forms import choose

LENGTH = 24
strings = st.lists(
    st.sampled_from(["push", "push", 1, "noop"]), min_size=LENGTH, max_size=LENGTH
)


@functools.partial(jax.jit, static_argnames=("implementation", "max_depth"))
def bounded_weights(actions, implementation, max_depth):
    return ops.stack_attention_weights(
        actions, implementation=implementation, max_depth=max_depth, chunk_size=None
    )


@pytest.mark.parametrize("implementation", ["chunkwise", "recurrent"])
@settings(deadline=None, max_examples=60)
@given(string=strings)
def test_bounded_depth_is_a_list_that_forgets_its_lowest(implementation, string):
    alpha = bounded_weights(one_hot_actions(string), implementation, 6)
    tops = tops_of_a_python_list(string, max_depth=6)
    np.testing.assert_allclose(alpha, np.eye(LENGTH)[tops], atol=1e-6)
    unbounded = tops_of_a_python_list(string)
    heights = np.cumsum([{"push": 1, 1: -1, "noop": 0}[a] for a in string[1:]])
    if np.max(heights - np.minimum.accumulate(np.minimum(heights, 0))) <= 6:
        assert tops == unbounded


@pytest.mark.parametrize(("max_depth", "chunk_size"), [(2, 4), (9, 4), (20, 16)])
def test_bounded_chunks_equal_bounded_steps(max_depth, chunk_size):
    logits, values = random_inputs(70, (2,))
    steps = (("implementation", "recurrent"), ("max_depth", max_depth))
    expected = value_and_gradients(logits, values, steps)
    check_against(
        expected,
        logits,
        values,
        implementation="chunkwise",
        max_depth=max_depth,
        chunk_size=chunk_size,
    )


def test_depth_that_is_never_reached_changes_nothing():
    check_against(*golden(65), implementation="chunkwise", chunk_size=8, max_depth=64)


@pytest.mark.parametrize("implementation", ["reference", "recurrent"])
@settings(deadline=None, max_examples=25)
@given(
    string=st.lists(
        st.sampled_from(["push", "push", "push", "noop", 1, 2, 3]),
        min_size=14,
        max_size=14,
    )
)
def test_several_pops_are_a_python_list(implementation, string):
    actions = one_hot_actions(string, max_pops=3)
    alpha = weights(actions, implementation=implementation, max_pops=3)
    tops = tops_of_a_python_list(string)
    np.testing.assert_allclose(alpha, np.eye(14)[tops], atol=1e-6)


def test_one_pop_is_the_standard_kernel():
    logits, values = random_inputs(13)
    padded = jnp.concatenate([logits, jnp.full((13, 2), -jnp.inf)], axis=-1)
    several = stack_attention(jax.nn.softmax(padded), values, max_pops=3)
    standard = stack_attention(
        jax.nn.softmax(logits), values, implementation="reference"
    )
    np.testing.assert_allclose(several, standard, atol=1e-6)


def test_donated_step_allocates_nothing_that_grows():
    step = jax.jit(ops.stack_step, donate_argnums=0)

    def compiled(depth):
        shapes = ((8, depth + 1, 64), (8, 3), (8, 64))
        arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        return step.lower(*arrays).compile().memory_analysis()

    for depth in (16, 256):
        memory = compiled(depth)
        state = 8 * (depth + 1) * 64 * 4
        assert memory.alias_size_in_bytes == state
        assert memory.output_size_in_bytes - state <= 8 * 64 * 4 + 64
        # One step of scratch of the state's size, however many steps there are.
        assert memory.temp_size_in_bytes <= 2 * state + 2**16

    state = ops.init_stack_state(jnp.zeros((8, 64)), 16)
    actions, value = jnp.full((8, 3), 1 / 3), jnp.ones((8, 64))
    state, _ = step(state + 0.0, actions, value)
    pointer = state.unsafe_buffer_pointer()
    for _ in range(3):
        state, _ = step(state, actions, value)
        assert state.unsafe_buffer_pointer() == pointer


def test_choice_by_shape_and_its_table():
    chosen = functools.partial(choose, backend="cpu")
    assert chosen(2049, 64).implementation == "chunkwise"
    assert chosen(81, 64, max_pops=2).implementation == "recurrent"
    assert chosen(2049, 64, max_depth=1).implementation == "recurrent"
    assert chosen(81, 64, chunk_size=8).options.chunk_size == 8
    assert chosen(81, 64, chunk_size=8).implementation == "chunkwise"
    assert chosen(2049, 64, max_depth=20).options.chunk_size == 10
    # Values of few features in chunks where alpha, or what begins with it, is scanned.
    assert chosen(96, 64).implementation == "scan"
    assert chosen(97, 64).implementation == "chunkwise"
    assert chosen(129, None).implementation == "scan"
    assert chosen(130, None).implementation == "chunkwise"
    assert chosen(129, 768).through_weights
    assert chosen(129, 768).implementation == "scan"
    named = chosen(65, 64, implementation="chunkwise")
    assert named.options.chunk_size == 8
    table = ops.describe_dispatch("cpu")
    for row in ("max_pops > 1", "max_depth = H", "otherwise"):
        assert row in table
    assert "chunkwise" in ops.describe_dispatch("gpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk_size": 0}, "`chunk_size` should be .* got 0"),
        ({"max_depth": 0}, "`max_depth` should be .* got 0"),
        ({"max_pops": 0}, "`max_pops` should be .* got 0"),
        (
            {"implementation": "scan", "max_depth": 2},
            "None, but got 2 with .*'scan'; use implementation='chunkwise' or 'recurr",
        ),
        *(
            (
                {"implementation": name, "chunk_size": 8},
                f"`chunk_size` should be None, but got 8 with implementation='{name}'",
            )
            for name in ("reference", "scan", "recurrent")
        ),
        ({"chunk_size": 2, "max_pops": 2}, "no form takes these options together"),
        ({"implementation": "chunkwise", "max_depth": 1}, "at least 2"),
        (
            {"implementation": "chunkwise", "max_pops": 2},
            "use implementation='reference' or 'recurrent', or None",
        ),
    ],
)
def test_a_form_that_cannot_serve_a_wish_says_so(options, message):
    actions = jnp.full((4, options.get("max_pops", 1) + 2), 0.25)
    with pytest.raises(ValueError, match=message):
        stack_attention(actions, jnp.zeros((4, 2)), **options)
