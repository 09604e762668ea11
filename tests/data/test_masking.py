"""Masks in the way of RoBERTa."""

import jax
import jax.numpy as jnp
import numpy as np

from stackformer.data.masking import mask_rows, mask_tokens

OPTIONS = dict(mask_id=4, vocab_size=1000, special_ids=(0, 1, 2))


def test_fifteen_percent_in_the_shares_80_10_10():
    tokens = jax.random.randint(jax.random.key(0), (1000, 128), 5, 1000)
    tokens = tokens.at[:, 0].set(0).at[:, -1].set(2)
    fed, chosen = jax.jit(lambda key: mask_tokens(key, tokens, **OPTIONS))(
        jax.random.key(1)
    )
    tokens, fed, chosen = map(np.asarray, (tokens, fed, chosen))
    assert not chosen[:, [0, -1]].any()
    np.testing.assert_array_equal(fed[~chosen], tokens[~chosen])
    # 126,000 tokens: four standard deviations are below half a percent.
    assert abs(chosen[:, 1:-1].mean() - 0.15) < 0.005
    hidden, kept = fed[chosen] == 4, fed[chosen] == tokens[chosen]
    assert abs(hidden.mean() - 0.8) < 0.013
    assert abs(kept.mean() - 0.1) < 0.01
    random = fed[chosen][~hidden & ~kept]
    assert abs(len(random) / chosen.sum() - 0.1) < 0.01
    # Uniform over the vocabulary: the mean rank is in the middle.
    assert abs(random.mean() / 1000 - 0.5) < 0.03


def test_masks_are_a_function_of_the_key():
    tokens = jnp.full((4, 64), 9)
    key = jax.random.key(0)
    draw = jax.jit(
        lambda step: mask_tokens(jax.random.fold_in(key, step), tokens, **OPTIONS)
    )
    first, again, other = draw(3), draw(3), draw(4)
    np.testing.assert_array_equal(first[1], again[1])
    assert (first[1] != other[1]).any()


def test_the_mask_of_a_chunk_does_not_depend_on_its_batch():
    tokens = jax.random.randint(jax.random.key(0), (6, 64), 5, 1000)
    key, rows = jax.random.key(1), jnp.arange(6)
    draw = jax.jit(lambda rows, tokens: mask_rows(key, rows, tokens, **OPTIONS))
    whole, part = draw(rows, tokens), draw(rows[4:], tokens[4:])
    for a, b in zip(whole, part, strict=True):
        np.testing.assert_array_equal(a[4:], b)
    assert (whole[1][0] != whole[1][1]).any()
