"""Byte-level BPE: a pretrained model's own, or one trained on the text at hand.

The `tokenizers` package does the work; it comes with the extra `lm`.
"""

import hashlib
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from stackformer.extras import require

Tokenizer = Any

# RoBERTa's special tokens, in its order; tokenizers trained here have them too.
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_KNOWN_SPECIAL = (*SPECIAL_TOKENS, "<|endoftext|>")
# More than any tokenizer in use has.
_MOST_TOKENS = 10**6


def load_tokenizer(folder: str | os.PathLike) -> Tokenizer:
    """The tokenizer in a Hugging Face folder.

    Args:
      folder: has tokenizer.json, or vocab.json and merges.txt of a byte-level BPE.

    Raises:
      ValueError: a file is missing; the message says which.
    """
    tokenizers = require("tokenizers")
    folder = pathlib.Path(folder)
    whole = folder / "tokenizer.json"
    if whole.is_file():
        return tokenizers.Tokenizer.from_file(str(whole))
    parts = [folder / "vocab.json", folder / "merges.txt"]
    missing = [path.name for path in parts if not path.is_file()]
    if missing:
        raise ValueError(
            "`tokenizer` should be a folder with tokenizer.json, or with vocab.json "
            f"and merges.txt, but {folder} has no {' and no '.join(missing)}."
        )
    tokenizer = _byte_level(tokenizers, *map(str, parts))
    known = [text for text in _KNOWN_SPECIAL if tokenizer.token_to_id(text) is not None]
    tokenizer.add_special_tokens(known)
    return tokenizer


def train_tokenizer(lines: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE of at most `vocab_size` tokens, trained on some lines.

    Every byte has a token, so any text can be encoded and decoded without loss.

    Example:
      >>> tokenizer = train_tokenizer(["the cat sat", "the dog sat"], 280)
      >>> tokenizer.decode(tokenizer.encode("the cow").ids)
      'the cow'
    """
    tokenizers = require("tokenizers")
    smallest = 256 + len(SPECIAL_TOKENS)
    if vocab_size < smallest:
        raise ValueError(
            f"`vocab_size` should be at least {smallest}, one token a byte and the "
            f"special ones, but got {vocab_size}."
        )
    if vocab_size > _MOST_TOKENS:  # room for all is made at once, and ends the process
        raise ValueError(
            f"`vocab_size` should be at most {_MOST_TOKENS:,}, but got {vocab_size:,}."
        )
    tokenizer = _byte_level(tokenizers)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def encode_lines(tokenizer: Tokenizer, lines: list[str]) -> np.ndarray:
    """The token ids of all lines in a row, int32; nothing is added between lines."""
    encoded = tokenizer.encode_batch_fast(lines, add_special_tokens=False)
    return np.concatenate([np.asarray(e.ids, np.int32) for e in encoded])


def special_id(tokenizer: Tokenizer, text: str) -> int:
    """The id of a special token such as "<mask>".

    Raises:
      ValueError: the tokenizer has no such token.
    """
    found = tokenizer.token_to_id(text)
    if found is None:
        raise ValueError(
            f"`tokenizer` should have the token {text}, which masked language modeling "
            "needs, but has not; take RoBERTa's tokenizer, or let one be trained."
        )
    return found


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """A name for what a tokenizer does: 16 hexadecimal digits."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()[:16]


def _byte_level(tokenizers: Any, *files: str) -> Tokenizer:
    model = tokenizers.models.BPE.from_file(*files) if files else None
    tokenizer = tokenizers.Tokenizer(model or tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer
