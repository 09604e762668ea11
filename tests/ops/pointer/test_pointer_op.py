"""The stack with a pointer: chunks against plain loops, and against a real stack."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackformer.ops import stack_attention
from stackformer.ops.pointer import init_pointer_state, pointer_stack, pointer_step
from stackformer.ops.pointer.reference import pointer_stack_reference

LENGTH = 11


def strings(seed=0, length=LENGTH, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(seed), 2)
    actions = jax.nn.softmax(2.0 * jax.random.normal(keys[0], (3, length, 3)))
    return actions.astype(dtype), jax.random.normal(keys[1], (3, length, 5), dtype)


def by_reference(actions, values, *, max_depth=None, segment_ids=None):
    length = values.shape[1]
    starts = jnp.zeros(values.shape[:2], bool).at[:, 0].set(True)
    if segment_ids is not None:
        changes = segment_ids[:, 1:] != segment_ids[:, :-1]
        starts = starts.at[:, 1:].set(changes)
    run = jax.vmap(
        lambda a, v, s: pointer_stack_reference(
            a, v, max_depth=min(max_depth or length, max(length - 1, 1)), starts=s
        )
    )
    return run(actions, values, starts)


SEGMENTS = jnp.array([[0] * 1 + [4] * 4 + [5] * 6, [1] * 11, [2, 3] * 5 + [0]])


@pytest.mark.parametrize(
    ("chunk_size", "max_depth"), [(1, None), (4, None), (32, None), (4, 1), (4, 3)]
)
@pytest.mark.parametrize("segment_ids", [None, SEGMENTS], ids=["one", "several"])
def test_chunks_equal_the_loops_in_every_gradient(chunk_size, max_depth, segment_ids):
    options = dict(max_depth=max_depth, segment_ids=segment_ids)

    def run(attend, **more):
        def loss(actions, values):
            top = attend(actions, values, **options, **more)
            return jnp.sin(3.0 * top).sum(), top

        return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(*strings())

    (_, top), gradients = run(pointer_stack, chunk_size=chunk_size)
    (_, expected), wanted = run(by_reference)
    np.testing.assert_allclose(top, expected, atol=1e-5)
    for got, want in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from([0, 0, 1, 2]), min_size=LENGTH, max_size=LENGTH))
def test_certain_actions_make_the_stack_of_the_paper(chosen):
    actions = jax.nn.one_hot(jnp.array(chosen), 3)
    values = jax.random.normal(jax.random.key(3), (LENGTH, 4))
    expected = stack_attention(actions, values)
    got = pointer_stack(actions, values, chunk_size=4)
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 17])
def test_steps_equal_the_whole(length):
    actions, values = strings(1, length)
    state = init_pointer_state((3,), max(length - 1, 1), 5)
    whole = pointer_stack(actions, values)
    step = jax.jit(pointer_step)
    for index in range(length):
        state, top = step(state, actions[:, index], values[:, index], index)
        np.testing.assert_allclose(top, whole[:, index], atol=1e-5)


# No string begins where a piece does.
UNCUT = SEGMENTS.at[2].set(jnp.array([2, 2, 3, 3, 3, 3, 2, 2, 3, 3, 0]))


@pytest.mark.parametrize("segment_ids", [None, UNCUT], ids=["one", "several"])
@pytest.mark.parametrize(
    ("edges", "options"),
    [
        ((0, 3, 7, 11), {}),
        ((0, 7, 11), {"chunk_size": 3}),
        ((0, 3, 9, 11), {"max_depth": 3, "chunk_size": 4}),
        ((0, 7, 11), {"max_depth": 20}),
    ],
)
def test_pieces_equal_the_whole(edges, options, segment_ids):
    def pieces(actions, values, edges):
        tops, state = [], None
        for a, b in itertools.pairwise(edges):
            top, state = pointer_stack(
                actions[:, a:b],
                values[:, a:b],
                segment_ids=None if segment_ids is None else segment_ids[:, a:b],
                initial_state=state,
                return_state=True,
                **options,
            )
            tops.append(top)
        return jnp.concatenate(tops, axis=1), state

    def run(edges):
        def loss(actions, values):
            top, state = pieces(actions, values, edges)
            return jnp.sin(3.0 * top).sum(), (top, state)

        return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(*strings())

    gradients, (top, state) = run(edges)
    expected, (wanted, last) = run((0, LENGTH))
    np.testing.assert_allclose(top, wanted, atol=1e-5)
    for got, want in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)
    np.testing.assert_allclose(state.pointer, last.pointer, atol=1e-5)
    rows = min(state.memory.shape[1], last.memory.shape[1])
    np.testing.assert_allclose(state.memory[:, :rows], last.memory[:, :rows], atol=1e-5)
    assert "max_depth" not in options or rows == options["max_depth"] + 1


def test_half_precision_and_leading_axes():
    actions, values = strings(dtype=jnp.bfloat16)
    got = pointer_stack(actions[None], values[None])[0]
    assert got.dtype == jnp.bfloat16
    wide = [x.astype(jnp.float32) for x in (actions, values)]
    np.testing.assert_allclose(got.astype(jnp.float32), by_reference(*wide), atol=0.05)
    np.testing.assert_allclose(
        pointer_stack(wide[0][0], wide[1][0]), pointer_stack(*wide)[0], atol=1e-6
    )


def test_work_is_linear_where_the_depth_is_bounded():
    """What is outside the loop over chunks grows with T, a chunk's work does not."""
    run = jax.jit(lambda *x: pointer_stack(*x, max_depth=8))

    def shapes(length):
        return [jax.ShapeDtypeStruct((2, length, n), jnp.float32) for n in (3, 8)]

    def flops(length):  # XLA counts the body of the loop once
        return run.lower(*shapes(length)).compile().cost_analysis()["flops"]

    def chunk(length):
        """Numbers that the loop over chunks makes in one turn."""
        (loop,) = [
            eqn
            for eqn in loops(jax.make_jaxpr(run)(*shapes(length)).jaxpr)
            if eqn.params["length"] == length // 32
        ]
        body = loop.params["jaxpr"].jaxpr
        return sum(var.aval.size for eqn in body.eqns for var in eqn.outvars)

    def loops(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "scan":
                yield eqn
            for inner in jax.tree.leaves(list(eqn.params.values())):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from loops(inner)

    assert flops(1024) < 2.1 * flops(512)
    assert chunk(1024) == chunk(512) > 0


def test_wrong_use_is_named():
    actions, values = strings()
    with pytest.raises(ValueError, match="`values` shape should be"):
        pointer_stack(actions, values[:, 1:])
    with pytest.raises(ValueError, match=r"`actions` shape should be \(..., T, 3\)"):
        pointer_stack(actions[..., :2], values)
    with pytest.raises(ValueError, match="`max_depth` should be an integer"):
        pointer_stack(actions, values, max_depth=0)
    with pytest.raises(ValueError, match="`segment_ids` shape should be"):
        pointer_stack(actions, values, segment_ids=jnp.zeros(4, int))
    state = init_pointer_state((3,), 4, 5)
    with pytest.raises(ValueError, match=r"`initial_state.memory` shape .* \(3, H"):
        pointer_stack(actions, values[..., :2], initial_state=state)
    with pytest.raises(ValueError, match=r"`initial_state` .* `max_depth` \(3\)"):
        pointer_stack(actions, values, initial_state=state, max_depth=3)
