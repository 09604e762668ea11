"""What a task is: random strings, their answers, and the symbols of both.

B is the batch size, L the width of the input array, M the width of the output
array: M = output_length(L).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import operator
from typing import SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpy.typing import ArrayLike

from stackformer.tasks.vocabulary import END, SPECIAL_SYMBOLS, tokenize, untokenize

# The length of strings: an int, or a traced () int32 array.
Length = int | jax.Array

LEVELS: tuple[str, ...] = ("regular", "dcf", "cs")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sample:
    """A batch of strings of one length with their answers.

    Attributes:
        inputs: (B, L) int32, indices into `task.input_symbols`; 0 from `length` on.
        outputs: (B, M) int32, indices into `task.output_symbols` (the classes of a
            model's output); 0 from `task.output_length(length)` on.
        output_mask: (B, M) bool, True at the positions that count in loss and score.
        length: () int32, the length of the strings.
    """

    inputs: jax.Array | np.ndarray
    outputs: jax.Array | np.ndarray
    output_mask: jax.Array | np.ndarray
    length: jax.Array | np.ndarray


class Task(abc.ABC):
    """A function from strings to strings, with a distribution over its inputs.

    A task states its symbols and implements `strings` and `solve`; `README.md` in
    this folder shows a complete one.

    Attributes:
        name: long name, e.g. "reverse_string".
        short_name: the paper's name, e.g. "RS", or None.
        level: "regular", "dcf" or "cs" (context-sensitive).
        input_symbols: the readable symbols of the input strings.
        output_symbols: the readable symbols of the answers. If `END` is among them,
            it fills an answer from its first occurrence on, and the positions after
            the first do not count.
        chance: accuracy of the best constant answer (one class at every position that
            counts), averaged over the lengths 41..100, to three digits.
    """

    name: str
    short_name: str | None = None
    level: str
    input_symbols: tuple[str, ...]
    output_symbols: tuple[str, ...]
    chance: float

    @abc.abstractmethod
    def strings(
        self,
        key: jax.Array,
        batch_size: int,
        length: Length,
        max_length: int,
    ) -> jax.Array:
        """Draw random strings: (B, max_length) int32 indices into `input_symbols`.

        `length` may be traced. What stands from `length` on does not matter; what
        stands before must not depend on `max_length` (`tasks.sampling` has draws
        that do not).
        """

    @abc.abstractmethod
    def solve(self, inputs: jax.Array, length: Length) -> jax.Array:
        """The answers to (B, L) inputs: (B, output_length(L)) int32 classes.

        `length` may be traced; inputs are 0 from `length` on. What stands from
        `output_length(length)` or after the first `END` does not matter.
        """

    def output_length(self, length: Length) -> Length:
        """The length of the answers to strings of this length (a traced one too)."""
        return length

    def string_length(self, length: Length) -> Length:
        """The length of the strings drawn when `length` is asked for.

        It is `length` itself, except in a task that has no strings of some lengths.
        """
        return length

    def sample(
        self,
        key: jax.Array,
        batch_size: int,
        length: Length,
        max_length: int | None = None,
    ) -> Sample:
        """Draw a batch of strings of one length, with their answers.

        A pure function of its arguments that may be jitted and vmapped. With
        `max_length`, `length` may be a traced value, and the same strings come in
        wider arrays: one compiled program serves all lengths up to `max_length`.

        Args:
            key: a JAX random key.
            batch_size: B, at least 1.
            length: the length of the strings, at least 1.
            max_length: L, at least `length`; by default `length`.

        Returns:
            A `Sample` with inputs (B, L) and outputs (B, output_length(L)).

        Example:
            >>> import jax
            >>> from stackformer import tasks
            >>> task = tasks.get("RS")
            >>> sample = task.sample(jax.random.key(0), batch_size=2, length=3)
            >>> sample.inputs.shape, sample.outputs.shape
            ((2, 3), (2, 3))
        """
        batch_size = _positive("batch_size", batch_size)
        if max_length is not None:
            max_length = _positive("max_length", max_length)
        if isinstance(length, Tracer):
            if max_length is None:
                raise ValueError(
                    "`max_length` (the width of the arrays) should be given as an int "
                    "where `length` is traced, but got None"
                )
        else:
            length = _positive("length", length)
            max_length = length if max_length is None else max_length
            if length > max_length:
                raise ValueError(
                    f"`length` should be at most `max_length` ({max_length}), but got "
                    f"{length}"
                )
        if not isinstance(key, jax.Array | np.ndarray):
            raise ValueError(
                "`key` should be a JAX random key such as jax.random.key(0), but got "
                f"{key!r}"
            )
        return _sample(self, batch_size, max_length, key, length)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The readable symbol of every token id; see `tasks.vocabulary`."""
        return SPECIAL_SYMBOLS + self.input_symbols + self.output_symbols

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return len(self.vocabulary)

    @property
    def output_size(self) -> int:
        """Number of output classes."""
        return len(self.output_symbols)

    @property
    def input_tokens(self) -> np.ndarray:
        """Token id of every input symbol, int32."""
        first = len(SPECIAL_SYMBOLS)
        return np.arange(first, first + len(self.input_symbols), dtype=np.int32)

    @property
    def output_tokens(self) -> np.ndarray:
        """Token id of every output class, int32."""
        first = len(SPECIAL_SYMBOLS) + len(self.input_symbols)
        return np.arange(first, first + len(self.output_symbols), dtype=np.int32)

    def encode(self, text: str) -> np.ndarray:
        """Indices of an input string: `encode("abb")` of RS is [0, 1, 1]."""
        return tokenize(text, self.input_symbols, f"{self.name} input")

    def decode(self, inputs: ArrayLike) -> str:
        """The readable string of (length,) input indices; inverse of `encode`."""
        return untokenize(inputs, self.input_symbols)

    def encode_output(self, text: str) -> np.ndarray:
        """Classes of an answer written with the output symbols."""
        return tokenize(text, self.output_symbols, f"{self.name} output")

    def decode_output(self, outputs: ArrayLike) -> str:
        """The readable answer of (length,) classes; inverse of `encode_output`."""
        return untokenize(outputs, self.output_symbols)

    def decode_tokens(self, tokens: ArrayLike) -> str:
        """The readable form of (T,) token ids as a model reads them."""
        return untokenize(tokens, self.vocabulary)

    def decode_sample(self, sample: Sample) -> list[tuple[str, str]]:
        """Readable (input, answer) pairs of a sample, without padding.

        Positions of an answer that do not count are left out.
        """
        length = int(sample.length)
        inputs, outputs = np.asarray(sample.inputs), np.asarray(sample.outputs)
        mask = np.asarray(sample.output_mask)
        return [
            (self.decode(x[:length]), self.decode_output(y[m]))
            for x, y, m in zip(inputs, outputs, mask, strict=True)
        ]

    def check_form(self, symbols: list[str]) -> None:  # noqa: B027
        """Raises `ValueError` where symbols of the alphabet are no string."""

    def answer(self, text: str) -> str:
        """The answer to one readable string of the task's form.

        Example:
            >>> from stackformer import tasks
            >>> tasks.get("RS").answer("abb")
            'bba'
        """
        inputs = self.encode(text)
        if not inputs.size:
            raise ValueError(
                f"`text` should be a string of {self.name}, but got an empty one, "
                f"{text!r}"
            )
        self.check_form([self.input_symbols[i] for i in inputs])
        outputs, mask = _answers(self, inputs[None], inputs.size)
        return self.decode_output(np.asarray(outputs)[np.asarray(mask)])

    def _identity(self) -> tuple:
        """What a task is: its class and its parameters.

        A parameter that cannot be hashed leaves a task equal to itself only.
        """
        identity = type(self), tuple(sorted(vars(self).items()))
        try:
            hash(identity)
        except TypeError:
            return type(self), id(self)
        return identity

    def __eq__(self, other: object) -> bool:
        # Equal tasks share their compiled programs.
        return isinstance(other, Task) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        return f"<task {self.name}>"


def _positive(argument: str, value: SupportsIndex) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"`{argument}` should be an int, but got {value!r}") from None
    if number < 1:
        raise ValueError(f"`{argument}` should be at least 1, but got {number}")
    return number


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _sample(
    task: Task,
    batch_size: int,
    max_length: int,
    key: jax.Array,
    length: Length,
) -> Sample:
    length = jnp.asarray(task.string_length(length), jnp.int32)
    strings = task.strings(key, batch_size, length, max_length)
    inputs = jnp.where(jnp.arange(max_length)[None, :] < length, strings, 0)
    outputs, mask = _answers(task, inputs.astype(jnp.int32), length)
    return Sample(inputs=inputs, outputs=outputs, output_mask=mask, length=length)


@functools.partial(jax.jit, static_argnums=0)
def _answers(
    task: Task, inputs: jax.Array, length: Length
) -> tuple[jax.Array, jax.Array]:
    outputs = task.solve(inputs, length).astype(jnp.int32)
    position = jnp.arange(outputs.shape[1])[None, :]
    inside = jnp.broadcast_to(position < task.output_length(length), outputs.shape)
    mask = inside
    if END in task.output_symbols:
        end = task.output_symbols.index(END)
        ended = outputs == end
        mask = inside & (jnp.cumsum(ended, axis=1) - ended == 0)
        outputs = jnp.where(mask, outputs, end)
    return jnp.where(inside, outputs, 0), mask
