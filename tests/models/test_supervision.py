"""The loss on the action heads, and actions given layer by layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stackformer import models, tasks
from stackformer.models import Aux, StackTransformer, TransformerConfig, action_loss


def distributions(seed, *shape):
    return jax.nn.softmax(logits(seed, *shape), -1)


def logits(seed, *shape):
    return 2 * jax.random.normal(jax.random.key(seed), (*shape, 3))


def test_is_the_mean_cross_entropy_of_real_positions_after_the_first():
    predicted = [logits(seed, 2, 5) for seed in (0, 1)]
    target = distributions(2, 2, 5)
    lengths = [5, 3]
    mask = jnp.arange(5)[None] < jnp.array(lengths)[:, None]
    per_layer = [
        np.mean(
            [
                -float(jnp.sum(target[row, i] * jax.nn.log_softmax(layer[row, i])))
                for row in range(2)
                for i in range(1, lengths[row])
            ]
        )
        for layer in predicted
    ]
    aux = Aux(action_logits=(predicted[0], None, predicted[1]))
    loss = action_loss(aux, target, mask=mask)
    np.testing.assert_allclose(loss, np.mean(per_layer), rtol=1e-5)
    loss = action_loss(aux, [None, None, target], mask=mask)
    np.testing.assert_allclose(loss, per_layer[1], rtol=1e-5)


def test_several_stacks_share_the_mask():
    predicted, target = logits(0, 2, 4, 5), distributions(1, 2, 4, 5)
    mask = jnp.arange(5)[None] < jnp.array([[4], [2]])
    shorter = Aux(action_logits=(predicted[:, :, :4],))
    np.testing.assert_allclose(
        action_loss(Aux(action_logits=(predicted,)), target, mask=mask),
        action_loss(shorter, target[:, :, :4], mask=mask[:, :4]),
        rtol=1e-6,
    )


def test_a_certain_and_wrong_head_still_has_a_finite_gradient():
    def loss(logits):
        aux = Aux(action_logits=(logits,))
        return action_loss(aux, jax.nn.one_hot(jnp.zeros((1, 3), int), 3))

    logits = jnp.zeros((1, 3, 3)).at[..., 1].set(200.0)
    gradient = np.asarray(jax.grad(loss)(logits))
    # Position 0 is the bottom; elsewhere the gradient does not vanish.
    np.testing.assert_allclose(gradient[0, 0], 0.0)
    np.testing.assert_allclose(gradient[0, 1:], [[-0.5, 0.5, 0.0]] * 2, atol=1e-6)


def test_position_0_of_a_recurrent_model_counts():
    predicted, target = logits(0, 2, 5), distributions(1, 2, 5)
    aux = Aux(action_logits=(predicted,), bottom_first=False)
    changed = Aux(
        action_logits=(predicted.at[:, 0].add(jnp.arange(3.0)),), bottom_first=False
    )
    assert abs(action_loss(aux, target) - action_loss(changed, target)) > 1e-3
    model = models.build(
        "stack_rnn", tasks.get("RS"), {"hidden_size": 8}, rngs=nnx.Rngs(0)
    )
    _, aux = model(jnp.ones((1, 3), int), return_aux="actions")
    assert not aux.bottom_first


def test_mistakes_are_named():
    aux = Aux(action_logits=(logits(0, 1, 3), None))
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
