"""The paper's properties, and the scan against the reference."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import checkify
from jax.test_util import check_grads
from kernel_checks import one_hot_actions, random_inputs, tops_of_a_python_list

from stackformer import StackAction, stack_attention, stack_attention_weights

PUSH, POP, NOOP = StackAction


def loss(implementation, actions, values):
    top = stack_attention(actions, values, implementation=implementation)
    return jnp.sum(jnp.sin(3.0 * top.astype(jnp.float32)))


hard_weights = jax.jit(stack_attention_weights, static_argnames="implementation")
hard_action = st.sampled_from(["push", 1, "noop"])


@settings(deadline=None, max_examples=60)
@given(string=st.lists(hard_action, min_size=1, max_size=200))
def test_theorem_1_hard_actions_are_a_stack(string):
    # No-ops behind the string pad it to one compiled length.
    string = string + ["noop"] * (200 - len(string))
    alpha = hard_weights(one_hot_actions(string), implementation="scan")
    np.testing.assert_array_equal(alpha, np.eye(200)[tops_of_a_python_list(string)])


@settings(deadline=None, max_examples=20)
@given(string=st.lists(hard_action, min_size=12, max_size=12))
def test_theorem_1_holds_for_the_reference(string):
    alpha = hard_weights(one_hot_actions(string), implementation="reference")
    np.testing.assert_array_equal(alpha, np.eye(12)[tops_of_a_python_list(string)])


@pytest.mark.parametrize("length", [1, 2, 17, 512])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_theorem_2_rows_are_distributions(length, scale):
    logits = scale * jax.random.normal(jax.random.key(length), (length, 3))
    alpha = np.asarray(
        stack_attention_weights(jax.nn.softmax(logits), implementation="scan")
    )
    np.testing.assert_allclose(alpha.sum(-1), 1.0, atol=2e-5)
    assert alpha.min() >= 0.0
    assert np.all(alpha[np.triu_indices(length, 1)] == 0.0)


@pytest.mark.parametrize("implementation", ["reference", "scan"])
def test_figure_1(implementation):
    string = jnp.array([NOOP, PUSH, PUSH, PUSH, POP, NOOP, POP])
    alpha = stack_attention_weights(
        jax.nn.one_hot(string, 3), implementation=implementation
    )
    expected = [
        [1, 0, 0, 0],  # the empty stack
        [0, 1, 0, 0],  # push a
        [0, 0, 1, 0],  # push b
        [0, 0, 0, 1],  # push c
        [0, 0, 1, 0],  # pop
        [0, 0, 1, 0],  # no-op
        [0, 1, 0, 0],  # pop
    ]
    np.testing.assert_array_equal(alpha[:, :4], expected)
    np.testing.assert_array_equal(alpha[:, 4:], 0)


def test_soft_actions_by_hand():
    # After one push with probability 1/2, a pop with probability 1/2.
    actions = jnp.array([[0, 0, 1], [0.5, 0.25, 0.25], [0, 0.5, 0.5]])
    alpha = stack_attention_weights(actions, implementation="reference")
    expected = [[1, 0, 0], [0.5, 0.5, 0], [0.75, 0.25, 0]]
    np.testing.assert_allclose(alpha, expected, atol=1e-7)


def test_gradient_against_finite_differences_in_float64():
    with jax.enable_x64(True):
        logits, values = random_inputs(8, (2,), dtype=jnp.float64)
        check_grads(
            functools.partial(loss, "scan"),
            (jax.nn.softmax(logits), values),
            order=1,
            modes=["rev"],
        )


def test_under_jit_vmap_vmap_of_grad_scan_and_checkpoint():
    logits, values = random_inputs(11, (3,))
    actions = jax.nn.softmax(logits)
    gradient = jax.grad(functools.partial(loss, "scan"), (0, 1))
    expected = jax.grad(functools.partial(loss, "reference"), (0, 1))(actions, values)
    chex.assert_trees_all_close(jax.jit(gradient)(actions, values), expected, atol=1e-5)
    chex.assert_trees_all_close(
        jax.vmap(gradient)(actions, values), expected, atol=1e-5
    )
    remat = jax.checkpoint(functools.partial(loss, "scan"))
    chex.assert_trees_all_close(
        jax.jit(jax.grad(remat, (0, 1)))(actions, values), expected, atol=1e-5
    )

    def body(total, inputs):
        return total + loss("scan", *inputs), None

    def scanned(actions, values):
        return jax.lax.scan(body, 0.0, (actions, values))[0]

    chex.assert_trees_all_close(
        jax.jit(jax.grad(scanned, (0, 1)))(actions, values), expected, atol=1e-5
    )


def compiled_gradient(batch, length, features):
    step = jax.jit(jax.value_and_grad(functools.partial(loss, "scan"), (0, 1)))
    return step.lower(
        jax.ShapeDtypeStruct((batch, length, 3), jnp.float32),
        jax.ShapeDtypeStruct((batch, length, features), jnp.float32),
    ).compile()


def test_gradient_keeps_one_matrix_not_one_for_each_step():
    memory = compiled_gradient(32, 201, 64).memory_analysis()
    assert memory.temp_size_in_bytes <= 40 * 2**20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((jnp.zeros((4, 2)),), r"`actions` shape should be .*3.* but got \(4, 2\)"),
        ((jnp.zeros(3),), r"`actions` shape should be .* but got \(3,\)"),
        ((jnp.zeros((0, 3)),), r"`actions` shape should be .*T >= 1.* got \(0, 3\)"),
        ((jnp.zeros((4, 3), int),), "`actions` dtype should be .* but got int32"),
        (
            (jnp.zeros((4, 3)), jnp.zeros((5, 2))),
            r"`values` shape should be \(4, D\).* but got \(5, 2\)",
        ),
        (
            (jnp.zeros((4, 3)), jnp.zeros((4, 2), int)),
            "`values` dtype should be .* but got int32",
        ),
    ],
)
def test_wrong_inputs_are_named(arguments, message):
    function = stack_attention_weights if len(arguments) == 1 else stack_attention
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def test_unknown_implementation_is_named():
    with pytest.raises(ValueError, match=r"`implementation` should be .* 'fast'"):
        stack_attention_weights(jnp.ones((2, 3)) / 3, implementation="fast")


def test_probabilities_are_not_renormalised_and_can_be_checked():
    actions = jnp.full((3, 3), 0.25)
    alpha = stack_attention_weights(actions)
    assert alpha[1].sum() == pytest.approx(0.75)
    with pytest.raises(checkify.JaxRuntimeError, match="should lie on the simplex"):
        stack_attention_weights(actions, check=True)

    @jax.jit
    @checkify.checkify
    def checked(actions):
        return stack_attention(actions, jnp.zeros((3, 1)), check=True)

    error, _ = checked(actions)
    assert "a sum is off by" in error.get()
    error, _ = checked(jnp.full((3, 3), 1 / 3))
    assert error.get() is None
