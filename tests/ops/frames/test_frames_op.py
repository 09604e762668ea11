"""The stack of frames: every form against the plain loops, and against a program."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackformer.ops.frames import (
    FORMS,
    frame_members,
    frame_step,
    init_frame_state,
    resize_frame_state,
    stack_of_frames,
)
from stackformer.ops.frames.api import HARD

PUSH, POP, NOOP = 0, 1, 2


def network(features, beside, seed=0):
    """A small F with weights, so that gradients reach it."""
    keys = jax.random.split(jax.random.key(seed), 3)
    return (
        jax.random.normal(keys[0], (features, features)),
        jax.random.normal(keys[1], (beside, features)),
        jax.random.normal(keys[2], (4, features)),
    )


def close_with(weights):
    def close(frame, beside):
        mixed = jnp.einsum("bkd,kd->bd", frame, weights[2][: frame.shape[1]])
        return jnp.tanh(mixed @ weights[0] + beside @ weights[1])

    return close


def inputs(batch, length, features, *, seed=0, hard=False):
    keys = jax.random.split(jax.random.key(seed), 3)
    logits = 2.0 * jax.random.normal(keys[0], (batch, length, 3))
    actions = jax.nn.softmax(logits)
    if hard:
        actions = jax.nn.one_hot(jnp.argmax(logits, -1), 3)
    items = jax.random.normal(keys[1], (batch, length, features))
    return actions, items, jax.random.normal(keys[2], (batch, length, 2))


def program(actions, *, num_items):
    """Frames as a program with lists: an item is its position, a value a tuple."""
    frame, stack, frames = [], [], []
    for i, action in enumerate(actions):
        if i and action == PUSH:
            stack.append(frame)
            frame = []
        elif i and action == POP and stack:
            frame = [*stack.pop(), i]
        else:
            frame = [*frame, i]
        frames.append(frame[-num_items:])
    return frames


@functools.partial(jax.jit, static_argnums=(0, 1))
@functools.partial(jax.value_and_grad, argnums=(2, 3, 4, 5), has_aux=True)
def value_and_gradients(implementation, num_items, actions, items, beside, weights):
    """The frames, and the gradients of their product with fixed random numbers."""
    frames = stack_of_frames(
        actions,
        items,
        close_with(weights),
        num_items=num_items,
        closing=beside,
        implementation=implementation,
    )
    return jnp.sum(frames * jax.random.normal(jax.random.key(9), frames.shape)), frames


@pytest.mark.parametrize("implementation", [f for f in FORMS if f != "reference"])
@pytest.mark.parametrize(
    "batch, length, features, num_items", [(2, 1, 3, 2), (3, 13, 2, 3)]
)
def test_every_form_equals_the_reference(
    implementation, batch, length, features, num_items
):
    hard = implementation in HARD
    actions, items, beside = inputs(batch, length, features, hard=hard)
    arrays = (actions, items, beside, network(features, 2))
    (_, frames), grads = value_and_gradients(implementation, num_items, *arrays)
    # One program for all forms: the loops take long to compile.
    (_, expected), expected_grads = value_and_gradients("reference", num_items, *arrays)
    np.testing.assert_allclose(frames, expected, atol=1e-5)
    if hard:
        np.testing.assert_array_equal(grads[0], 0.0)
    start = 1 if hard else 0
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=2e-4),
        grads[start:],
        expected_grads[start:],
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 2), min_size=12, max_size=12), st.sampled_from([1, 3]))
def test_certain_actions_are_a_program_with_lists(actions, num_items):
    one_hot = jax.nn.one_hot(jnp.array(actions), 3)
    members = frame_members(one_hot, num_items=num_items)
    expected = program(actions, num_items=num_items)
    found = [[int(i) for i in row if i >= 0] for row in np.asarray(members.ids)]
    assert found == expected
    # "Collect": with positions as items, and F that returns the position of the pop,
    # the numbers are those of the program too.
    eye = jnp.eye(12)
    frames = _collect(one_hot, eye, num_items)
    positions = np.asarray(jnp.einsum("tkd,d->tk", frames, jnp.arange(12.0)))
    there = np.asarray(frames.sum(-1))
    for row, (where, present) in enumerate(zip(positions, there, strict=True)):
        assert list(where[present > 0]) == expected[row]


@functools.partial(jax.jit, static_argnums=2)
def _collect(actions, items, num_items):
    return stack_of_frames(actions, items, lambda _, at: at, num_items=num_items)


def test_a_pop_on_the_empty_stack_is_a_noop():
    pops = jax.nn.one_hot(jnp.array([NOOP, POP, POP]), 3)
    noops = jax.nn.one_hot(jnp.array([NOOP, NOOP, NOOP]), 3)
    items = jnp.arange(6.0).reshape(3, 2)
    for form in FORMS:
        run = functools.partial(
            stack_of_frames,
            items=items,
            close=lambda frame, _: frame.sum(1) + 7.0,
            num_items=3,
            implementation=form,
        )
        np.testing.assert_array_equal(run(pops), run(noops))


@pytest.mark.parametrize("implementation", FORMS)
def test_nothing_leaks_between_brackets(implementation):
    # <bos> 1 ( 2 3 ) 4: the value of the bracket hears of 2 and 3 alone.
    actions = jax.nn.one_hot(jnp.array([2, 2, 0, 2, 2, 1, 2]), 3)
    items = jax.random.normal(jax.random.key(0), (7, 2))
    weights = network(2, 2)

    def value(items):
        frames = stack_of_frames(
            actions,
            items,
            close_with(weights),
            num_items=4,
            closing=jnp.zeros((7, 2)),
            implementation=implementation,
        )
        return frames[5, -1].sum()

    heard = np.abs(jax.grad(value)(items)).sum(-1) > 0
    assert heard.tolist() == [False, False, False, True, True, False, False]


@pytest.mark.parametrize("implementation", FORMS)
def test_segments_are_strings_of_their_own(implementation):
    cuts = [0, 5, 6, 14]
    segment_ids = np.repeat(np.arange(3), np.diff(cuts))[None]
    hard = implementation in HARD
    actions, items, beside = inputs(1, 14, 3, seed=3, hard=hard)
    run = functools.partial(
        stack_of_frames,
        close=close_with(network(3, 2)),
        num_items=4,
        implementation=implementation,
    )
    packed = run(actions, items, closing=beside, segment_ids=jnp.asarray(segment_ids))
    for a, b in itertools.pairwise(cuts):
        alone = run(actions[:, a:b], items[:, a:b], closing=beside[:, a:b])
        np.testing.assert_allclose(packed[:, a:b], alone, atol=1e-5)


def test_steps_equal_the_whole():
    actions, items, beside = inputs(2, 9, 3)
    close = close_with(network(3, 2))
    whole = stack_of_frames(actions, items, close, num_items=2, closing=beside)
    state = init_frame_state((2,), 2, 3, depth=5)
    for i in range(9):
        moves = actions[:, i] if i else jnp.tile(jnp.array([[0.0, 0.0, 1.0]]), (2, 1))
        state, frame = frame_step(state, moves, items[:, i], beside[:, i], close)
        np.testing.assert_allclose(frame, whole[:, i], atol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("edges", [(0, 1, 4, 9), (0, 7, 9)], ids=str)
def test_pieces_equal_the_whole(edges, packed):
    arrays = inputs(2, 9, 3)
    ids = jnp.array([[0, 0, 0, 0, 0, 1, 2, 2, 2], [0] * 9]) if packed else None

    def loss(edges, implementation, *arguments):
        *arrays, weights = arguments
        frames, state = [], None
        for a, b in itertools.pairwise(edges):
            actions, items, beside = (x[:, a:b] for x in arrays)
            result = stack_of_frames(
                actions,
                items,
                close_with(weights),
                num_items=2,
                closing=beside,
                segment_ids=None if ids is None else ids[:, a:b],
                initial_state=state,
                return_state=implementation is None,
                implementation=implementation,
            )
            frame, state = result if implementation is None else (result, None)
            frames.append(frame)
        frames = jnp.concatenate(frames, axis=1)
        return jnp.sum(jnp.sin(3.0 * frames)), (frames, state)

    def run(edges, implementation=None):
        function = functools.partial(loss, edges, implementation)
        gradient = jax.grad(function, (0, 1, 2, 3), has_aux=True)
        return jax.jit(gradient)(*arrays, network(3, 2))

    gradients, (frames, state) = run(edges)
    expected, (wanted, _) = run((0, 9), "reference")
    np.testing.assert_allclose(frames, wanted, atol=1e-5)
    chex.assert_trees_all_close(gradients, expected, atol=1e-4)
    _, (_, last) = run((0, 9))
    last, state = (resize_frame_state(x, 8) for x in (last, state))
    chex.assert_trees_all_close(state, last, atol=1e-5)


def test_a_state_needs_the_recurrent_form():
    actions, items, beside = inputs(2, 5, 3)
    run = functools.partial(
        stack_of_frames,
        actions,
        items,
        close_with(network(3, 2)),
        num_items=2,
        closing=beside,
    )
    with pytest.raises(ValueError, match="'recurrent' or None with a state, but got"):
        run(return_state=True, implementation="by_pops")
    with pytest.raises(ValueError, match=r"`initial_state.frame` shape should be \(2"):
        run(initial_state=init_frame_state((2,), 3, 3, depth=4))


def test_few_levels_leave_the_outer_frames_for_later():
    # ( ( 1 ) ): the inner bracket needs one round, the outer two.
    actions = jax.nn.one_hot(jnp.array([2, 0, 0, 2, 1, 1]), 3)[None]
    items = jnp.arange(1.0, 7.0).reshape(1, 6, 1)
    from stackformer.ops.frames.by_members import frames_by_levels

    def run(levels):
        return frames_by_levels(
            actions,
            items,
            items,
            lambda frame, _: 10.0 * frame.sum(1),
            num_items=2,
            starts=jnp.zeros((1, 6), bool).at[:, 0].set(True),
            levels=levels,
        )

    assert run(1)[0, 4, -1, 0] == 40.0 and run(1)[0, 5, -1, 0] != 400.0
    assert run(2)[0, 5, -1, 0] == 400.0


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"num_items": 0}, "num_items"),
        ({"implementation": "fast"}, "implementation"),
        ({"segment_ids": jnp.zeros((2, 4), int)}, "segment_ids"),
        ({"actions": jnp.ones((2, 5, 4))}, "actions"),
    ],
)
def test_bad_arguments(changes, words):
    actions, items, _ = inputs(2, 5, 3)
    arguments = {"actions": actions, "items": items, "num_items": 2, **changes}
    with pytest.raises(ValueError, match=f"`{words}`"):
        stack_of_frames(close=lambda frame, _: frame[:, -1], **arguments)
