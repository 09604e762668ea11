"""From text files to chunks of token ids: the path that every dataset takes."""

import dataclasses
import os

import numpy as np

from stackformer.data.chunks import cut, pack
from stackformer.data.text import BUILDERS, documents, fingerprint, load_lines
from stackformer.data.tokenization import (
    SPECIAL_TOKENS,
    Tokenizer,
    encode_lines,
    load_tokenizer,
    special_id,
    train_tokenizer,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
    """A tokenised text.

    Attributes:
      chunks: {"train": (C, T) int32, "valid": ..., "test": ...}.
      tokenizer: a `tokenizers.Tokenizer`.
      text: fingerprint of the text files.
      special_ids: ids of <s>, <pad>, </s>, <unk>, <mask>; empty without masks.
      segment_ids: of packed chunks, as `pack` gives them; empty where text was cut.
    """

    chunks: dict[str, np.ndarray]
    tokenizer: Tokenizer
    text: str
    special_ids: dict[str, int]
    segment_ids: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def padding(self) -> dict[str, float]:
        """The share of each split's positions that is padding."""
        return {split: float(np.mean(x == 0)) for split, x in self.segment_ids.items()}


def load_corpus(
    dataset: str,
    data_dir: str | os.PathLike,
    *,
    masked: bool,
    tokenizer_dir: str | os.PathLike | None = None,
    vocab_size: int = 2048,
    length: int = 128,
    packing: bool = False,
    cache_dir: str | os.PathLike | None = None,
) -> Corpus:
    """Reads, tokenises and cuts a text.

    Lines are tokenised with their line ends, one after the other, and joined; the
    stream is cut into chunks and the remainder dropped. For masked language modeling
    a chunk is <s>, T - 2 tokens of text and </s>, as RoBERTa was trained; otherwise it
    is T tokens of text. With `packing` no chunk goes across the end of a document, and
    a document is cut only where it is longer than a chunk.

    Args:
      dataset: "wikitext2" or "ptb".
      data_dir: the folder with the text files.
      masked: whether the chunks are for masked language modeling.
      tokenizer_dir: a Hugging Face folder with a tokenizer; where None, a byte-level
        BPE is trained on the training text.
      vocab_size: of the trained tokenizer.
      length: T.
      packing: pack documents into chunks instead of cutting across them.
      cache_dir: see `load_lines`.
    """
    lines = load_lines(dataset, data_dir, cache_dir=cache_dir)
    if tokenizer_dir is None:
        tokenizer = train_tokenizer(lines["train"], vocab_size)
    else:
        tokenizer = load_tokenizer(tokenizer_dir)
    special, ends = {}, {}
    if masked:
        special = {text: special_id(tokenizer, text) for text in SPECIAL_TOKENS}
        ends = {"first": special["<s>"], "last": special["</s>"]}
    chunks, segment_ids = {}, {}
    for split, split_lines in lines.items():
        try:
            if packing:
                texts = documents(dataset, split_lines)
                encoded = [encode_lines(tokenizer, text) for text in texts]
                chunks[split], segment_ids[split] = pack(encoded, length, **ends)
            else:
                stream = encode_lines(tokenizer, split_lines)
                chunks[split] = cut(stream, length, **ends)
        except ValueError as error:
            raise ValueError(f"The {split} text of {data_dir}: {error}") from None
    text = fingerprint(BUILDERS[dataset].find_files(data_dir))
    return Corpus(
        chunks=chunks,
        tokenizer=tokenizer,
        text=text,
        special_ids=special,
        segment_ids=segment_ids,
    )
