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
    out = stack(h, return_weights=True)
    top, alpha, actions = out.top, out.weights, out.actions
    head = stack.action_head
    logits = h @ head.kernel[...] + head.bias[...].reshape(1, 1, 3)
    np.testing.assert_allclose(out.logits, logits, atol=1e-6)
    np.testing.assert_allclose(actions, jax.nn.softmax(logits), atol=1e-6)
    expected = stack_attention_weights(actions, implementation="reference")
    np.testing.assert_allclose(alpha, expected, atol=1e-6)
    np.testing.assert_allclose(top, expected @ h, atol=1e-5)
    np.testing.assert_allclose(stack(h).top, top, atol=1e-5)
    assert stack(h).weights is None


def test_parameters_are_the_action_head_alone():
    shapes = jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(build())))
    assert shapes == {"action_head": {"kernel": (FEATURES, 3), "bias": (3,)}}


def test_projected_vectors_lie_on_the_stack(h):
    stack = build(project=True, value_features=5)
    out = stack(h, return_weights=True)
    assert out.weights is not None
    values = stack.value_head(h)
    expected = stack.output(out.weights @ values)
    np.testing.assert_allclose(out.top, expected, atol=1e-5)
    np.testing.assert_allclose(stack(h).top, expected, atol=1e-5)
    np.testing.assert_allclose(out.weights, build()(h, return_weights=True).weights)
    shapes = jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(stack)))
    assert shapes["value_head"] == {"kernel": (FEATURES, 5), "bias": (5,)}
    assert shapes["output"] == {"kernel": (5, FEATURES), "bias": (FEATURES,)}
    half = stack(h.astype(jnp.bfloat16)).top
    assert half.dtype == jnp.bfloat16
    # A prompt read at once, with a state of five features.
    state = stack.init_state((2,), 6)
    assert state.shape[-1] == 5
    _, top = stack.prefill(state, h, 6)
    np.testing.assert_allclose(top, expected, atol=1e-5)
    first = stack(h[:, :4], return_state=True)
    second = stack(h[:, 4:], initial_state=first.state)
    np.testing.assert_allclose(second.top, expected[:, 4:], atol=1e-5)


@pytest.mark.parametrize("num_stacks", [1, 3])
def test_is_causal_to_the_bit(h, num_stacks):
    stack = build(num_stacks=num_stacks)
    jacobian = jax.jacrev(lambda h: stack(h).top)(h[0])  # (T, D, T, D): output by input
    for i in range(h.shape[1]):
        assert np.all(jacobian[i, :, i + 1 :] == 0.0)
        assert np.any(jacobian[i, :, i] != 0.0)


def test_given_actions_replace_predicted_ones_and_are_data(h):
    stack = build()
    given = jax.nn.softmax(jax.random.normal(jax.random.key(2), (2, 6, 3)))
    out = stack(h, actions=given, return_weights=True)
    top, alpha = out.top, out.weights
    np.testing.assert_array_equal(out.actions, given)
    assert out.logits is None
    expected = stack_attention_weights(given, implementation="reference")
    np.testing.assert_allclose(top, expected @ h, atol=1e-5)

    def total(given, **options):
        return jnp.sum(stack(h, actions=given, **options).top ** 2)

    np.testing.assert_array_equal(jax.grad(total)(given), 0.0)
    asked = jax.grad(lambda x: total(x, differentiate_actions=True))(given)
    assert np.any(asked != 0.0)
    # The values carry the gradient: d sum(top²) / dh = 2 alphaᵀ top.
    gradient = jax.grad(lambda h: jnp.sum(stack(h, actions=given).top ** 2))(h)
    np.testing.assert_allclose(gradient, 2 * alpha.mT @ top, atol=1e-4)


def test_with_given_weights_nothing_is_sequential(h):
    stack = build()
    given = jax.nn.one_hot(jnp.array([[2, 0, 0, 1, 2, 1]] * 2), 3)
    alpha = stack_attention_weights(given)
    np.testing.assert_allclose(
        stack(h, weights=alpha).top, stack(h, actions=given).top, atol=1e-6
    )
    jaxpr = str(
        jax.make_jaxpr(jax.grad(lambda h: stack(h, weights=alpha).top.sum()))(h)
    )
    assert "scan" not in jaxpr and "while" not in jaxpr
    # Given actions cost a scan for alpha, forward only.
    backward = jax.make_jaxpr(jax.grad(lambda h: stack(h, actions=given).top.sum()))(h)
    forward = jax.make_jaxpr(lambda h: stack(h, actions=given).top)(h)
    assert str(backward).count("scan[") == str(forward).count("scan[")


@pytest.mark.parametrize("num_stacks", [1, 3])
def test_a_padded_position_is_a_noop_without_weight(h, num_stacks):
    stack = build(num_stacks=num_stacks)
    mask = jnp.array([[1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1]], bool)
    out = stack(h, mask=mask, return_weights=True)
    top, alpha, actions = out.top, out.weights, out.actions
    np.testing.assert_array_equal(alpha[0, ..., :, 3], 0.0)
    np.testing.assert_array_equal(alpha[0, ..., 3, :], alpha[0, ..., 2, :])
    padded = np.asarray(actions[0, ..., 3, :])
    assert np.all(padded == np.eye(3)[StackAction.NOOP])
    without = stack(h[:1, jnp.array([0, 1, 2, 4])]).top
    np.testing.assert_allclose(top[:1, jnp.array([0, 1, 2, 4])], without, atol=1e-5)
    np.testing.assert_allclose(top[1], stack(h[1]).top, atol=1e-5)


def test_several_stacks_hold_slices_of_the_features(h):
    stack = build(num_stacks=3)
    out = stack(h, return_weights=True)
    top, alpha, actions = out.top, out.weights, out.actions
    assert (alpha.shape, actions.shape) == ((2, 3, 6, 6), (2, 3, 6, 3))
    for s in range(3):
        part = slice(4 * s, 4 * s + 4)
        np.testing.assert_allclose(
            top[..., part], alpha[:, s] @ h[..., part], atol=1e-5
        )
    assert np.abs(alpha[:, 0] - alpha[:, 1]).max() > 1e-3
    given = stack(h, actions=actions).top
    np.testing.assert_allclose(given, top, atol=1e-5)


def test_bfloat16_stays_bfloat16(h):
    stack = build()
    top = stack(h.astype(jnp.bfloat16)).top
    assert top.dtype == jnp.bfloat16
    np.testing.assert_allclose(top.astype(jnp.float32), stack(h).top, atol=5e-2)


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
        return jax.vmap(lambda state: nnx.merge(graphdef, state)(h).top)(states)

    expected = StackAttention(FEATURES, rngs=nnx.Rngs(2))(h).top
    np.testing.assert_allclose(run(states, h)[2], expected, atol=1e-5)


def test_linen_users_get_the_same_module(h):
    linen = nnx.bridge.to_linen(StackAttention, FEATURES)
    variables = linen.init(jax.random.key(0), h)
    top = linen.apply(variables, h).top
    stack = build()
    head = variables["params"]["action_head"]
    stack.action_head.kernel[...] = head["kernel"]
    stack.action_head.bias[...] = head["bias"]
    np.testing.assert_allclose(top, stack(h).top, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: build(num_stacks=5),
            r"`features` should be a multiple of `num_stacks` \(5\), but got 12",
        ),
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


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_stacks": 3},
        {"max_depth": 2},
        {"max_pops": 2},
        {"project": True, "value_features": 6, "num_stacks": 2},
    ],
)
def test_steps_equal_the_whole_sequence(h, options, hard):
    stack = build(**options)
    state, tops = stack.init_state((2,), h.shape[1], hard=hard), []
    for t in range(h.shape[1]):
        state, top = stack.step(state, h[:, t], jnp.int32(t))
        tops.append(top)
    whole = stack(h, hard=hard).top
    np.testing.assert_allclose(jnp.stack(tops, 1), whole, atol=1e-5)


def test_hard_may_be_traced_and_is_the_argmax(h):
    stack = build()
    run = jax.jit(lambda hard: stack(h, hard=hard))
    np.testing.assert_allclose(run(False).top, stack(h).top, atol=1e-6)
    hard = run(True)
    best = jnp.argmax(stack.action_logits(h), -1)
    np.testing.assert_allclose(hard.actions, jax.nn.one_hot(best, 3), atol=1e-6)
    # The gradient is that of the mixture, so the head goes on learning.
    gradient = nnx.grad(lambda stack: stack(h, hard=True).top.sum())(stack)
    assert np.any(gradient.action_head.kernel[...] != 0.0)


def test_sampling_needs_rngs_and_is_the_argmax_without(h):
    stack = build(sampling="gumbel")
    np.testing.assert_array_equal(stack(h).top, build()(h, hard=True).top)
    drawn = [stack(h, rngs=nnx.Rngs(actions=seed)).actions for seed in range(40)]
    assert np.all(np.isin(np.round(np.asarray(drawn), 6), [0.0, 1.0]))
    # Gumbel noise draws every action with its probability.
    frequency = np.mean(drawn, axis=(0, 1))
    expected = np.mean(stack.predict_actions(h), axis=0)
    assert np.abs(frequency - expected).max() < 0.25
    assert np.abs(frequency - expected).mean() < 0.08


def test_weights_exclude_what_they_hold_and_keep_float64():
    stack = build()
    with jax.enable_x64(True):
        h = jax.random.normal(jax.random.key(1), (2, 6, FEATURES), jnp.float64)
        given = jax.nn.softmax(jax.random.normal(jax.random.key(2), (2, 6, 3)))
        alpha = stack_attention_weights(given.astype(jnp.float64))
        out = stack(h, weights=alpha)
        assert out.top.dtype == jnp.float64 and out.actions is None
        exact = np.asarray(alpha, np.float64) @ np.asarray(h, np.float64)
        np.testing.assert_allclose(out.top, exact, rtol=1e-13, atol=1e-13)
    mask = jnp.ones((2, 6), bool)
    for others in ({"mask": mask}, {"actions": given}, {"segment_ids": mask * 1}):
        with pytest.raises(ValueError, match="`weights` should be given without"):
            stack(h, weights=alpha, **others)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"implementation": "fast"}, "`implementation` should be"),
        ({"implementation": "scan", "chunk_size": 4}, "chunk_size"),
        ({"sampling": "hot"}, "`sampling` should be one of soft"),
        ({"max_pops": 0}, "`max_pops` should be an integer of at least 1"),
        ({"value_features": 4}, "`value_features` should be None without `project`"),
        (
            {"project": True, "value_features": 5, "num_stacks": 2},
            r"`value_features` should be a multiple of `num_stacks` \(2\), but got 5",
        ),
    ],
)
def test_options_that_cannot_be_used_are_errors_when_built(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


@pytest.mark.parametrize("num_stacks", [1, 2])
def test_pieces_of_a_string_equal_the_whole(num_stacks):
    stack = StackAttention(8, num_stacks=num_stacks, rngs=nnx.Rngs(0))
    h = jax.random.normal(jax.random.key(0), (2, 9, 8))

    def whole(h):
        return stack(h).top

    def pieces(h):
        first = stack(h[:, :4], return_state=True)
        assert first.state is not None
        second = stack(h[:, 4:], initial_state=first.state)
        return jnp.concatenate([first.top, second.top], axis=1)

    def loss(read):
        return jax.jit(jax.value_and_grad(lambda h: jnp.sin(3 * read(h)).sum()))

    for got, expected in zip(loss(pieces)(h), loss(whole)(h), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)
    with pytest.raises(ValueError, match="alpha is of one whole string"):
        stack(h, return_state=True, return_weights=True)
