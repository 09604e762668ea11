"""Chunks, the order of training and evaluation, and the whole path from text."""

import pathlib

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackformer.data.chunks import cut, evaluation_rows, pack, training_rows
from stackformer.data.corpus import load_corpus
from stackformer.data.tokenization import encode_lines, load_tokenizer, train_tokenizer

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
LINES = [f" The cat number {n} sat on the mat , <unk> . \n" for n in range(300)]


def write(folder: pathlib.Path, pattern: str) -> None:
    for split, count in (("train", 300), ("valid", 60), ("test", 70)):
        (folder / pattern.format(split)).write_text("".join(LINES[:count]))


def test_cutting_keeps_all_but_the_remainder():
    chunks = cut(np.arange(1000), 128)
    assert chunks.shape == (7, 128)
    np.testing.assert_array_equal(chunks.ravel(), np.arange(7 * 128))
    ends = cut(np.arange(1000), 128, first=-1, last=-2)
    assert ends.shape == (7, 128)
    assert set(ends[:, 0]) == {-1} and set(ends[:, -1]) == {-2}
    np.testing.assert_array_equal(ends[:, 1:-1].ravel(), np.arange(7 * 126))
    with pytest.raises(ValueError, match=r"at least 128 tokens.*got 100"):
        cut(np.arange(100), 128)


def test_an_epoch_sees_every_chunk_once_and_the_next_in_another_order():
    key = jax.random.key(0)
    rows = jax.jit(
        jax.vmap(lambda step: training_rows(key, step, num_chunks=22, batch_size=4))
    )(np.arange(15))
    first, second = np.asarray(rows[:5]).ravel(), np.asarray(rows[5:10]).ravel()
    assert len(set(first.tolist())) == 20 and set(first.tolist()) <= set(range(22))
    assert first.tolist() != second.tolist()
    np.testing.assert_array_equal(
        rows[7], training_rows(key, 7, num_chunks=22, batch_size=4)
    )


def test_evaluation_counts_every_chunk_once():
    seen = []
    for index in range(3):
        rows, real = evaluation_rows(index, num_chunks=10, batch_size=4)
        seen += np.asarray(rows)[np.asarray(real)].tolist()
    assert seen == list(range(10))


@pytest.mark.parametrize(
    "dataset, pattern", [("wikitext2", "{}.txt"), ("ptb", "ptb.{}.txt")]
)
def test_both_datasets_take_the_same_path(dataset, pattern, tmp_path):
    write(tmp_path, pattern)
    corpus = load_corpus(
        dataset, tmp_path, masked=True, vocab_size=300, cache_dir=tmp_path / "cache"
    )
    chunk = corpus.chunks["test"][0]
    assert chunk.shape == (128,) and chunk.dtype == np.int32
    assert chunk[0] == corpus.special_ids["<s>"] == 0
    assert chunk[-1] == corpus.special_ids["</s>"] == 2
    text = corpus.tokenizer.decode(chunk.tolist(), skip_special_tokens=False)
    body = text.removeprefix("<s>").removesuffix("</s>")
    assert "".join(LINES).startswith(body)
    plain = load_corpus(
        dataset, tmp_path, masked=False, vocab_size=300, cache_dir=tmp_path / "cache"
    )
    stream = encode_lines(plain.tokenizer, LINES[:70])
    np.testing.assert_array_equal(
        plain.chunks["test"].ravel(), stream[: len(stream) // 128 * 128]
    )


def test_a_text_too_short_for_a_chunk_says_which(tmp_path):
    write(tmp_path, "{}.txt")
    (tmp_path / "valid.txt").write_text("short\n")
    with pytest.raises(ValueError, match=r"valid text.*at least 128 tokens"):
        load_corpus("wikitext2", tmp_path, masked=False, cache_dir=tmp_path / "c")


def test_trained_tokenizers_lose_nothing_and_are_reproducible():
    tokenizer = train_tokenizer(LINES, 300)
    assert tokenizer.to_str() == train_tokenizer(LINES, 300).to_str()
    text = " Żółw <unk> \t\n 猫\n"
    ids = encode_lines(tokenizer, [text])
    assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == text
    assert tokenizer.token_to_id("<unk>") in ids
    with pytest.raises(ValueError, match="at least 261"):
        train_tokenizer(LINES, 100)


@pytest.mark.parametrize("kind", ["gpt2", "roberta"])
def test_pretrained_tokenizers_are_read_from_either_layout(kind, tmp_path):
    tokenizer = load_tokenizer(GOLDEN / kind)
    ids = encode_lines(tokenizer, [" The cat <unk> \n"])
    assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == (
        " The cat <unk> \n"
    )
    # <unk> is a token of RoBERTa; for GPT-2 it is five letters and signs.
    assert (tokenizer.token_to_id("<unk>") in ids) == (kind == "roberta")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    again = encode_lines(load_tokenizer(tmp_path), [" The cat <unk> \n"])
    np.testing.assert_array_equal(again, ids)


def test_a_folder_without_a_tokenizer_says_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match=r"no vocab\.json and no merges\.txt"):
        load_tokenizer(tmp_path)


def test_masks_need_a_mask_token(tmp_path):
    write(tmp_path, "{}.txt")
    with pytest.raises(ValueError, match="should have the token <s>"):
        load_corpus(
            "wikitext2",
            tmp_path,
            masked=True,
            tokenizer_dir=GOLDEN / "gpt2",
            cache_dir=tmp_path / "cache",
        )


@settings(deadline=None, max_examples=50)
@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=30), ends=st.booleans())
def test_packing_keeps_every_document_whole(sizes, ends):
    sizes = [*sizes, 3]
    offsets = 100 + np.cumsum([0, *sizes])
    texts = [np.arange(a, a + n) for a, n in zip(offsets, sizes, strict=False)]
    options = {"first": 1, "last": 2} if ends else {}
    inner = 8 - len(options)
    chunks, ids = pack(texts, 8, **options)
    assert chunks.shape == ids.shape == (len(chunks), 8)
    strings = [
        row[numbers == n].tolist()
        for row, numbers in zip(chunks, ids, strict=True)
        for n in range(1, numbers.max() + 1)
    ]
    if ends:
        assert all((s[0], s[-1]) == (1, 2) for s in strings)
        strings = [s[1:-1] for s in strings]
    expected = [
        text[at : at + inner].tolist()
        for text in texts
        for at in range(0, len(text), inner)
    ]
    assert sorted(strings) == sorted(expected)
    assert np.all(chunks[ids == 0] == 0)
    # Two chunks that are at most half full would have been one.
    assert np.sum((ids > 0).sum(1) <= 4) <= 1


def test_packing_without_text_is_refused():
    with pytest.raises(ValueError, match="at least one token"):
        pack([np.array([], int)], 8)
    with pytest.raises(ValueError, match="room for text"):
        pack([np.arange(3)], 2, first=1, last=2)
