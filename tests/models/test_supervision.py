"""The loss on the action heads, and actions given layer by layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stackformer.models import Aux, StackTransformer, TransformerConfig, action_loss


def distributions(seed, *shape):
    return jax.nn.softmax(jax.random.normal(jax.random.key(seed), (*shape, 3)), -1)


def test_is_the_mean_cross_entropy_of_real_positions_after_the_first():
    predicted = [distributions(seed, 2, 5) for seed in (0, 1)]
    target = distributions(2, 2, 5)
    lengths = [5, 3]
    mask = jnp.arange(5)[None] < jnp.array(lengths)[:, None]
    per_layer = [
        np.mean(
            [
                -float(jnp.sum(target[row, i] * jnp.log(layer[row, i])))
                for row in range(2)
                for i in range(1, lengths[row])
            ]
        )
        for layer in predicted
    ]
    aux = Aux(predicted_actions=(predicted[0], None, predicted[1]))
    loss = action_loss(aux, target, mask=mask)
    np.testing.assert_allclose(loss, np.mean(per_layer), rtol=1e-5)
    loss = action_loss(aux, [None, None, target], mask=mask)
    np.testing.assert_allclose(loss, per_layer[1], rtol=1e-5)


def test_several_stacks_share_the_mask():
    predicted, target = distributions(0, 2, 4, 5), distributions(1, 2, 4, 5)
    mask = jnp.arange(5)[None] < jnp.array([[4], [2]])
    shorter = Aux(predicted_actions=(predicted[:, :, :4],))
    np.testing.assert_allclose(
        action_loss(Aux(predicted_actions=(predicted,)), target, mask=mask),
        action_loss(shorter, target[:, :, :4], mask=mask[:, :4]),
        rtol=1e-6,
    )


def test_a_certain_and_wrong_head_still_has_a_finite_gradient():
    def loss(logits):
        aux = Aux(predicted_actions=(jax.nn.softmax(logits),))
        return action_loss(aux, jax.nn.one_hot(jnp.zeros((1, 3), int), 3))

    logits = jnp.zeros((1, 3, 3)).at[..., 1].set(200.0)
    assert np.isfinite(loss(logits)) and np.all(np.isfinite(jax.grad(loss)(logits)))


def test_mistakes_are_named():
    aux = Aux(predicted_actions=(distributions(0, 1, 3), None))
    with pytest.raises(ValueError, match="each of the 2 layers, but got 1"):
        action_loss(aux, [distributions(0, 1, 3)])
    with pytest.raises(ValueError, match="return_aux='actions'"):
        action_loss(aux, [None, distributions(0, 1, 3)])
    config = TransformerConfig(
        vocab_size=8, output_size=2, num_layers=2, d_model=16, stack_layers=(1,)
    )
    model = StackTransformer(config, rngs=nnx.Rngs(0))
    given = distributions(0, 1, 3)
    with pytest.raises(ValueError, match=r"`actions\[0\]` should be None"):
        model(jnp.ones((1, 3), int), actions=[given, None])
    with pytest.raises(ValueError, match="`return_aux` should be"):
        model(jnp.ones((1, 3), int), return_aux="weights")
