"""Short symbols for the axes of a picture, as in the paper's figures."""

from collections.abc import Iterable

_SHORT = {"<mask>": "M", "<sep>": "|", "<bos>": "B", "<pad>": "_", "pop": "P"}


def short_symbols(symbols: Iterable[str]) -> list[str]:
    """Symbols as the paper abbreviates them: M for a mask, P for pop, a for push_a.

    >>> short_symbols(["<bos>", "a", "pop", "push_b", "<mask>"])
    ['B', 'a', 'P', 'b', 'M']
    """
    return [
        _SHORT.get(symbol, symbol.removeprefix("push_") or symbol) for symbol in symbols
    ]
