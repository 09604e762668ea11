"""The token sequences of both settings, written out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stackformer import tasks


def one(task, text, answer, width):
    """A sample of one given string in arrays wide enough for `width` symbols."""
    x, y = task.encode(text), task.encode_output(answer)
    inputs = np.zeros((1, width), np.int32)
    outputs = np.zeros((1, task.output_length(width)), np.int32)
    mask = np.zeros(outputs.shape, bool)
    inputs[0, : x.size], outputs[0, : y.size] = x, y
    mask[0, : y.size] = True
    return tasks.Sample(inputs, outputs, mask, jnp.int32(x.size))


def test_mlm_puts_the_answer_at_the_separator_and_the_masks():
    task = tasks.get("RS")
    framed = tasks.frame(task, one(task, "abb", "bba", 4), "mlm")
    shown = task.decode_tokens(framed.tokens[0])
    assert shown == "<bos> a b b <sep> <mask> <mask> <pad> <pad>"
    assert framed.mask[0].tolist() == [True] * 7 + [False] * 2
    assert framed.targets[0].tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0]
    assert framed.target_mask[0].tolist() == [False] * 4 + [True] * 3 + [False] * 2


def test_alm_shifts_the_answer_by_one():
    task = tasks.get("RS")
    framed = tasks.frame(task, one(task, "abb", "bba", 4), "alm")
    shown = task.decode_tokens(framed.tokens[0])
    assert shown == "<bos> a b b <sep> b b <pad> <pad>"
    assert framed.targets[0].tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0]
    assert framed.target_mask[0].tolist() == [False] * 4 + [True] * 3 + [False] * 2


def test_positions_after_the_end_symbol_are_asked_but_do_not_count():
    task = tasks.get("SM")
    inputs = task.encode("a b pop pop")[None]
    outputs = task.encode_output("$$$$$")[None]
    mask = np.asarray([[True, False, False, False, False]])
    sample = tasks.Sample(inputs, outputs, mask, jnp.int32(4))
    framed = tasks.frame(task, sample, "mlm")
    assert framed.tokens[0].tolist()[5:] == [tasks.SEP] + [tasks.MASK] * 4
    assert int(framed.target_mask.sum()) == 1
    framed = tasks.frame(task, sample, "alm")
    assert task.decode_tokens(framed.tokens[0]) == "<bos> a b pop pop <sep> $ $ $ $"


@pytest.mark.parametrize("name", ["SM", "compute_sqrt", "duplicate_string"])
@pytest.mark.parametrize("mode", ["mlm", "alm"])
def test_a_padded_sample_frames_to_the_same_sequence(name, mode):
    task = tasks.get(name)

    @jax.jit
    def padded(key, length):
        return tasks.frame(task, task.sample(key, 3, length, max_length=8), mode)

    for length in (1, 5) if mode == "mlm" else (5,):
        key = jax.random.key(length)
        wide = padded(key, length)
        exact = tasks.frame(task, task.sample(key, 3, length), mode)
        width = exact.tokens.shape[1]
        assert wide.tokens.shape[1] == 1 + 8 + task.output_length(8)
        for field in ("tokens", "mask", "targets", "target_mask"):
            a, b = np.asarray(getattr(wide, field)), np.asarray(getattr(exact, field))
            np.testing.assert_array_equal(a[:, :width], b)
            assert not a[:, width:].any()


def test_answer_symbols_have_ids_of_their_own():
    task = tasks.get("SM")
    assert task.vocabulary[:4] == ("<pad>", "<bos>", "<mask>", "<sep>")
    assert task.vocabulary[4:] == ("a", "b", "pop", "push_a", "push_b", "a", "b", "$")
    assert task.vocab_size == 12
    assert task.output_tokens.tolist() == [9, 10, 11]
    assert task.input_tokens.tolist() == [4, 5, 6, 7, 8]


def test_unknown_mode():
    task = tasks.get("RS")
    with pytest.raises(ValueError, match=r'`mode` should be "mlm" or "alm".*clm'):
        tasks.frame(task, task.sample(jax.random.key(0), 1, 1), "clm")
