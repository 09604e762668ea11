"""GPT-2: parity with transformers, causality, decoding, options."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stackformer.models.huggingface.pretrained import load_pretrained
from stackformer.models.language.gpt2 import GPT2, GPT2Config

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "gpt2"
CONFIG = GPT2Config.of_size("tiny", vocab_size=50, max_length=16)


@nnx.jit
def run(model, tokens, rngs=None):
    return model(tokens, rngs=rngs)


def build(**changes) -> GPT2:
    return GPT2(dataclasses.replace(CONFIG, **changes), rngs=nnx.Rngs(0))


def random_tokens(batch: int = 2, length: int = 9) -> jax.Array:
    return jax.random.randint(jax.random.key(1), (batch, length), 0, CONFIG.vocab_size)


@pytest.fixture(scope="module")
def model() -> GPT2:
    """A model whose stacks matter: large action weights, so actions differ."""
    model = build()
    for block in model.blocks:
        kernel = block.stack.action_head.kernel
        kernel[...] = kernel[...] * 50.0
    return model


def test_logits_equal_those_of_transformers():
    expected = np.load(GOLDEN / "expected.npz")
    model = load_pretrained(GOLDEN, stack=False, rngs=nnx.Rngs(0))
    logits = run(model, jnp.asarray(expected["tokens"], jnp.int32))
    np.testing.assert_allclose(logits, expected["logits"], atol=1e-4)


def test_a_closed_gate_leaves_the_pretrained_outputs_and_plain_addition_does_not():
    tokens = jnp.asarray(np.load(GOLDEN / "expected.npz")["tokens"], jnp.int32)
    outputs = {
        name: run(load_pretrained(GOLDEN, rngs=nnx.Rngs(0), **options), tokens)
        for name, options in {
            "vanilla": dict(stack=False),
            "gated": dict(stack_gate=0.0),
            "plain": dict(),
        }.items()
    }
    np.testing.assert_allclose(outputs["gated"], outputs["vanilla"], atol=1e-5)
    assert jnp.abs(outputs["plain"] - outputs["vanilla"]).max() > 1e-2


def test_a_closed_gate_can_open():
    model = build(stack_gate=0.0, num_layers=1)

    @nnx.jit
    @nnx.grad
    def gradient(model):
        return jnp.mean(model(random_tokens()) ** 2)

    assert float(jnp.abs(gradient(model).blocks[0].gate[...])) > 1e-6


def test_the_future_does_not_matter(model):
    tokens = random_tokens()
    changed = tokens.at[:, 5:].add(1) % CONFIG.vocab_size
    before, after = run(model, tokens), run(model, changed)
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert jnp.abs(before[:, 5:] - after[:, 5:]).max() > 1e-3


def test_decoding_equals_the_whole_sequence(model):
    tokens = random_tokens()
    cache = model.init_cache(2, tokens.shape[1])
    step = jax.jit(lambda cache, token: model.decode_step(cache, token))
    scores = []
    for index in range(tokens.shape[1]):
        cache, logits = step(cache, tokens[:, index])
        scores.append(logits)
    np.testing.assert_allclose(jnp.stack(scores, 1), run(model, tokens), atol=1e-5)


def test_aux_has_one_entry_per_layer_and_chosen_layers_only():
    tokens = random_tokens()
    model = build(stack_layers=(1,))
    logits, aux = nnx.jit(lambda model: model(tokens, return_aux=True))(model)
    assert logits.shape == (2, 9, 50)
    assert aux.stack_weights[0] is None
    assert aux.stack_weights[1].shape == (2, 9, 9)
    assert aux.attention_weights[0].shape == (2, 4, 9, 9)
    np.testing.assert_allclose(aux.stack_weights[1].sum(-1), 1.0, atol=1e-5)


def test_dropout_happens_if_and_only_if_there_are_rngs():
    model, tokens = build(), random_tokens()
    plain = run(model, tokens)
    np.testing.assert_array_equal(plain, run(model, tokens))
    first = run(model, tokens, nnx.Rngs(dropout=0))
    np.testing.assert_array_equal(first, run(model, tokens, nnx.Rngs(dropout=0)))
    second = run(model, tokens, nnx.Rngs(dropout=1))
    assert jnp.abs(first - plain).max() > 1e-3
    assert jnp.abs(first - second).max() > 1e-3


def test_dropout_acts_on_attention_weights_too():
    attention = build(num_layers=1).blocks[0].attention
    h = jax.random.normal(jax.random.key(0), (2, 9, 32))

    @nnx.jit
    def attend(attention, key):
        return attention(h, weight_dropout=0.5, key=key)[0]

    plain = nnx.jit(lambda attention: attention(h)[0])(attention)
    dropped = [attend(attention, jax.random.key(seed)) for seed in (0, 1)]
    assert jnp.abs(dropped[0] - plain).max() > 1e-3 * jnp.abs(plain).max()
    assert jnp.abs(dropped[0] - dropped[1]).max() > 1e-3 * jnp.abs(plain).max()


def test_remat_changes_no_gradient_and_bfloat16_little():
    tokens = random_tokens()

    def gradient(**changes):
        graphdef, params = nnx.split(build(num_layers=1, **changes))

        @jax.jit
        @jax.value_and_grad
        def loss(params):
            model = nnx.merge(graphdef, params)
            logits = model(tokens, rngs=nnx.Rngs(dropout=0))
            assert logits.dtype == jnp.float32
            return jnp.mean(jax.nn.logsumexp(logits, -1) ** 2)

        return loss(params)

    loss, grads = gradient()
    remat_loss, remat_grads = gradient(remat=True)
    assert jnp.allclose(loss, remat_loss, rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), grads, remat_grads
    )
    low_loss, low_grads = gradient(dtype="bfloat16")
    assert jnp.allclose(loss, low_loss, rtol=2e-2)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(low_grads))


def test_parameters_are_all_the_state_and_may_be_stacked():
    models = [GPT2(CONFIG, rngs=nnx.Rngs(seed)) for seed in (0, 1)]
    graphdef = nnx.graphdef(models[0])
    states = [nnx.state(model) for model in models]
    assert all(isinstance(leaf, nnx.Param) for _, leaf in nnx.to_flat_state(states[0]))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    tokens = random_tokens()
    both = jax.jit(jax.vmap(lambda state: nnx.merge(graphdef, state)(tokens)))(stacked)
    np.testing.assert_allclose(both[1], run(models[1], tokens), atol=1e-5)


def test_base_has_the_parameters_of_gpt2():
    def count(**options):
        model = nnx.eval_shape(lambda: GPT2(GPT2Config(**options), rngs=nnx.Rngs(0)))
        return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model)))

    assert count(stack=False) == 124_439_808
    # An action head of 3 x 768 + 3 and a gate in each of the 12 blocks.
    assert count(stack_gate=0.0) == 124_439_808 + 12 * (3 * 768 + 3 + 1)


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(num_heads=5), "num_heads"),
        (dict(stack_layers=(2,)), "stack_layers"),
        (dict(dtype="float64"), "dtype"),
        (dict(dropout=1.0), "dropout"),
    ],
)
def test_wrong_configurations_say_what_is_wrong(changes, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(CONFIG, **changes)


def test_too_long_sequences_say_how_long_they_may_be(model):
    with pytest.raises(ValueError, match="at most max_length=16"):
        model(random_tokens(length=17))
    with pytest.raises(ValueError, match="at most 16"):
        model.init_cache(1, 17)
