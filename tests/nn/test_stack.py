"""The module around the kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import stackformer
from stackformer import StackAction, StackAttention, stack_attention_weights

FEATURES = 12


@pytest.fixture
def h():
    return jax.random.normal(jax.random.key(1), (2, 6, FEATURES))


def build(**options):
    return StackAttention(FEATURES, rngs=nnx.Rngs(0), **options)


def test_is_the_papers_equation(h):
    stack = build()
    top, alpha, actions = stack(h, return_weights=True)
    head = stack.action_head
    logits = h @ head.kernel[...] + head.bias[...].reshape(1, 1, 3)
    np.testing.assert_allclose(actions, jax.nn.softmax(logits), atol=1e-6)
    expected = stack_attention_weights(actions, implementation="reference")
    np.testing.assert_allclose(alpha, expected, atol=1e-6)
    np.testing.assert_allclose(top, expected @ h, atol=1e-5)
    np.testing.assert_allclose(stack(h), top, atol=1e-5)


def test_parameters_are_the_action_head_alone():
    shapes = jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(build())))
    assert shapes == {"action_head": {"kernel": (FEATURES, 3), "bias": (3,)}}


@pytest.mark.parametrize("num_stacks", [1, 3])
def test_is_causal_to_the_bit(h, num_stacks):
    stack = build(num_stacks=num_stacks)
    jacobian = jax.jacrev(stack)(h[0])  # (T, D, T, D): output by input
    for i in range(h.shape[1]):
        assert np.all(jacobian[i, :, i + 1 :] == 0.0)
        assert np.any(jacobian[i, :, i] != 0.0)


def test_given_actions_replace_predicted_ones_and_are_data(h):
    stack = build()
    given = jax.nn.softmax(jax.random.normal(jax.random.key(2), (2, 6, 3)))
    top, alpha, actions = stack(h, actions=given, return_weights=True)
    np.testing.assert_array_equal(actions, given)
    expected = stack_attention_weights(given, implementation="reference")
    np.testing.assert_allclose(top, expected @ h, atol=1e-5)

    def total(given, **options):
        return jnp.sum(stack(h, actions=given, **options) ** 2)

    np.testing.assert_array_equal(jax.grad(total)(given), 0.0)
    asked = jax.grad(lambda x: total(x, differentiate_actions=True))(given)
    assert np.any(asked != 0.0)
    # The values carry the gradient: d sum(top²) / dh = 2 alphaᵀ top.
    gradient = jax.grad(lambda h: jnp.sum(stack(h, actions=given) ** 2))(h)
    np.testing.assert_allclose(gradient, 2 * alpha.mT @ top, atol=1e-4)


def test_with_given_weights_nothing_is_sequential(h):
    stack = build()
    given = jax.nn.one_hot(jnp.array([[2, 0, 0, 1, 2, 1]] * 2), 3)
    alpha = stack_attention_weights(given)
    np.testing.assert_allclose(
        stack(h, weights=alpha), stack(h, actions=given), atol=1e-6
    )
    jaxpr = str(jax.make_jaxpr(jax.grad(lambda h: stack(h, weights=alpha).sum()))(h))
    assert "scan" not in jaxpr and "while" not in jaxpr
    # Given actions cost a scan for alpha, forward only.
    backward = jax.make_jaxpr(jax.grad(lambda h: stack(h, actions=given).sum()))(h)
    forward = jax.make_jaxpr(lambda h: stack(h, actions=given))(h)
    assert str(backward).count("scan[") == str(forward).count("scan[")


@pytest.mark.parametrize("num_stacks", [1, 3])
def test_a_padded_position_is_a_noop_without_weight(h, num_stacks):
    stack = build(num_stacks=num_stacks)
    mask = jnp.array([[1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1]], bool)
    top, alpha, actions = stack(h, mask=mask, return_weights=True)
    np.testing.assert_array_equal(alpha[0, ..., :, 3], 0.0)
    np.testing.assert_array_equal(alpha[0, ..., 3, :], alpha[0, ..., 2, :])
    padded = np.asarray(actions[0, ..., 3, :])
    assert np.all(padded == np.eye(3)[StackAction.NOOP])
    without = stack(h[:1, jnp.array([0, 1, 2, 4])])
    np.testing.assert_allclose(top[:1, jnp.array([0, 1, 2, 4])], without, atol=1e-5)
    np.testing.assert_allclose(top[1], stack(h[1]), atol=1e-5)


def test_several_stacks_hold_slices_of_the_features(h):
    stack = build(num_stacks=3)
    top, alpha, actions = stack(h, return_weights=True)
    assert (alpha.shape, actions.shape) == ((2, 3, 6, 6), (2, 3, 6, 3))
    for s in range(3):
        part = slice(4 * s, 4 * s + 4)
        np.testing.assert_allclose(
            top[..., part], alpha[:, s] @ h[..., part], atol=1e-5
        )
    assert np.abs(alpha[:, 0] - alpha[:, 1]).max() > 1e-3
    given = stack(h, actions=actions)
    np.testing.assert_allclose(given, top, atol=1e-5)


def test_bfloat16_stays_bfloat16(h):
    stack = build()
    top = stack(h.astype(jnp.bfloat16))
    assert top.dtype == jnp.bfloat16
    np.testing.assert_allclose(top.astype(jnp.float32), stack(h), atol=5e-2)


def test_under_jit_with_split_state_and_vmap_over_seeds(h):
    seeds = jnp.arange(3)
    graphdef = nnx.graphdef(build())
    states = jax.vmap(
        lambda seed: nnx.state(
            StackAttention(FEATURES, rngs=nnx.Rngs(jax.random.key(seed)))
        )
    )(seeds)

    @jax.jit
    def run(states, h):
        return jax.vmap(lambda state: nnx.merge(graphdef, state)(h))(states)

    expected = StackAttention(FEATURES, rngs=nnx.Rngs(2))(h)
    np.testing.assert_allclose(run(states, h)[2], expected, atol=1e-5)


def test_linen_users_get_the_same_module(h):
    linen = nnx.bridge.to_linen(StackAttention, FEATURES)
    variables = linen.init(jax.random.key(0), h)
    top = linen.apply(variables, h)
    stack = build()
    head = variables["params"]["action_head"]
    stack.action_head.kernel[...] = head["kernel"]
    stack.action_head.bias[...] = head["bias"]
    np.testing.assert_allclose(top, stack(h), atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build(num_stacks=5), r"`num_stacks` should divide .*12.* got 5"),
        (
            lambda: build()(jnp.zeros((3, 4))),
            r"`h` shape should be \(..., T, 12\), but got \(3, 4\)",
        ),
        (
            lambda: build(implementation="fast")(jnp.zeros((3, 12))),
            "`implementation` should be",
        ),
    ],
)
def test_wrong_use_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_public_name():
    assert stackformer.StackAttention is StackAttention


@pytest.mark.parametrize("num_stacks", [1, 3])
def test_steps_equal_the_whole_sequence(h, num_stacks):
    stack = build(num_stacks=num_stacks)
    state, tops = stack.init_state(h[:, 0], depth=h.shape[1]), [h[:, 0]]
    for t in range(1, h.shape[1]):
        state, top = stack.step(state, h[:, t])
        tops.append(top)
    np.testing.assert_allclose(jnp.stack(tops, 1), stack(h), atol=1e-5)


def test_a_state_needs_a_depth(h):
    assert build(max_depth=3).init_state(h[:, 0]).shape[0] == 2
    with pytest.raises(ValueError, match="`depth` should be given"):
        build().init_state(h[:, 0])
