"""What holds for every recurrent model: padding, learning, many seeds, what it did."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from stackformer import models, tasks

NAMES = ("rnn", "lstm", "stack_rnn", "stack_lstm", "tape_rnn", "ndstack_rnn")
TASK = tasks.get("RS")


def make(name, key=0, **config):
    config = {"hidden_size": 12, **config}
    return models.build(name, TASK, config, rngs=nnx.Rngs(key))


@functools.cache
def trainer(name):
    """Parameters, and a compiled function for loss, logits and gradient."""
    graph, params = nnx.split(make(name, hidden_size=32))

    @jax.jit
    def run(params, tokens, mask, targets, weights):
        def loss(params):
            logits = nnx.merge(graph, params)(tokens, mask=mask)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
            return jnp.sum(losses * weights), logits

        return jax.value_and_grad(loss, has_aux=True)(params)

    return params, run


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_neither_logits_nor_gradient(name):
    params, run = trainer(name)
    short = tasks.frame(TASK, TASK.sample(jax.random.key(0), 32, 3), "mlm")
    shape = (32, 11 - short.tokens.shape[1])
    junk = jax.random.randint(jax.random.key(1), shape, 0, TASK.vocab_size)

    def pad(array, padding):
        return jnp.concatenate([array, padding.astype(array.dtype)], axis=1)

    weights = jax.random.normal(jax.random.key(2), short.tokens.shape)
    alone = run(params, short.tokens, short.mask, short.targets, weights)
    padded = run(
        params,
        pad(short.tokens, junk),
        pad(short.mask, jnp.zeros(shape)),
        pad(short.targets, jnp.zeros(shape)),
        pad(weights, jnp.zeros(shape)),
    )
    (loss, logits), gradient = alone
    (padded_loss, padded_logits), padded_gradient = padded
    np.testing.assert_allclose(padded_logits[:, : logits.shape[1]], logits, atol=1e-5)
    np.testing.assert_allclose(padded_loss, loss, rtol=1e-5)
    assert max(jnp.abs(leaf).max() for leaf in jax.tree.leaves(gradient)) > 0.1
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-3),
        padded_gradient,
        gradient,
    )


@pytest.mark.parametrize("name", NAMES)
def test_learns_32_strings_by_heart(name):
    params, run = trainer(name)
    batch = tasks.frame(TASK, TASK.sample(jax.random.key(0), 32, 5), "mlm")
    weights = batch.target_mask.astype(jnp.float32)
    optimizer = optax.adam(1e-2)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    wrong = []
    for _ in range(400):
        (_, logits), gradient = run(
            params, batch.tokens, batch.mask, batch.targets, weights
        )
        wrong.append(((logits.argmax(-1) != batch.targets) & batch.target_mask).sum())
        if wrong[-1] == 0:
            break
        updates, state = update(gradient, state)
        params = optax.apply_updates(params, updates)
    assert wrong[0] > 40 and wrong[-1] == 0


def test_many_seeds_at_once():
    graph, params = nnx.split(make("ndstack_rnn"))
    tokens = jax.random.randint(jax.random.key(0), (2, 5), 1, TASK.vocab_size)

    def gradient(params):
        return jax.grad(lambda p: jnp.sum(nnx.merge(graph, p)(tokens) ** 2))(params)

    other = nnx.state(make("ndstack_rnn", key=1))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), params, other)
    together = jax.jit(jax.vmap(gradient))(stacked)
    alone = jax.jit(gradient)(other)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a[1], b, atol=1e-5), together, alone
    )


def test_what_a_stack_did_explains_what_it_read():
    model = make("stack_rnn", stack_cell_size=3)
    tokens = jax.random.randint(jax.random.key(0), (2, 9), 1, TASK.vocab_size)
    _, aux = model(tokens, return_aux=True)
    alpha, actions = aux.stack_weights[0], aux.stack_actions[0]
    assert alpha.shape == (2, 9, 9) and actions.shape == (2, 9, 3)
    assert jnp.all(jnp.triu(alpha, 1) == 0) and alpha.sum(-1).max() <= 1 + 1e-6

    # Give the controller alpha @ (pushed values) for its reading: the same network.
    memory = model.memory
    z = model.input(jax.nn.one_hot(tokens, TASK.vocab_size))
    state, tops = memory.controller.init_state(2), jnp.zeros((2, 10, 3))
    for t in range(9):
        state, h = memory.controller(state, z[:, t] + memory.read(tops[:, t]))
        expected = jax.nn.softmax(memory.action_head(h))
        np.testing.assert_allclose(actions[:, t], expected, atol=1e-5)
        pushed = jnp.tanh(memory.push_head(h))
        # Row s of alpha gives the top after s; column t is what position t adds.
        tops = tops.at[:, 1:].add(alpha[:, :, t, None] * pushed[:, None])


@pytest.mark.parametrize(
    "name, config, shape",
    [
        ("stack_rnn", {"num_stacks": 2}, (2, 2, 5, 3)),
        ("tape_rnn", {}, (2, 5, 5)),
        ("tape_rnn", {"num_tapes": 3, "tape_size": 4}, (2, 3, 5, 5)),
        ("ndstack_rnn", {"read_states": False}, (2, 5, 3)),
    ],
)
def test_actions_are_distributions(name, config, shape):
    tokens = jnp.array([[1, 4, 5, 2, 2], [1, 4, 2, 0, 0]])
    logits, aux = make(name, **config)(tokens, mask=tokens > 0, return_aux=True)
    assert logits.shape == (2, 5, TASK.output_size)
    assert aux.stack_actions[0].shape == shape
    np.testing.assert_allclose(aux.stack_actions[0].sum(-1), 1, atol=1e-5)


def test_a_model_without_memory_has_no_actions_and_only_parameters():
    model = make("rnn")
    logits, aux = model(jnp.array([[1, 4, 2]]), return_aux=True)
    assert aux.stack_actions == (None,) and aux.stack_weights == (None,)
    assert logits.dtype == jnp.float32
    assert all(
        isinstance(leaf, nnx.Param)
        for leaf in jax.tree.leaves(
            nnx.state(model), is_leaf=lambda x: isinstance(x, nnx.Variable)
        )
    )


def test_tape_jumps_by_the_number_of_input_symbols():
    model = make("tape_rnn")
    tokens = jnp.array([[1, 4, 5, 4, 2, 2, 2], [1, 4, 2, 0, 0, 0, 0]])
    symbols = model._is_symbol(tokens, tokens > 0)
    np.testing.assert_array_equal(symbols.sum(axis=1), [3, 1])


def test_memory_of_a_long_string_stays_small():
    # Without the scan over its history a backward pass would keep T times gamma.
    graph, params = nnx.split(make("ndstack_rnn"))
    tokens = jnp.ones((1, 60), jnp.int32)

    def loss(params):
        return nnx.merge(graph, params)(tokens).sum()

    compiled = jax.jit(jax.grad(loss)).lower(params).compile()
    gamma = 61**2 * (2 * 3) ** 2 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < 5 * gamma


@pytest.mark.parametrize(
    "tokens, mask, message",
    [
        (jnp.ones((3,), int), None, "`tokens` should be integers of shape"),
        (jnp.ones((1, 3)), None, "`tokens` should be integers"),
        (jnp.ones((1, 3), int), jnp.ones((1, 4), bool), "`mask` shape should be"),
    ],
)
def test_wrong_inputs(tokens, mask, message):
    with pytest.raises(ValueError, match=message):
        make("rnn")(tokens, mask=mask)


@pytest.mark.parametrize(
    "config, message",
    [
        (functools.partial(models.RecurrentConfig, controller="gru"), "rnn, lstm"),
        (functools.partial(models.RecurrentConfig, hidden_size=0), "`hidden_size`"),
        (functools.partial(models.StackRecurrentConfig, stack_size=0), "`stack_size`"),
        (functools.partial(models.TapeRecurrentConfig, num_tapes="2"), "got '2'"),
        (functools.partial(models.NDStackRecurrentConfig, num_states=None), "None"),
    ],
)
def test_wrong_configurations(config, message):
    with pytest.raises(ValueError, match=message):
        config(vocab_size=6, output_size=2)
