"""Dropout: probability, expectation, independence of entries and of keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stackformer.nn.dropout import dropout, forward_key


def kept(seed, shape=(512, 512), rate=0.1):
    return np.asarray(dropout(jnp.ones(shape), rate, jax.random.key(seed))) != 0


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_rate_and_scale(rate):
    out = np.asarray(dropout(jnp.ones((512, 512)), rate, jax.random.key(0)))
    deviation = np.sqrt(rate * (1 - rate) / out.size)
    assert abs((out == 0).mean() - rate) < 4 * deviation
    np.testing.assert_allclose(out[out != 0], 1 / (1 - rate), rtol=1e-6)


def test_entries_rows_and_keys_are_uncorrelated():
    masks = [(kept(seed) - 0.9) / 0.3 for seed in range(4)]
    limit = 4.5 / np.sqrt(masks[0].size)
    for lag in (1, 2, 64):
        assert abs((masks[0][:, lag:] * masks[0][:, :-lag]).mean()) < limit
        assert abs((masks[0][lag:] * masks[0][:-lag]).mean()) < limit * 1.1
    for other in masks[1:]:
        assert abs((masks[0] * other).mean()) < limit
    # Counts of rows and of columns have the variance of independent entries.
    for axis in (0, 1):
        variance = masks[0].sum(axis).var() / 512
        assert 0.75 < variance < 1.3


def test_folded_keys_give_other_masks_under_vmap():
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(0), i))(jnp.arange(2))
    masks = jax.vmap(lambda key: dropout(jnp.ones((64, 64)), 0.5, key))(keys)
    assert 0.4 < np.mean(masks[0] == masks[1]) < 0.6
    np.testing.assert_array_equal(masks[0], dropout(jnp.ones((64, 64)), 0.5, keys[0]))


def test_no_key_and_rate_zero_are_the_identity():
    x = jnp.ones((2, 3))
    assert dropout(x, 0.1, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x
    assert forward_key(None) is None


def test_a_missing_stream_is_named():
    with pytest.raises(ValueError, match="'dropout' stream"):
        forward_key(nnx.Rngs(params=0))
