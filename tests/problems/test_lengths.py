"""Lengths of training strings have the distribution that they should have."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from stackformer.problems.dcf.lengths import Curriculum, bucket_edges
from stackformer.training import UserError


def drawn(curriculum: Curriculum, seed: int, steps: range) -> tuple:
    """Buckets and lengths as the train step draws them."""

    def one(step):
        index = curriculum.choose_bucket(step)
        key = jax.random.fold_in(jax.random.key(seed), step)
        lengths = [curriculum.draw(key, step, b)[0] for b in curriculum.buckets()]
        return index, jnp.stack(lengths)[index]

    buckets, lengths = jax.jit(jax.vmap(one))(jnp.arange(steps.start, steps.stop))
    return np.asarray(buckets), np.asarray(lengths)


@pytest.mark.parametrize("num_buckets", [1, 3, 5])
def test_uniform_over_1_to_40(num_buckets):
    curriculum = Curriculum(max_length=40, num_buckets=num_buckets)
    _, lengths = drawn(curriculum, 0, range(20_000))
    counts = np.bincount(lengths, minlength=41)
    assert counts[0] == 0 and len(counts) == 41
    assert stats.chisquare(counts[1:]).pvalue > 1e-3
    # Steps are independent: the next length does not depend on this one.
    pairs = np.histogram2d(lengths[:-1], lengths[1:], bins=4)[0]
    assert stats.chi2_contingency(pairs).pvalue > 1e-3


def test_seeds_share_buckets_but_not_lengths():
    curriculum = Curriculum(max_length=40, num_buckets=5)
    buckets_0, lengths_0 = drawn(curriculum, 0, range(500))
    buckets_1, lengths_1 = drawn(curriculum, 1, range(500))
    np.testing.assert_array_equal(buckets_0, buckets_1)
    edges = np.array([0, *curriculum.buckets()])
    for lengths in (lengths_0, lengths_1):
        assert (edges[buckets_0] < lengths).all()
        assert (lengths <= edges[buckets_0 + 1]).all()
    assert 0.05 < (lengths_0 == lengths_1).mean() < 0.25


def test_reverse_exponential():
    curriculum = Curriculum(name="reverse_exponential", value=0.8, max_length=10)
    _, lengths = drawn(curriculum, 0, range(20_000))
    expected = 0.8 ** np.arange(1, 11)
    expected *= 20_000 / expected.sum()
    assert stats.chisquare(np.bincount(lengths)[1:], expected).pvalue > 1e-3


def test_regular_increase_reaches_one_more_length_at_a_time():
    curriculum = Curriculum(name="regular_increase", value=100, max_length=10)
    for begin, longest in ((0, 1), (100, 2), (500, 6), (5_000, 10)):
        _, lengths = drawn(curriculum, 0, range(begin, begin + 100))
        assert lengths.max() == longest
        assert len(set(lengths.tolist())) == longest


def test_fixed():
    curriculum = Curriculum.parse("fixed:7", 40)
    assert curriculum.buckets() == (7,)
    assert set(drawn(curriculum, 0, range(50))[1].tolist()) == {7}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sorted", "one of uniform, fixed"),
        ("fixed:41", "from 1 to 40"),
        ("fixed:x", "NAME or NAME:NUMBER"),
        ("fixed", "NAME or NAME:NUMBER"),
        ("uniform:3", "takes no value"),
        ("reverse_exponential:-1", "positive"),
    ],
)
def test_bad_curricula_are_named(text, message):
    with pytest.raises(UserError, match=message):
        Curriculum.parse(text, 40)


def test_bucket_edges_end_at_the_longest():
    for longest in (1, 4, 7, 40, 100, 500):
        edges = bucket_edges(longest, 5)
        assert edges[-1] == longest and len(edges) <= 5
        assert list(edges) == sorted(set(edges))


def test_no_base_of_the_reverse_exponential_overflows():
    likely = {}
    for base in ("1e9", "1e-9", "1.5", "0.9"):
        curriculum = Curriculum.parse(f"reverse_exponential:{base}", 40)
        likely[base] = np.asarray(curriculum.probabilities(0))
        assert likely[base].sum() == pytest.approx(1.0, rel=1e-5), base
    assert likely["1e9"][-1] > 0.999 and likely["1e-9"][0] > 0.999
    powers = 0.9 ** np.arange(1, 41)
    np.testing.assert_allclose(likely["0.9"], powers / powers.sum(), rtol=1e-5)
