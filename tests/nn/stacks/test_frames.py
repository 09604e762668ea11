"""The stack of frames as a module."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stackformer.nn.stacks import FramesConfig, FrameStack, stack_config
from stackformer.ops.frames import stack_of_frames

FEATURES = 8


@pytest.fixture(scope="module")
def h():
    return jax.random.normal(jax.random.key(1), (2, 7, FEATURES))


def build(**options):
    options = {"items": 3, "item_features": 4, "hidden": 16, **options}
    return FrameStack(FEATURES, rngs=nnx.Rngs(0), **options)


def test_is_the_op_between_two_projections(h):
    stack = build(sampling="soft")
    out = stack(h, return_weights=True)
    np.testing.assert_allclose(out.actions, jax.nn.softmax(out.logits), atol=1e-6)
    frames = stack_of_frames(out.actions, stack.items(h), stack.close, num_items=3)
    expected = stack.output(frames.reshape(2, 7, 12))
    np.testing.assert_allclose(out.top, expected, atol=1e-5)
    # Expected members of a frame of at most three.
    assert np.all(out.weights.sum(-1) <= 3 + 1e-5) and out.weights.shape == (2, 7, 7)
    assert stack(h).weights is None


@pytest.mark.parametrize("sampling", ["soft", "gumbel", "straight_through"])
def test_decoding_equals_the_whole(h, sampling):
    stack = build(sampling=sampling)
    for hard in (False, True):
        whole = stack(h, hard=hard).top
        state = stack.init_state((2,), 7, hard=hard)
        for i in range(7):
            state, top = stack.step(state, h[:, i], jnp.int32(i))
            np.testing.assert_allclose(top, whole[:, i], atol=1e-5)


def test_actions_from_strings_are_the_same_stack_at_a_fraction(h):
    plain, mixed = build(actions_from="strings"), build(sampling="straight_through")
    tops = [jax.jit(lambda h, stack=stack: stack(h).top)(h) for stack in (plain, mixed)]
    np.testing.assert_allclose(*tops, atol=1e-5)

    def gradient(stack):
        graph, params = nnx.split(stack)

        def loss(params, h):
            return jnp.sum(nnx.merge(graph, params)(h).top ** 2)

        return nnx.to_pure_dict(jax.jit(jax.grad(loss))(params, h))

    # The readings teach the actions of one, and not of the other.
    of_plain, of_mixed = gradient(plain), gradient(mixed)
    assert np.any(of_mixed["action_head"]["kernel"] != 0.0)
    assert np.all(of_plain["action_head"]["kernel"] == 0.0)
    for name in ("close_in", "item_head", "output"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4),
            of_plain[name],
            of_mixed[name],
        )

    # A loss on the logits moves the action head, and nothing before it.
    def on_logits(h, stack):
        return jnp.sum(stack(h).logits ** 2)

    assert np.all(jax.jit(jax.grad(lambda h: on_logits(h, plain)))(h) == 0.0)
    assert np.any(jax.jit(jax.grad(lambda h: on_logits(h, mixed)))(h) != 0.0)


def test_given_actions_masks_and_segments(h):
    stack = build()
    given = jax.nn.one_hot(jnp.array([[2, 0, 2, 2, 1, 2, 2]] * 2), 3)
    out = stack(h, actions=given, return_weights=True)
    assert out.logits is None
    # After the pop at 4: the bottom, and the value of the bracket.
    assert np.flatnonzero(out.weights[0, 4]).tolist() == [0, 4]
    assert not np.any(jax.grad(lambda a: stack(h, actions=a).top.sum())(given))
    mask = jnp.arange(7)[None, :] < jnp.array([[5], [7]])
    padded = stack(h, mask=mask).top
    np.testing.assert_allclose(padded[:1, :5], stack(h[:1, :5]).top, atol=1e-5)
    segments = jnp.array([[0, 0, 0, 1, 1, 1, 1]] * 2)
    packed = stack(h, segment_ids=segments).top
    np.testing.assert_allclose(packed[:, 3:], stack(h[:, 3:]).top, atol=1e-5)


def test_noise_needs_a_key(h):
    stack = build(noise=0.5, actions_from="strings")
    quiet = stack(h, actions=None).top
    np.testing.assert_array_equal(quiet, stack(h).top)
    push_pop = jax.nn.one_hot(jnp.array([[2, 0, 2, 1, 2, 2, 2]] * 2), 3)
    loud = [stack(h, actions=push_pop, rngs=nnx.Rngs(actions=k)).top for k in (0, 1)]
    assert np.any(loud[0] != loud[1])
    # Before the first pop nothing is computed, so nothing is loud.
    np.testing.assert_array_equal(loud[0][:, :3], loud[1][:, :3])


def test_configuration():
    config = stack_config({"name": "frames", "items": 4, "noise": 0.1})
    assert config == FramesConfig(items=4, noise=0.1)
    assert stack_config(config.to_json()) == config
    for options, words in (
        ({"items": 0}, "`items` should be an integer"),
        ({"noise": -1.0}, "`noise` should be at least 0"),
        ({"sampling": "often"}, "`sampling` should be one of"),
        ({"actions_from": "luck"}, "`actions_from` should be one of"),
    ):
        with pytest.raises(ValueError, match=words):
            FramesConfig(**options)
    with pytest.raises(ValueError, match="`config` should be given without items"):
        FrameStack(8, config=config, items=3, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="`actions` shape should be"):
        build()(jnp.ones((1, 3, FEATURES)), actions=jnp.ones((1, 3, 4)))
