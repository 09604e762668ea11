"""The samplers draw what the benchmark draws.

Keys and seeds are fixed, so that every p-value here is a constant: the tests cannot
fail by chance, and a wrong distribution gives p-values far below the limit.
"""

import functools
import itertools
import random
from collections import Counter

import jax
import numpy as np
import pytest
import slow_tasks
from scipy import stats

from stackformer import tasks
from stackformer.tasks.expressions import value_probabilities

LIMIT = 1e-3
WIDTH = 100
BATCH = 4096


@functools.cache
def sampler(name):
    task = tasks.get(name)
    return jax.jit(lambda key, n: task.sample(key, BATCH, n, max_length=WIDTH))


@functools.cache
def drawn(name, length, batches=1):
    """Readable (input, answer) pairs, as lists of symbols."""
    task = tasks.get(name)
    pairs = []
    for seed in range(batches):
        sample = sampler(name)(jax.random.key(seed), length)
        for x, y in task.decode_sample(sample):
            symbols = [task.input_symbols[i] for i in task.encode(x)]
            pairs.append((symbols, y))
    return pairs


def fits(observed, expected):
    """p-value of counts against probabilities by category."""
    assert set(observed) <= set(expected)
    total = sum(observed.values())
    counts = [observed.get(category, 0) for category in expected]
    probabilities = np.asarray(list(expected.values()), float)
    frequencies = probabilities / probabilities.sum() * total
    return stats.chisquare(counts, frequencies).pvalue


def uniform(categories):
    return dict.fromkeys(categories, 1)


def same(first, second):
    """p-value of two counts having one distribution; rare categories are joined."""
    categories = [c for c in {*first, *second} if first[c] + second[c] >= 20]
    table = [[counts[c] for c in categories] for counts in (first, second)]
    for row, counts in zip(table, (first, second), strict=True):
        row.append(sum(counts.values()) - sum(row))
    table = [column for column in zip(*table, strict=True) if sum(column)]
    return stats.chi2_contingency(np.transpose(table)).pvalue


def left_length(expression):
    """The length of the left part of "( left op right )"."""
    depth = 0
    for i in range(1, len(expression)):
        symbol = expression[i]
        depth += {"(": 1, ")": -1}.get(symbol, 0)
        is_sign = expression[i - 1] in ("(", "+", "-", "*")
        if depth == 0 and symbol in ("+", "-", "*") and not is_sign:
            return i - 1
    raise AssertionError(expression)


def test_reverse_string_is_uniform():
    counts = Counter("".join(x) for x, _ in drawn("RS", 5))
    assert (
        fits(counts, uniform(map("".join, itertools.product("ab", repeat=5)))) > LIMIT
    )


def test_stack_manipulation():
    length = 12
    pairs = drawn("SM", length)
    stacks = Counter(sum(s in "ab" for s in x) for x, _ in pairs)
    assert fits(stacks, uniform(range(1, length))) > LIMIT
    words = Counter(s for x, _ in pairs for s in x)
    instructions = {s: words[s] for s in ("pop", "push_a", "push_b")}
    assert fits(instructions, uniform(instructions)) > LIMIT
    assert fits({s: words[s] for s in "ab"}, uniform("ab")) > LIMIT

    rng = random.Random(0)
    python = [slow_tasks.grow_instructions(rng, length) for _ in range(BATCH)]
    answers = Counter(len(slow_tasks.stack_manipulation(x)) for x in python)
    assert set(answers) == {length + 1}
    ends = Counter(slow_tasks.stack_manipulation(x).index("$") for x in python)
    assert same(Counter(len(y) - 1 for _, y in pairs), ends) > LIMIT


def test_all_expressions_of_length_6_are_equally_likely():
    forms = ["({0}{2}-{1})", "(-{0}{2}{1})"]
    every = {
        form.format(a, b, operator)
        for form in forms
        for a, b in itertools.product(range(5), repeat=2)
        for operator in "+-*"
    }
    counts = Counter("".join(x) for x, _ in drawn("MA", 6, batches=2))
    assert fits(counts, uniform(every)) > LIMIT


def test_expressions_split_uniformly():
    length = 20
    counts = Counter(left_length(x) for x, _ in drawn("MA", length))
    assert fits(counts, uniform(range(1, length - 3))) > LIMIT


@pytest.mark.parametrize("length", [13, 41])
def test_expressions_are_those_of_a_python_generator(length):
    rng = random.Random(length)
    python = [slow_tasks.grow_expression(rng, length, "+-*") for _ in range(BATCH)]
    ours = [("".join(x), y) for x, y in drawn("MA", length)]
    for measure in (
        lambda x: x.count("*"),
        lambda x: x.count("+"),
        lambda x: x.count("("),
        lambda x: x[length // 2],
        lambda x: eval(x) % 5,
    ):
        theirs, mine = map(measure, python), (measure(x) for x, _ in ours)
        assert same(Counter(theirs), Counter(mine)) > LIMIT
    answers = dict(enumerate(value_probabilities(5, length)[length]))
    assert fits(Counter(int(y) for _, y in ours), answers) > LIMIT


def test_the_answer_zero_of_ma_has_probability_0_299():
    exact = value_probabilities(5, 100)[42:, 0]
    assert abs(exact.mean() - 0.299) < 5e-4
    zeros = [
        float((sampler("MA")(jax.random.key(n), n).outputs == 0).mean())
        for n in range(42, 101)
    ]
    deviation = (0.299 * 0.701 / (BATCH * len(zeros))) ** 0.5
    assert abs(np.mean(zeros) - 0.299) < 3.5 * deviation


@pytest.mark.parametrize("length", [8, 30])
def test_equations_are_those_of_a_python_generator(length):
    rng = random.Random(length)
    python = [slow_tasks.grow_equation(rng, length) for _ in range(BATCH)]
    pairs = drawn("SE", length)
    ours = ["".join(x) for x, _ in pairs]
    for measure in (
        lambda x: x.index("z"),
        lambda x: x.count("+"),
        lambda x: x.count("-"),
        lambda x: x.count("("),
        lambda x: x[-1],
        lambda x: x[:3] if length == 8 else x[length // 2],
    ):
        assert same(Counter(map(measure, python)), Counter(map(measure, ours))) > LIMIT
    assert fits(Counter(y for _, y in pairs), uniform("01234")) > LIMIT


def test_short_equations_are_the_benchmarks():
    assert Counter("".join(x) + y for x, y in drawn("SE", 1)) == {"00": BATCH}
    assert Counter("".join(x) + y for x, y in drawn("SE", 2)) == {"000": BATCH}
    counts = Counter("".join(x) for x, _ in drawn("SE", 3))
    assert fits(counts, uniform(f"z={d}" for d in range(5))) > LIMIT


def test_binary_numbers_are_uniform_over_nonzero_ones():
    counts = Counter("".join(x) for x, _ in drawn("compute_sqrt", 4))
    assert fits(counts, uniform(f"{i:04b}" for i in range(1, 16))) > LIMIT
    expected = {
        f"{a:0{k}b}+{b:0{5 - k}b}": 1 / ((2**k - 1) * (2 ** (5 - k) - 1))
        for k in range(1, 5)
        for a in range(1, 2**k)
        for b in range(1, 2 ** (5 - k))
    }
    counts = Counter("".join(x) for x, _ in drawn("binary_addition", 6))
    assert fits(counts, expected) > LIMIT
    for name in ("binary_addition", "binary_multiplication"):
        assert Counter("".join(x) for x, _ in drawn(name, 1)) == {"0": BATCH}
        counts = Counter("".join(x) for x, _ in drawn(name, 2))
        assert fits(counts, uniform(["00", "10", "01"])) > LIMIT


def test_missing_symbols_are_uniform():
    counts = Counter(x.index("?") for x, _ in drawn("missing_duplicate_string", 9))
    assert fits(counts, uniform(range(8))) > LIMIT
    strings = Counter(
        "".join(x).replace("?", y)[:4] for x, y in drawn("missing_duplicate_string", 9)
    )
    assert fits(strings, uniform(f"{i:04b}" for i in range(16))) > LIMIT


def test_modular_arithmetic_symbols_are_uniform():
    pairs = drawn("modular_arithmetic", 7)
    digits = Counter(s for x, _ in pairs for s in x[0::2])
    operators = Counter(s for x, _ in pairs for s in x[1::2])
    assert fits(digits, uniform("01234")) > LIMIT
    assert fits(operators, uniform("+-*")) > LIMIT


@pytest.mark.parametrize("name", ["SM", "MA", "binary_multiplication", "compute_sqrt"])
def test_chance_is_the_accuracy_of_the_best_constant_answer(name):
    task = tasks.get(name)
    best = []
    for length in range(41, 101, 4 if name == "SM" else 2):
        sample = sampler(name)(jax.random.key(length), length)
        outputs, mask = np.asarray(sample.outputs), np.asarray(sample.output_mask)
        best.append(np.bincount(outputs[mask], minlength=task.output_size) / mask.sum())
    assert abs(np.mean(best, axis=0).max() - task.chance) < 0.004
