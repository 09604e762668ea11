"""The depth distribution against a hard stack, a simulation and stack attention."""

import itertools

import numpy as np
import pytest

from stackformer import viz


def random_actions(rng, T, num_actions=3):
    return rng.dirichlet(np.ones(num_actions), size=T)


def test_hard_actions_give_the_hard_stack_at_every_depth():
    for choice in itertools.product(range(3), repeat=6):
        choice = (2, *choice)
        Z = viz.depth_distribution(np.eye(3)[list(choice)])
        assert set(np.unique(Z)) <= {0.0, 1.0}
        for i, stack in enumerate(viz.hard_stacks(choice)):
            expected = [*reversed(stack)] + [0] * (7 - len(stack))
            assert Z[i].argmax(axis=-1).tolist() == expected


@pytest.mark.parametrize("num_actions", [3, 5])
def test_every_element_is_the_one_below_the_element_above(num_actions):
    """Z_i[k+1] = sum_j Z_i[k](j) alpha_{j-1}, the view in which the paper pops."""
    rng = np.random.default_rng(0)
    Z = viz.depth_distribution(random_actions(rng, 13, num_actions))
    np.testing.assert_allclose(Z.sum(axis=-1), 1.0, atol=1e-12)
    alpha = Z[:, 0]
    below = np.vstack([alpha[:1], alpha[:-1]])
    np.testing.assert_allclose(Z[:, 1:], Z[:, :-1] @ below, atol=1e-12)


def test_agrees_with_a_simulation_of_random_stacks():
    rng = np.random.default_rng(1)
    actions = random_actions(rng, 8, 4)
    draws, counts = 20_000, np.zeros((4, 8))
    samples = np.stack([rng.choice(4, size=draws, p=row) for row in actions], axis=1)
    for choice in samples:
        stack = viz.hard_stacks(choice)[-1]
        for k in range(4):
            counts[k, stack[-1 - k] if k < len(stack) else 0] += 1
    Z = viz.depth_distribution(actions, depth=4)
    assert Z.shape == (8, 4, 8)
    np.testing.assert_allclose(Z[-1], counts / draws, atol=0.015)


@pytest.mark.parametrize("max_pops", [1, 3])
def test_top_is_stack_attention(max_pops):
    ops = pytest.importorskip("stackformer.ops")
    actions = random_actions(np.random.default_rng(2), 21, max_pops + 2)
    alpha = ops.stack_attention_weights(
        actions.astype(np.float32), implementation="reference", max_pops=max_pops
    )
    np.testing.assert_allclose(
        viz.depth_distribution(actions, depth=1)[:, 0], alpha, atol=1e-5
    )


def test_depth_beyond_the_string_is_the_bottom():
    Z = viz.depth_distribution([[1, 0, 0]] * 3, depth=9)
    assert Z.shape == (3, 9, 3)
    np.testing.assert_array_equal(Z[:, 2:].argmax(axis=-1), 0)


def test_text_of_a_string_of_actions():
    actions = np.eye(4)[[2, 0, 0, 0, 3, 1, 1]] * 0.7 + 0.075
    choice = viz.most_probable_actions(actions)
    assert viz.action_string(choice) == "+++2--"
    text = viz.describe_stack(["bottom", *"abcMMM"], actions, "Layer 2")
    lines = text.splitlines()
    assert lines[0].startswith("Layer 2: +++2--") and "digit" in lines[0]
    assert [line.split()[-1] for line in lines[5:]] == [
        "c3",
        "a1",
        "(empty)",
        "(empty)",
    ]
    assert "pop 2" in lines[6] and "0.77" in lines[6]


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.ones((2, 5, 3)) / 3, r"shape \(T, A\).*\(2, 5, 3\).*index the batch"),
        (np.ones((5, 2)) / 2, r"A >= 3"),
        (np.ones((5, 3)), "position 1 sums to 3"),
        (np.array([[0, 0, 1], [2.0, -1.0, 0.0]]), "not logits"),
        (np.array([[0, 0, 1], [np.nan, 0.5, 0.5]]), "finite"),
    ],
)
def test_wrong_actions_are_refused(actions, message):
    with pytest.raises(ValueError, match=message):
        viz.depth_distribution(actions)


def test_wrong_number_of_tokens_is_refused():
    with pytest.raises(ValueError, match=r"each of the 3 positions.*got 2"):
        viz.describe_stack(["bottom", "a"], np.ones((3, 3)) / 3)
    with pytest.raises(ValueError, match="at least 1, but got 0"):
        viz.depth_distribution(np.ones((3, 3)) / 3, depth=0)
