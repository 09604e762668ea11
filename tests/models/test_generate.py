"""Decoding step by step against the full forward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stackformer.models import StackTransformer, TransformerConfig, generate
from stackformer.nn.positions import POSITIONS
from stackformer.nn.stacks import FramesConfig, SuperpositionConfig

BOS = 1


def build(**options):
    options = {"num_layers": 2, "d_model": 16, "num_heads": 4} | options
    config = TransformerConfig(vocab_size=9, output_size=9, causal=True, **options)
    return StackTransformer(config, rngs=nnx.Rngs(0))


def random_tokens(batch, length):
    tokens = jax.random.randint(jax.random.key(3), (batch, length), 2, 9)
    return tokens.at[:, 0].set(BOS)


@pytest.mark.parametrize(
    "options",
    [{"positions": name} for name in POSITIONS]
    + [
        {"stack": False},
        {"stack": SuperpositionConfig(num_stacks=2, max_pops=2)},
        {"pre_norm": True, "stack_norm": True, "num_loops": 2},
        {"stack_layers": (1,)},
        {"stack": SuperpositionConfig(max_depth=3)},
    ],
    ids=str,
)
def test_step_by_step_logits_equal_the_full_forward_pass(options):
    model = build(**options)
    tokens = random_tokens(3, 11)

    def step(cache, tokens):
        return model.decode_step(cache, tokens)

    _, logits = jax.lax.scan(step, model.init_cache(3, 11), tokens.T)
    np.testing.assert_allclose(logits.swapaxes(0, 1), model(tokens), atol=1e-4)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"positions": "relative"},
        {"stack": SuperpositionConfig(num_stacks=2, max_pops=2)},
        {"stack": SuperpositionConfig(max_depth=3, implementation="chunkwise")},
        {"stack": SuperpositionConfig(implementation="scan"), "num_loops": 2},
        {"stack": FramesConfig(items=2, item_features=4, hidden=8)},
    ],
    ids=str,
)
def test_a_prompt_read_at_once_equals_its_steps(options, hard):
    model = build(num_layers=1, **options)
    tokens = random_tokens(3, 12)

    @jax.jit
    def by_steps(tokens):
        cache = model.init_cache(3, 12, hard=hard)
        return jax.lax.scan(model.decode_step, cache, tokens.T)[1][6:]

    @jax.jit
    def at_once(tokens, length):
        # What stands behind the first `length` tokens is not read.
        cache = model.init_cache(3, 12, hard=hard)
        cache, first = model.prefill(cache, tokens[:, :9], length)
        _, logits = jax.lax.scan(model.decode_step, cache, tokens[:, 7:].T)
        return jnp.concatenate([first[None], logits])

    np.testing.assert_allclose(at_once(tokens, 7), by_steps(tokens), atol=1e-4)


def greedy_by_hand(model, prompt, num_new, output_tokens):
    """The full forward pass for every symbol, at one padded width: it is causal."""
    forward = jax.jit(model)
    tokens, classes = list(prompt), []
    for _ in range(num_new):
        padded = tokens + [0] * (13 - len(tokens))
        logits = forward(jnp.array([padded]))[0, len(tokens) - 1]
        classes.append(int(logits.argmax()))
        tokens.append(int(output_tokens[classes[-1]]))
    return classes


def test_greedy_generation_with_prompts_of_several_lengths():
    model = build()
    lengths = [5, 2, 7]
    prompts = random_tokens(3, 7) * (jnp.arange(7)[None] < jnp.array(lengths)[:, None])
    output_tokens = jnp.array([4, 3, 8, 7, 6, 5, 2, 3, 4])
    classes, logits = generate(
        model, prompts, jnp.array(lengths), 6, output_tokens=output_tokens
    )
    for row, length in enumerate(lengths):
        prompt = prompts[row, :length].tolist()
        expected = greedy_by_hand(model, prompt, 6, output_tokens)
        assert classes[row].tolist() == expected
        full = jnp.array([prompt + output_tokens[classes[row]].tolist()])
        np.testing.assert_allclose(
            logits[row], model(full)[0, length - 1 : -1], atol=1e-4
        )


def test_sampling_follows_the_key_and_the_models_distribution():
    model = build(num_layers=1)
    prompts = jnp.tile(jnp.array([[BOS, 4, 5]]), (4000, 1))
    lengths = jnp.full(4000, 3)
    sample = [
        generate(model, prompts, lengths, 1, key=jax.random.key(k), temperature=1.0)
        for k in (0, 0, 1)
    ]
    np.testing.assert_array_equal(sample[0][0], sample[1][0])
    assert np.any(sample[0][0] != sample[2][0])
    frequency = np.bincount(np.asarray(sample[0][0][:, 0]), minlength=9) / 4000
    np.testing.assert_allclose(frequency, jax.nn.softmax(sample[0][1][0, 0]), atol=0.04)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_new": 0}, "`num_new` should be an integer of at least 1"),
        ({"temperature": 1.0}, "`key` should be given"),
        ({"prompt_lengths": jnp.array([4])}, "from 1 to 3"),
        ({"prompt_lengths": jnp.array([3, 3])}, "`prompt_lengths` shape"),
        ({"prompt_lengths": jnp.array([3.0])}, "`prompt_lengths` should be integers"),
        ({"prompts": jnp.zeros((1, 3))}, "`prompts` should be integers"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    defaults = {
        "prompts": jnp.array([[BOS, 4, 5]]),
        "prompt_lengths": jnp.array([3]),
        "num_new": 2,
    }
    with pytest.raises(ValueError, match=message):
        generate(build(num_layers=1), **(defaults | arguments))


def test_an_encoder_cannot_generate():
    config = TransformerConfig(vocab_size=9, output_size=9, num_layers=1)
    model = StackTransformer(config, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="causal"):
        generate(model, jnp.array([[BOS]]), jnp.array([1]), 2)


def test_a_model_without_prefill_reads_prompts_step_by_step():
    class Stepping(StackTransformer):
        prefill = property()

    config = build(num_layers=1).config
    prompts, lengths = random_tokens(2, 5), jnp.array([5, 2])
    plain, stepping = (
        generate(kind(config, rngs=nnx.Rngs(0)), prompts, lengths, 3)
        for kind in (StackTransformer, Stepping)
    )
    np.testing.assert_array_equal(plain[0], stepping[0])
    np.testing.assert_allclose(plain[1], stepping[1], atol=1e-4)


def test_symbols_that_are_not_needed_are_zeros():
    model = build(num_layers=1)
    prompts, lengths = random_tokens(2, 5), jnp.array([5, 4])
    classes, logits = generate(model, prompts, lengths, 4, needed=2)
    expected = generate(model, prompts, lengths, 4)
    np.testing.assert_array_equal(classes[:, :2], expected[0][:, :2])
    np.testing.assert_allclose(logits[:, :2], expected[1][:, :2], atol=1e-5)
    np.testing.assert_array_equal(logits[0, 2:], 0.0)
