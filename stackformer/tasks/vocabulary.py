"""Symbols, the ids they have inside a task, and the token ids a model reads.

Every task has one vocabulary. Token ids 0 to 3 are the same in all of them; the
input symbols follow, then the output symbols, which have ids of their own even where
they look like input symbols (a symbol to push is then not one to pop):

    0 <pad>   1 <bos>   2 <mask>   3 <sep>   4.. input symbols   .. output symbols
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

PAD, BOS, MASK, SEP = range(4)
SPECIAL_SYMBOLS: tuple[str, ...] = ("<pad>", "<bos>", "<mask>", "<sep>")

# The output symbol that ends an answer of unknown length.
END = "$"


def tokenize(text: str, symbols: Sequence[str], what: str = "string") -> np.ndarray:
    """Turn text into indices of symbols; white space separates and is dropped.

    Args:
        text: e.g. "(1+2)" or "b a b pop push_a"; "bab pop" is also read as b a b pop.
        symbols: the alphabet; an index in the result points into it.
        what: what the text is called in an error message.

    Returns:
        int32 array of shape (number of symbols in the text,).

    Raises:
        ValueError: a part of the text is no symbol of the alphabet.

    Example:
        >>> tokenize("ab pop", ("a", "b", "pop")).tolist()
        [0, 1, 2]
    """
    if not isinstance(text, str):
        raise ValueError(
            f"{what} should be a str, but got {type(text).__name__}: {text!r}"
        )
    index = {symbol: i for i, symbol in enumerate(symbols)}
    pieces = _pattern(tuple(symbols)).findall(text)
    for position, piece in enumerate(pieces):
        if piece not in index:
            raise ValueError(
                f"{what} {text!r} has {piece!r} at position {position}, which is "
                "outside the alphabet "
                f"{{{', '.join(symbols)}}}"
            )
    return np.asarray([index[piece] for piece in pieces], np.int32)


@functools.cache
def _pattern(symbols: tuple[str, ...]) -> re.Pattern:
    """Finds symbols, the longest that fits first, and single foreign characters."""
    longest_first = sorted(symbols, key=len, reverse=True)
    return re.compile("|".join([*map(re.escape, longest_first), r"\S"]))


def untokenize(ids: ArrayLike, symbols: Sequence[str]) -> str:
    """Turn indices back into text that `tokenize` reads: spaces only where needed.

    Raises:
        ValueError: an index is outside the alphabet.

    Example:
        >>> untokenize([0, 1, 2], ("a", "b", "pop"))
        'a b pop'
        >>> untokenize([0, 1, 1], ("a", "b"))
        'abb'
    """
    ids = np.asarray(ids)
    if ids.ndim != 1:
        raise ValueError(f"`ids` shape should be (length,), but got {ids.shape}")
    outside = ids[(ids < 0) | (ids >= len(symbols))]
    if outside.size:
        raise ValueError(
            f"`ids` should lie in 0..{len(symbols) - 1} (the alphabet is "
            f"{{{', '.join(symbols)}}}), but got {int(outside[0])}"
        )
    separator = "" if all(len(symbol) == 1 for symbol in symbols) else " "
    return separator.join(symbols[int(i)] for i in ids)
