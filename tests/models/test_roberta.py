"""RoBERTa: parity with transformers, padding, both directions."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from stackformer.models.huggingface.pretrained import load_pretrained
from stackformer.models.language.roberta import Roberta, RobertaConfig

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "roberta"


@nnx.jit
def run(model, tokens, mask=None):
    return model(tokens, mask=mask)


def test_logits_equal_those_of_transformers():
    expected = np.load(GOLDEN / "expected.npz")
    mask = expected["mask"]
    model = load_pretrained(GOLDEN, stack=False, rngs=nnx.Rngs(0))
    tokens = jnp.asarray(expected["tokens"], jnp.int32)
    logits = run(model, tokens, jnp.asarray(mask))
    np.testing.assert_allclose(
        np.asarray(logits)[mask], expected["logits"][mask], atol=1e-4
    )
    # Without a mask, tokens that are not padding are real.
    np.testing.assert_allclose(logits, run(model, tokens), atol=1e-6)


def test_a_closed_gate_leaves_the_pretrained_outputs():
    tokens = jnp.asarray(np.load(GOLDEN / "expected.npz")["tokens"], jnp.int32)
    vanilla = load_pretrained(GOLDEN, stack=False, rngs=nnx.Rngs(0))
    gated = load_pretrained(GOLDEN, stack_gate=0.0, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(run(gated, tokens), run(vanilla, tokens), atol=1e-5)


def test_padding_never_changes_real_positions_and_both_sides_matter():
    config = RobertaConfig.of_size("tiny", vocab_size=50, max_length=16)
    model = Roberta(config, rngs=nnx.Rngs(0))
    tokens = jax.random.randint(jax.random.key(0), (2, 9), 5, 50).at[:, 0].set(0)
    logits = run(model, tokens)
    padded = jnp.pad(tokens, ((0, 0), (0, 4)), constant_values=config.pad_id)
    longer, aux = nnx.jit(lambda model: model(padded, return_aux=True))(model)
    np.testing.assert_allclose(longer[:, :9], logits, atol=1e-5)
    # Nothing looks at padding, neither attention nor stack.
    assert float(jnp.abs(aux.attention_weights[1][..., :9, 9:]).max()) == 0.0
    assert float(jnp.abs(aux.stack_weights[1][..., 9:]).max()) == 0.0
    changed = run(model, tokens.at[:, 8].set(7 + tokens[:, 8] % 2))
    assert jnp.abs(changed[:, 2] - logits[:, 2]).max() > 1e-4


def test_base_has_the_parameters_of_roberta_base():
    model = nnx.eval_shape(
        lambda: Roberta(RobertaConfig(stack=False), rngs=nnx.Rngs(0))
    )
    count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model)))
    assert count == 124_697_433
