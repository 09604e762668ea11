"""Every task: right answers, padding, purity, symbols, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_tasks import SOLVERS

from stackformer import tasks
from stackformer.tasks import base

WIDTH = 24


@pytest.fixture(scope="module", params=SOLVERS)
def task(request):
    return tasks.get(request.param)


@pytest.fixture(scope="module")
def padded(task):
    """One compiled program for all lengths, with a counter of its compilations."""
    traces = []

    @jax.jit
    def sample(key, length):
        traces.append(length)
        return task.sample(key, 24, length, max_length=WIDTH)

    sample.traces = traces
    return sample


def test_every_task_has_a_solver():
    assert set(tasks.names()) >= set(SOLVERS)
    assert len(SOLVERS) == 15


def test_answers_agree_with_plain_python_at_every_length(task, padded):
    for length in range(1, WIDTH + 1):
        sample = padded(jax.random.key(length), length)
        n, m = int(sample.length), int(task.output_length(int(sample.length)))
        for x, y in zip(
            np.asarray(sample.inputs), np.asarray(sample.outputs), strict=True
        ):
            symbols = [task.input_symbols[i] for i in x[:n]]
            expected = SOLVERS[task.name](symbols)
            assert len(expected) == m
            assert [task.output_symbols[i] for i in y[:m]] == expected, symbols
    assert len(padded.traces) == 1


def test_padding_changes_no_string(task, padded):
    n, m = 9, task.output_length(9)
    wide, exact = padded(jax.random.key(0), n), task.sample(jax.random.key(0), 24, n)
    assert wide.inputs.shape == (24, WIDTH)
    assert exact.inputs.shape == (24, n) and exact.outputs.shape == (24, m)
    assert int(wide.length) == int(exact.length)
    for field, width in (("inputs", n), ("outputs", m), ("output_mask", m)):
        a, b = np.asarray(getattr(wide, field)), np.asarray(getattr(exact, field))
        np.testing.assert_array_equal(a[:, :width], b)
        assert not a[:, width:].any()


def test_mask_ends_with_the_first_end_symbol(task, padded):
    sample = padded(jax.random.key(5), 9)
    mask, outputs = np.asarray(sample.output_mask), np.asarray(sample.outputs)
    m = int(task.output_length(int(sample.length)))
    for y, counted in zip(outputs, mask, strict=True):
        symbols = [task.output_symbols[i] for i in y[:m]]
        last = symbols.index(tasks.END) + 1 if tasks.END in symbols else m
        assert counted.tolist() == [True] * last + [False] * (mask.shape[1] - last)


def test_keys_decide(task, padded):
    first, again, other = (padded(jax.random.key(k), 20) for k in (0, 0, 1))
    np.testing.assert_array_equal(first.inputs, again.inputs)
    assert (np.asarray(first.inputs) != np.asarray(other.inputs)).any()


def test_encode_and_decode_are_inverse(task, padded):
    sample = padded(jax.random.key(3), 11)
    n = int(sample.length)
    for (text, answer), x in zip(
        task.decode_sample(sample), np.asarray(sample.inputs), strict=True
    ):
        np.testing.assert_array_equal(task.encode(text), x[:n])
        assert task.decode(task.encode(text)) == text
        assert task.decode_output(task.encode_output(answer)) == answer
    assert task.answer(text) == answer


def test_tokens_and_symbols_fit(task):
    assert task.level in tasks.LEVELS
    assert len(task.vocabulary) == task.vocab_size
    # Answer symbols are tokens of their own, also where they look like input symbols.
    assert not set(task.input_tokens) & set(task.output_tokens)
    for index, token in enumerate(task.output_tokens):
        assert task.vocabulary[token] == task.output_symbols[index]
    for index, token in enumerate(task.input_tokens):
        assert task.vocabulary[token] == task.input_symbols[index]


def test_vmap_over_keys_gives_each_keys_strings():
    task = tasks.get("SE")
    keys = jax.random.split(jax.random.key(0), 3)
    batched = jax.vmap(lambda key: task.sample(key, 4, 9))(keys)
    single = task.sample(keys[2], 4, 9)
    np.testing.assert_array_equal(batched.inputs[2], single.inputs)
    np.testing.assert_array_equal(batched.outputs[2], single.outputs)


def test_other_moduli():
    task = tasks.get("MA", modulus=12)
    assert task.answer("(7 + 11)") == "6"
    sample = task.sample(jax.random.key(0), 16, 9)
    for x, y in task.decode_sample(sample):
        assert eval(x) % 12 == int(y)
    se = tasks.get("SE", modulus=7)
    assert se.answer("(6-z)=1") == "5"


def test_even_lengths_of_modular_arithmetic_are_one_shorter():
    task = tasks.get("modular_arithmetic")
    sample = task.sample(jax.random.key(0), 2, 8)
    assert sample.inputs.shape == (2, 8) and int(sample.length) == 7
    framed = tasks.frame(task, sample, "mlm")
    assert framed.mask[0].tolist() == [True] * 9 + [False]


def test_one_registered_object_per_name():
    assert tasks.get("rs") is tasks.get("RS") is tasks.get("reverse_string")
    assert tasks.names()[:4] == (
        "reverse_string",
        "stack_manipulation",
        "modular_arithmetic_brackets",
        "solve_equation",
    )


def test_a_task_by_module_and_class():
    task = tasks.get("stackformer.tasks.reverse_string:ReverseString")
    assert task.name == "reverse_string"
    with pytest.raises(ValueError, match="cannot be imported"):
        tasks.get("no_such_module:Task")
    with pytest.raises(ValueError, match="should be a subclass"):
        tasks.get("stackformer.tasks:Sample")


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown task 'XY'.*\(RS\).*bucket_sort"):
        tasks.get("XY")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((4, 0), "`length` should be at least 1, but got 0"),
        ((0, 4), "`batch_size` should be at least 1, but got 0"),
        ((4, 2.5), "`length` should be an int, but got 2.5"),
        ((4, 5, 4), r"`length` should be at most `max_length` \(4\), but got 5"),
    ],
)
def test_bad_sizes(arguments, message):
    with pytest.raises(ValueError, match=message):
        tasks.get("MA").sample(jax.random.key(0), *arguments)


def test_bad_arguments():
    task = tasks.get("RS")
    with pytest.raises(ValueError, match=r"'abc' has 'c'.*alphabet \{a, b\}"):
        task.encode("abc")
    with pytest.raises(ValueError, match=r"`ids` should lie in 0..1.*but got 7"):
        task.decode(np.asarray([0, 7]))
    with pytest.raises(ValueError, match="but got an empty one"):
        task.answer(" ")
    with pytest.raises(ValueError, match="should be a str, but got"):
        task.encode(3)
    with pytest.raises(ValueError, match=r"`max_length` .* should be given"):
        jax.jit(lambda n: task.sample(jax.random.key(0), 2, n))(3)
    with pytest.raises(ValueError, match="`key` should be a JAX random key"):
        task.sample(0, 2, 3)
    for name in ("MA", "SE", "modular_arithmetic"):
        with pytest.raises(
            ValueError, match=r"`modulus` should be .* 2..1000, but got 1"
        ):
            tasks.get(name, modulus=1)
    with pytest.raises(ValueError, match="does not take"):
        tasks.get("RS", modulus=5)


def test_register_checks_what_a_task_states():
    base = type(tasks.get("RS"))
    for attributes, message in (
        ({"level": "hard", "name": "one"}, "`level` should be one of regular, dcf, cs"),
        ({"input_symbols": ("a", "a"), "name": "two"}, "should be distinct"),
        ({"output_symbols": ["a"], "name": "three"}, "should be a tuple"),
        ({}, "is registered already"),
    ):
        with pytest.raises(ValueError, match=message):
            tasks.register(type("Broken", (base,), attributes))
    assert "one" not in tasks.names()


def test_evaluation_follows_precedence_and_signs():
    task = tasks.get("MA")
    rng = np.random.default_rng(0)
    for _ in range(5):
        terms = [f"{rng.integers(5)}" for _ in range(6)]
        signs = rng.choice(["+", "-", "*", "+-", "--", "*-"], 5)
        text = "".join(t + s for t, s in zip(terms, [*signs, ""], strict=True))
        text = "(" + text[:12].rstrip("+-*") + ")"
        assert int(task.answer(text)) == eval(text) % 5, text


def test_jit_of_a_whole_pipeline_on_traced_lengths():
    task = tasks.get("SM")

    @jax.jit
    def correct(key, lengths):
        def one(length):
            sample = task.sample(key, 2, length, max_length=8)
            return tasks.frame(task, sample, "mlm").mask.sum()

        return jax.vmap(one)(lengths)

    counts = correct(jax.random.key(0), jnp.arange(1, 9))
    assert counts.tolist() == [2 * (1 + n + n + 1) for n in range(1, 9)]


def test_equal_tasks_are_equal_and_compile_once():
    first, second = (tasks.get("MA", modulus=7) for _ in range(2))
    assert first is not second and first == second and hash(first) == hash(second)
    assert first != tasks.get("MA") and tasks.get("RS") != tasks.get("MA")
    key = jax.random.key(0)
    first.sample(key, 3, 6)
    before = base._sample._cache_size()
    second.sample(key, 3, 6)
    assert base._sample._cache_size() == before


def test_a_task_with_a_parameter_that_cannot_be_hashed_is_only_itself():
    class WithArray(type(tasks.get("RS"))):
        def __init__(self):
            self.table = np.arange(3)

    first, second = WithArray(), WithArray()
    assert first == first and first != second and hash(first) == hash(first)
