"""The chunkwise form against the reference."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_checks import (
    GOLDEN_LENGTHS,
    check_against,
    compute_golden,
    golden,
    random_inputs,
    run,
    value_and_gradients,
)

from stackformer import stack_attention, stack_attention_weights
from stackformer.ops.chunk_scan import plan
from stackformer.ops.chunk_tables import chunk_tables, depth_transfer, merge

CHUNK_SIZES = (4, 8, 16, 32, 64)
PAIRS = ((1, 4), (5, 4), (63, 8), (64, 16), (65, 32), (200, 64), (513, 16), (513, 32))


@pytest.mark.parametrize(("length", "chunk_size"), PAIRS)
def test_equals_the_reference(length, chunk_size):
    check_against(*golden(length), implementation="chunkwise", chunk_size=chunk_size)


@pytest.mark.slow
@pytest.mark.parametrize("chunk_size", CHUNK_SIZES)
@pytest.mark.parametrize("length", GOLDEN_LENGTHS)
def test_equals_the_reference_at_every_length_and_chunk(length, chunk_size):
    check_against(*golden(length), implementation="chunkwise", chunk_size=chunk_size)


@pytest.mark.parametrize(
    "length", [5, 63, *(pytest.param(n, marks=pytest.mark.slow) for n in (200, 513))]
)
def test_golden_file_holds_the_reference(length):
    expected, *inputs = golden(length)
    computed, *same_inputs = compute_golden(length)
    chex.assert_trees_all_equal(tuple(inputs), tuple(same_inputs))
    chex.assert_trees_all_close(expected, computed, atol=1e-12)


def test_bfloat16_differs_by_one_rounding():
    # Both accumulate in float32 and round the result to 8 bits: 2**-7, relative.
    logits, values = random_inputs(20, (2,))
    inputs = [x.astype(jnp.bfloat16) for x in (jax.nn.softmax(logits), values)]

    @functools.partial(jax.jit, static_argnums=0)
    def gradient(implementation, actions, values):
        def loss(actions, values):
            top = stack_attention(
                actions, values, implementation=implementation, chunk_size=None
            )
            return top.astype(jnp.float32).sum(), top

        return jax.grad(loss, (0, 1), has_aux=True)(actions, values)

    expected, got = (gradient(name, *inputs) for name in ("reference", "chunkwise"))
    chex.assert_trees_all_equal_shapes_and_dtypes(expected, got)
    assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(got))
    for wanted, found in zip(*map(jax.tree.leaves, (expected, got)), strict=True):
        wanted, found = (np.asarray(x, np.float32) for x in (wanted, found))
        scale = max(1.0, np.abs(wanted).max())
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2**-7 * scale)


def test_weights_equal_the_reference_and_rows_sum_to_one():
    logits, _ = random_inputs(30, (2,))
    actions = jax.nn.softmax(logits)
    alpha = stack_attention_weights(actions, implementation="chunkwise", chunk_size=8)
    expected = stack_attention_weights(actions, implementation="reference")
    np.testing.assert_allclose(alpha, expected, atol=1e-6)
    np.testing.assert_allclose(alpha.sum(-1), 1.0, atol=1e-6)


def test_probabilities_are_used_as_they_are():
    logits, values = random_inputs(20)
    actions = 0.9 * jax.nn.softmax(logits)

    @functools.partial(jax.jit, static_argnums=0)
    @functools.partial(jax.grad, argnums=(1, 2), has_aux=True)
    def gradient(implementation, actions, values):
        top = stack_attention(actions, values, implementation=implementation)
        return jnp.sin(top).sum(), top

    chex.assert_trees_all_close(
        gradient("chunkwise", actions, values),
        gradient("reference", actions, values),
        atol=1e-5,
    )


def test_vmap_of_grad_and_free_leading_axes():
    logits, values = random_inputs(21, (2, 3))
    options = (("implementation", "chunkwise"), ("chunk_size", 4))
    expected = value_and_gradients(logits, values, (("implementation", "reference"),))
    form = functools.partial(run, options=options)
    together = value_and_gradients(logits, values, options)
    apart = jax.jit(jax.vmap(jax.vmap(form)))(logits, values)
    chex.assert_trees_all_close(together, expected, atol=1e-5)
    chex.assert_trees_all_close(apart, expected, atol=1e-5)


def test_causal_to_the_last_bit():
    logits, values = random_inputs(40)
    actions = jax.nn.softmax(logits)
    attend = functools.partial(
        stack_attention, implementation="chunkwise", chunk_size=8
    )
    jacobian = jax.jit(jax.jacrev(lambda v: attend(actions, v).sum(-1)))(values).sum(-1)
    np.testing.assert_array_equal(jacobian[np.triu_indices(40, 1)], 0.0)


def test_second_call_compiles_nothing():
    logits, values = random_inputs(21, (2,))
    traces = []

    @jax.jit
    def form(logits, values):
        traces.append(1)
        return run(logits, values, (("implementation", "chunkwise"), ("chunk_size", 8)))

    form(logits, values)
    form(logits + 1.0, values * 2.0)
    assert len(traces) == 1 and form._cache_size() == 1


def gradient_memory(batch, length, features, **options):
    form = jax.jit(functools.partial(run, options=tuple(options.items())))
    shapes = [
        jax.ShapeDtypeStruct((batch, length, n), jnp.float32) for n in (3, features)
    ]
    return form.lower(*shapes).compile().memory_analysis().temp_size_in_bytes


def test_memory_of_value_and_gradient():
    temp = gradient_memory(8, 513, 64, implementation="chunkwise")
    assert temp <= 60 * 2**20


jitted_tables = jax.jit(chunk_tables, static_argnums=1)


def hard_tables(string):
    """The tables of a string of hard actions, one lane."""
    actions = jax.nn.one_hot(jnp.array(string), 3).T[:, :, None]
    return jitted_tables(actions, 0)


def test_tables_of_a_small_chunk():
    # pop, push, push: one old element goes, two new ones come (see README.md).
    tables = hard_tables([1, 0, 0])
    assert tables.moves[0, 2, 1] == 1.0  # moves[u, d]
    np.testing.assert_array_equal(tables.old[0].argmax(-1)[0], 1)
    np.testing.assert_array_equal(tables.new[0, 2], [0, 0, 1])
    np.testing.assert_array_equal(tables.pushed[0, :, 1], [0, 1, 0])
    # Old element 1 was under the popped one; now it lies under two new ones.
    assert depth_transfer(tables.moves)[0, 2, 1] == 1.0


def test_merging_neighbours_equals_the_longer_recurrence():
    actions = jax.nn.softmax(jax.random.normal(jax.random.key(0), (3, 6, 5)), axis=0)
    left, right = (jitted_tables(actions[:, i : i + 3], 0) for i in (0, 3))
    chex.assert_trees_all_close(
        jax.jit(merge)(left, right), jitted_tables(actions, 0), atol=1e-6
    )


@pytest.mark.parametrize("chunks", [1, 2, 7, 32])
@pytest.mark.parametrize("limit", [None, 1, 4])
def test_plan_covers_every_chunk_with_room_enough(chunks, limit):
    phases = plan(chunks, limit)
    covered = [c for phase in phases for c in range(phase.start, phase.stop)]
    assert covered == list(range(chunks))
    for phase in phases:
        for c in range(phase.start, phase.stop + 1):
            assert phase.blocks + 1 >= min(c, chunks - c, limit or chunks)
