"""The stack transformer: equations, options, padding, supervision, learning."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from stackformer import tasks
from stackformer.models import (
    StackTransformer,
    TransformerConfig,
    action_loss,
    count_parameters,
)
from stackformer.nn.positions import POSITIONS
from stackformer.nn.stacks import SuperpositionConfig

SMALL = {"vocab_size": 8, "output_size": 3, "num_layers": 2, "d_model": 16}


def build(seed=0, **options):
    config = TransformerConfig(**(SMALL | {"num_heads": 4} | options))
    return StackTransformer(config, rngs=nnx.Rngs(seed))


def random_tokens(batch=2, length=7):
    tokens = jax.random.randint(jax.random.key(3), (batch, length), 2, 8)
    return tokens.at[:, 0].set(1)


def normed(h, norm):
    mean, var = h.mean(-1, keepdims=True), h.var(-1, keepdims=True)
    scale = norm.scale[...].reshape(1, 1, -1)
    bias = norm.bias[...].reshape(1, 1, -1)
    return (h - mean) / jnp.sqrt(var + 1e-5) * scale + bias


@pytest.mark.parametrize("causal", [False, True])
def test_is_the_papers_equations(causal):
    model = build(causal=causal)
    tokens = random_tokens()
    logits, aux = model(tokens, return_aux=True)
    h = model.embedding.embedding[...][tokens] * 4.0  # sqrt(D)
    for layer, weights, alpha in zip(
        model.layers, aux.attention_weights, aux.stack_weights, strict=True
    ):
        v = (h @ layer.attention.qkv.kernel[...])[..., 32:].reshape(2, 7, 4, 4)
        mixed = jnp.einsum("bnts,bsnh->btnh", weights, v).reshape(2, 7, 16)
        h = normed(h + mixed @ layer.attention.out.kernel[...], layer.attention_norm)
        up, down = layer.feed_forward.up, layer.feed_forward.down
        inner = jax.nn.relu(h @ up.kernel[...] + up.bias[...].reshape(1, 1, -1))
        out = inner @ down.kernel[...] + down.bias[...].reshape(1, 1, -1)
        h = normed(h + out, layer.feed_forward_norm)
        h = h + alpha @ h  # no layer norm
    head = model.head
    expected = h @ head.kernel[...] + head.bias[...].reshape(1, 1, -1)
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_parameter_count_of_the_papers_configuration():
    task = tasks.get("RS")
    sizes = {"vocab_size": task.vocab_size, "output_size": task.output_size}
    vanilla = StackTransformer(
        TransformerConfig(**sizes, stack=False), rngs=nnx.Rngs(0)
    )
    stack = StackTransformer(TransformerConfig(**sizes), rngs=nnx.Rngs(0))
    # A layer: 4 D² of attention, 8 D² + 5 D of feed-forward, 4 D of layer norms.
    layer = 12 * 64**2 + 9 * 64
    assert count_parameters(vanilla) == 8 * 64 + 5 * layer + 64 * 2 + 2 == 249282
    assert count_parameters(stack) == 249282 + 5 * (64 * 3 + 3)


def test_vanilla_has_the_very_same_other_parts():
    stack, vanilla = (
        jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(build(stack=stack))))
        for stack in (True, False)
    )
    for layer in stack["layers"].values():
        assert layer.pop("stack") == {"action_head": {"kernel": (16, 3), "bias": (3,)}}
    assert stack == vanilla


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("causal", [False, True])
def test_padding_changes_neither_logits_nor_gradient(positions, causal):
    model = build(positions=positions, causal=causal)
    graph, params = nnx.split(model)
    tokens = random_tokens()
    padded = jnp.pad(tokens, ((0, 0), (0, 4)), constant_values=5)
    mask = jnp.broadcast_to(jnp.arange(11)[None] < 7, (2, 11))

    @jax.jit
    def run(params, tokens, mask):
        logits = nnx.merge(graph, params)(tokens, mask=mask)
        return jnp.sum(jnp.sin(logits[:, :7])), logits[:, :7]

    both = jax.value_and_grad(run, has_aux=True)
    (_, logits), gradient = both(params, padded, mask)
    (_, expected), expected_gradient = both(params, tokens, jnp.ones((2, 7), bool))
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    for a, b in zip(
        jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-4 * max(1.0, np.abs(b).max()))


def test_the_autoregressive_model_sees_no_future():
    model = build(causal=True)
    embedded = model.embedding.embedding[...][random_tokens(1)]

    def logits_of(embedded):
        h = embedded * 4.0
        for layer in model.layers:
            h, _ = layer(h)
        return h[0]

    jacobian = np.asarray(jax.jacrev(logits_of)(embedded))[:, :, 0]
    for t in range(7):
        assert np.all(jacobian[t, :, t + 1 :] == 0.0)
        assert np.any(jacobian[t, :, : t + 1] != 0.0)


@pytest.mark.parametrize("positions", POSITIONS)
def test_lengths_never_seen_are_no_error(positions):
    model = build(positions=positions, num_layers=1)
    assert np.all(np.isfinite(model(random_tokens(1, 300))))


def test_dropout_is_on_exactly_when_rngs_are_given():
    model = build()
    tokens = random_tokens()
    np.testing.assert_array_equal(model(tokens), model(tokens))
    first, again, other = (
        model(tokens, rngs=nnx.Rngs(dropout=seed)) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other) and np.any(first != model(tokens))
    assert len(jax.tree.leaves(nnx.state(model))) == len(
        jax.tree.leaves(nnx.state(model, nnx.Param))
    )


@pytest.mark.parametrize(
    "options",
    [
        {"stack_norm": True},
        {"pre_norm": True},
        {"pre_norm": True, "stack_norm": True},
        {"stack": SuperpositionConfig(num_stacks=2)},
        {"stack": SuperpositionConfig(max_pops=2)},
        {"stack_layers": (1,)},
        {"num_loops": 3},
        {"dtype": "bfloat16"},
    ],
    ids=str,
)
def test_options_beyond_the_paper_change_the_model(options):
    model = build(**options)
    tokens = random_tokens()
    logits, aux = model(tokens, return_aux=True)
    assert logits.dtype == jnp.float32 and np.all(np.isfinite(logits))
    assert np.any(np.abs(logits - build()(tokens)) > 1e-6)
    layers = 2 * options.get("num_loops", 1)
    assert len(aux.stack_weights) == layers
    assert (aux.stack_weights[0] is None) == ("stack_layers" in options)


def test_looped_layers_share_their_weights():
    assert count_parameters(build(num_loops=4)) == count_parameters(build())


def test_seeds_run_as_one_vmapped_program():
    graph = nnx.graphdef(build())
    states = [nnx.state(build(seed)) for seed in (0, 1)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    tokens = random_tokens()
    run = jax.jit(jax.vmap(lambda state: nnx.merge(graph, state)(tokens)))
    np.testing.assert_allclose(run(stacked)[1], build(1)(tokens), atol=1e-5)


def test_given_actions_replace_predicted_ones():
    model = build()
    tokens = random_tokens()
    given = jax.nn.one_hot(jnp.array([[2, 0, 0, 1, 2, 1, 0]] * 2), 3)
    _, aux = model(tokens, actions=given, return_aux=True)
    for alpha, actions in zip(aux.stack_weights, aux.stack_actions, strict=True):
        np.testing.assert_array_equal(actions, given)
        np.testing.assert_array_equal(alpha[0].argmax(-1), [0, 1, 2, 1, 1, 0, 6])
    _, aux = model(tokens, actions=[None, given], return_aux=True)
    assert np.any(aux.stack_actions[0] != given)
    np.testing.assert_array_equal(aux.stack_actions[1], given)
    # They are data, whether one array or one a layer.
    for of_layers in (lambda x: x, lambda x: [x, x]):

        def loss(x, of_layers=of_layers):
            return jnp.sum(model(tokens, actions=of_layers(x)) ** 2)

        np.testing.assert_array_equal(jax.grad(loss)(given), 0.0)
    with pytest.raises(ValueError, match="one entry for each of the 2 layers"):
        model(tokens, actions=[given])
    with pytest.raises(ValueError, match="no layer of this model has a stack"):
        build(stack=False)(tokens, actions=given)


def test_supervision_teaches_the_action_head():
    tokens = random_tokens(8, 9)
    target = jax.nn.one_hot(jnp.where(tokens % 2 == 0, 0, 1), 3)
    graph, params = nnx.split(build(num_layers=1))

    @jax.jit
    @jax.value_and_grad
    def loss_of(params):
        _, aux = nnx.merge(graph, params)(tokens, return_aux="actions")
        return action_loss(aux, target)

    optimizer = optax.adam(1e-2)
    state = optimizer.init(params)
    first, _ = loss_of(params)
    for _ in range(60):
        loss, gradient = loss_of(params)
        updates, state = optimizer.update(gradient, state)
        params = optax.apply_updates(params, updates)
    assert loss < 0.2 * first


@pytest.mark.parametrize("mode", ["mlm", "alm"])
def test_overfits_32_strings_of_length_5(mode):
    task = tasks.get("RS")
    sample = task.sample(jax.random.key(0), 32, 5)
    batch = tasks.frame(task, sample, mode)
    config = TransformerConfig(
        vocab_size=task.vocab_size,
        output_size=task.output_size,
        num_layers=2,
        d_model=32,
        num_heads=4,
        causal=mode == "alm",
    )
    graph, params = nnx.split(StackTransformer(config, rngs=nnx.Rngs(0)))
    optimizer = optax.adam(2e-3)

    @jax.jit
    def train(params):
        def step(carry, _):
            params, state = carry

            def loss_of(params):
                logits = nnx.merge(graph, params)(batch.tokens, mask=batch.mask)
                losses = optax.softmax_cross_entropy_with_integer_labels(
                    logits, batch.targets
                )
                return jnp.sum(losses * batch.target_mask) / batch.target_mask.sum()

            gradient = jax.grad(loss_of)(params)
            updates, state = optimizer.update(gradient, state)
            params = optax.apply_updates(params, updates)
            logits = nnx.merge(graph, params)(batch.tokens, mask=batch.mask)
            right = (logits.argmax(-1) == batch.targets) | ~batch.target_mask
            return (params, state), jnp.mean(right.all(-1))

        start = (params, optimizer.init(params))
        return jax.lax.scan(step, start, None, length=600)[1]

    whole_strings = np.asarray(train(params))
    assert whole_strings[0] < 0.5
    assert whole_strings[-1] == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, "`num_heads` should divide `d_model`"),
        ({"positions": "learned"}, "`positions` should be"),
        ({"dropout": 1.0}, "`dropout` should be at least 0 and below 1"),
        ({"stack_layers": (2,)}, "`stack_layers` should lie in 0..1"),
        ({"num_layers": 0}, "`num_layers`"),
    ],
)
def test_wrong_configurations_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


def test_wrong_inputs_are_named():
    with pytest.raises(ValueError, match="`tokens` should be integers"):
        build()(jnp.zeros((2, 3)))
    with pytest.raises(ValueError, match="`mask` shape should be"):
        build()(random_tokens(), mask=jnp.ones((2, 3), bool))
