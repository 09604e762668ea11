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
    run,
)

from stackformer.ops.stack_attention.chunkwise.scan import plan
from stackformer.ops.stack_attention.chunkwise.tables import (
    chunk_tables,
    depth_transfer,
    merge,
)

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


@pytest.mark.usefixtures("compiled_as_users_do")
@pytest.mark.parametrize(
    "length", [5, 63, *(pytest.param(n, marks=pytest.mark.slow) for n in (200, 513))]
)
def test_golden_file_holds_the_reference(length):
    expected, *inputs = golden(length)
    computed, *same_inputs = compute_golden(length)
    chex.assert_trees_all_equal(tuple(inputs), tuple(same_inputs))
    chex.assert_trees_all_close(expected, computed, atol=1e-12)


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
