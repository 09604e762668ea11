"""Several strings in a row, and long strings in pieces."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_checks import forms_that_take, packing_forms, random_inputs

from stackformer import ops, stack_attention, stack_attention_weights
from stackformer.ops.stack_attention.forms import choose

LENGTH = 14
FEATURES = 3
cuts = st.sets(st.integers(1, LENGTH - 1), max_size=LENGTH - 1)
stateful_forms = pytest.mark.parametrize(
    "name", forms_that_take(return_state=True, initial_state=True)
)


def numbered(cuts, length=LENGTH):
    """Segment ids of strings that begin at 0 and at these positions."""
    starts = np.isin(np.arange(length), list(cuts))
    return np.cumsum(starts).astype(np.int32)


@functools.partial(jax.jit, static_argnames="options")
def value_and_gradients(actions, values, counted, segment_ids, options):
    """Tops, and gradients at the probabilities themselves, of the counted positions."""

    def loss(actions, values):
        top = stack_attention(actions, values, segment_ids=segment_ids, **dict(options))
        return jnp.sum(jnp.sin(3.0 * top) * counted[:, None]), top

    gradient = jax.grad(loss, argnums=(0, 1), has_aux=True)
    (d_actions, d_values), top = gradient(actions, values)
    return {"top": top, "d_actions": d_actions, "d_values": d_values}


def one_by_one(actions, values, cuts, options):
    """The strings alone, each padded with no-ops to one compiled length."""
    edges = [0, *sorted(cuts), len(actions)]
    noop = np.eye(actions.shape[1], dtype=np.float32)[2]
    found = []
    for first, last in itertools.pairwise(edges):
        size = last - first
        alone = np.tile(noop, (len(actions), 1))
        alone[:size] = actions[first:last]
        padded = np.zeros_like(values)
        padded[:size] = values[first:last]
        counted = (np.arange(len(actions)) < size).astype(np.float32)
        parts = value_and_gradients(alone, padded, counted, None, options)
        found.append({name: x[:size] for name, x in parts.items()})
    return jax.tree.map(lambda *parts: np.concatenate(parts), *found)


def check_packing(form, cuts, *, unnormalised=1.0, expected_of=None):
    max_pops = form.get("max_pops", 1)
    logits, values = random_inputs(LENGTH, features=FEATURES, actions=max_pops + 2)
    actions = np.asarray(unnormalised * jax.nn.softmax(logits))
    options = tuple(form.items())
    expected = one_by_one(actions, np.asarray(values), cuts, expected_of or options)
    ones = np.ones(LENGTH, np.float32)
    got = value_and_gradients(actions, values, ones, numbered(cuts), options)
    chex.assert_trees_all_close(got, expected, atol=1e-5)


@packing_forms
@settings(deadline=None, max_examples=12)
@given(cuts=cuts)
@example(cuts=set(range(1, LENGTH)))  # nothing but strings of length 1
@example(cuts={5, 6, 13})  # chunks of 4 begin at 1, 5, 9, 13
def test_packed_strings_equal_the_strings_one_by_one(form, cuts):
    check_packing(form, cuts)


@packing_forms
def test_packing_uses_probabilities_as_they_are(form):
    check_packing(form, {3, 4, 10}, unnormalised=0.9)


@pytest.mark.parametrize("name", forms_that_take(max_depth=3, segment_ids=True))
@settings(deadline=None, max_examples=8)
@given(cuts=cuts)
def test_packing_with_bounded_depth(name, cuts):
    recurrent = (("implementation", "recurrent"), ("max_depth", 3))
    form = {"implementation": name, "max_depth": 3}
    check_packing(form, cuts, expected_of=recurrent)


@pytest.mark.parametrize("name", forms_that_take(max_pops=2, segment_ids=True))
@settings(deadline=None, max_examples=8)
@given(cuts=cuts)
def test_packing_with_several_pops(name, cuts):
    check_packing({"implementation": name, "max_pops": 2}, cuts)


@packing_forms
def test_alpha_of_packed_strings_has_a_block_for_each(form):
    logits, values = random_inputs(LENGTH, (2,), features=FEATURES)
    actions = jax.nn.softmax(logits)
    ids = jnp.asarray(np.stack([numbered({4, 9}), numbered({1})]))
    packed = {"segment_ids": ids, **form}
    alpha = jax.jit(lambda a: stack_attention_weights(a, **packed))(actions)
    other = np.asarray(ids[:, :, None] != ids[:, None, :])
    np.testing.assert_allclose(np.asarray(alpha)[other], 0.0, atol=1e-7)
    top = jax.jit(lambda a, v: stack_attention(a, v, **packed))(actions, values)
    np.testing.assert_allclose(alpha @ values, top, atol=1e-5)


def test_segment_ids_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"`segment_ids` shape should be \(4,\)"):
        stack_attention_weights(jnp.ones((4, 3)) / 3, segment_ids=jnp.zeros(3, int))


@functools.partial(jax.jit, static_argnames=("edges", "options"))
def in_pieces(logits, values, segment_ids, edges, options):
    """Tops, gradients and the last state of a string read piece by piece."""

    def loss(logits, values):
        actions = jax.nn.softmax(logits)
        tops, state = [], None
        for first, last in itertools.pairwise(edges):
            ids = None if segment_ids is None else segment_ids[..., first:last]
            top, state = stack_attention(
                actions[..., first:last, :],
                values[..., first:last, :],
                segment_ids=ids,
                initial_state=state,
                return_state=True,
                **dict(options),
            )
            tops.append(top)
        top = jnp.concatenate(tops, -2)
        return jnp.sum(jnp.sin(3.0 * top)), (top, state)

    gradients, (top, state) = jax.grad(loss, (0, 1), has_aux=True)(logits, values)
    return {"top": top, "gradients": gradients}, state


@stateful_forms
@pytest.mark.parametrize(
    ("options", "edges", "packed"),
    [
        ({}, (0, 1, 9, 23), False),
        ({}, (0, 15, 23), True),
        ({"chunk_size": 4}, (0, 9, 23), True),
        ({"max_depth": 4}, (0, 9, 23), False),
        ({"max_depth": 6, "chunk_size": 4}, (0, 14, 23), True),
        ({"max_pops": 2}, (0, 8, 23), True),
    ],
    ids=str,
)
def test_pieces_equal_the_whole(name, options, edges, packed):
    options = {"implementation": name, **options}
    if name not in forms_that_take(**{k: v for k, v in options.items() if k[0] != "i"}):
        pytest.skip("the form refuses these options")
    pops = options.get("max_pops", 1)
    logits, values = random_inputs(23, (2,), features=FEATURES, actions=2 + pops)
    ids = jnp.asarray(np.stack([numbered({7, 20}, 23), numbered({}, 23)]))
    ids = ids if packed else None
    whole = {k: v for k, v in options.items() if k != "chunk_size"}
    whole["implementation"] = "recurrent"
    expected, last = in_pieces(logits, values, ids, (0, 23), tuple(whole.items()))
    got, state = in_pieces(logits, values, ids, edges, tuple(options.items()))
    chex.assert_trees_all_close(got, expected, atol=1e-5)
    depth = min(last.shape[-2], state.shape[-2]) - 1
    np.testing.assert_allclose(
        ops.resize_stack_state(state, depth),
        ops.resize_stack_state(last, depth),
        atol=1e-5,
    )
    if "max_depth" in options:
        assert state.shape == (2, options["max_depth"] + 1, FEATURES)


@stateful_forms
def test_a_state_is_what_pushes_put_there_and_pops_bring_back(name):
    """The reference, which has no states, pushes the state and pops the result."""
    depth = 5
    logits, values = random_inputs(7, features=FEATURES)
    actions = jax.nn.softmax(logits)
    initial = jax.random.normal(jax.random.key(7), (depth + 1, FEATURES))
    options = {"return_state": True, "implementation": name}
    attend = jax.jit(functools.partial(stack_attention, **options))
    top, state = attend(actions, values, initial_state=initial)
    assert state.shape == (depth + 7 + 1, FEATURES)
    push, pop = jnp.eye(3)[:1], jnp.eye(3)[1:2]
    pops = state.shape[0] - 1
    around = jnp.concatenate(
        [jnp.repeat(push, 1 + depth, 0), actions, jnp.repeat(pop, pops, 0)]
    )
    pushed = jnp.concatenate([initial[::-1], values, jnp.zeros((pops, FEATURES))])
    expected = stack_attention(around, pushed, implementation="reference")
    np.testing.assert_allclose(top, expected[1 + depth :][:7], atol=1e-5)
    np.testing.assert_allclose(state, expected[depth + 7 :], atol=1e-5)


def test_states_choose_a_form_that_has_them():
    logits, values = random_inputs(6, features=FEATURES)
    actions = jax.nn.softmax(logits)
    assert choose(6, 3, return_state=True, backend="cpu").implementation == "chunkwise"
    stack_attention(actions, values, return_state=True)
    for name in ("reference", "scan"):
        with pytest.raises(ValueError, match=f"`return_state` .* with .*{name!r}; use"):
            stack_attention(actions, values, return_state=True, implementation=name)
    state = ops.init_stack_state(jnp.zeros(FEATURES), 4)
    with pytest.raises(ValueError, match="`initial_state` should be None, but got a"):
        stack_attention(actions, values, initial_state=state, implementation="scan")
    with pytest.raises(
        ValueError, match=r"`initial_state` shape should be \(H \+ 1, 3"
    ):
        stack_attention(actions, values, initial_state=state[:, :2])
