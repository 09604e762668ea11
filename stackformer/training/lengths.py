"""Lengths of training strings: curricula, buckets, and what a step draws.

A step's length n has the probabilities p_s(1), .., p_s(L) of the curriculum at step s,
independently of all other steps. It is drawn in two parts, so that one program serves
many lengths and several seeds:

    bucket  ~ P(n in bucket), from (step) alone: all seeds pad to the same shape
    n       ~ p_s(n | bucket), from (seed, step)

The strings have length n and are padded to the bucket's upper edge.
"""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp

from stackformer.training.errors import UserError

Array = jax.Array
CURRICULA = ("uniform", "fixed", "regular_increase", "reverse_exponential")
_SCHEDULE_SEED = 20240717


def bucket_edges(max_length: int, count: int) -> tuple[int, ...]:
    """Upper edges of at most `count` buckets of about equal width.

    >>> bucket_edges(40, 5)
    (8, 16, 24, 32, 40)
    >>> bucket_edges(3, 5)
    (1, 2, 3)
    """
    edges = {math.ceil(max_length * (i + 1) / count) for i in range(count)}
    return tuple(sorted(edges))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curriculum:
    """The distribution of lengths at each step; the benchmark's four kinds.

    uniform: every length from 1 to `max_length` alike (the paper's).
    fixed: always `value` (default `max_length`).
    regular_increase: uniform from 1 to 1 + step // `value`, up to `max_length`.
    reverse_exponential: p(n) proportional to `value` ** n.

    Attributes:
      name: one of `CURRICULA`.
      value: the parameter named above, or None for its default.
      max_length: the longest training string.
      num_buckets: how many shapes lengths are padded to, at most.

    Example:
      >>> Curriculum(name="uniform", max_length=4).probabilities(0).tolist()
      [0.25, 0.25, 0.25, 0.25]
    """

    name: str = "uniform"
    value: float | None = None
    max_length: int = 40
    num_buckets: int = 5

    def __post_init__(self) -> None:
        if self.name not in CURRICULA:
            raise UserError(
                f"curriculum must be one of {', '.join(CURRICULA)}, got {self.name!r}"
            )
        value = self.value
        if value is None:
            return
        if self.name == "uniform":
            raise UserError(f"curriculum uniform takes no value, got {value}")
        if self.name == "fixed" and value not in range(1, self.max_length + 1):
            raise UserError(
                f"curriculum fixed:LENGTH needs a length from 1 to {self.max_length}, "
                f"got {value}"
            )
        if value <= 0:
            raise UserError(
                f"curriculum {self.name}:VALUE needs a positive value, got {value}"
            )

    @classmethod
    def parse(cls, text: str, max_length: int, num_buckets: int = 5) -> "Curriculum":
        """Reads `NAME` or `NAME:VALUE`.

        >>> Curriculum.parse("fixed:20", 40).value
        20.0
        """
        name, colon, value = text.partition(":")
        try:
            number = float(value) if colon else None
        except ValueError:
            raise UserError(
                f"curriculum must be NAME or NAME:NUMBER, got {text!r}"
            ) from None
        return cls(
            name=name, value=number, max_length=max_length, num_buckets=num_buckets
        )

    def probabilities(self, step: int | Array) -> Array:
        """p_s(1), .., p_s(max_length): shape (max_length,)."""
        n = jnp.arange(1, self.max_length + 1, dtype=jnp.float32)
        if self.name == "uniform":
            weight = jnp.ones_like(n)
        elif self.name == "fixed":
            weight = (n == (self.value or self.max_length)).astype(jnp.float32)
        elif self.name == "regular_increase":
            weight = (n <= 1 + step // (self.value or 1000.0)).astype(jnp.float32)
        else:
            weight = jnp.float32(self.value or 0.9) ** n
        return weight / weight.sum()

    def buckets(self) -> tuple[int, ...]:
        """Upper edges of the buckets that training compiles."""
        if self.name == "fixed":
            return (int(self.value or self.max_length),)
        return bucket_edges(self.max_length, self.num_buckets)

    def choose_bucket(self, step: Array) -> Array:
        """The index of a step's bucket, the same for every seed: a () int32."""
        probabilities = self.probabilities(step)
        edges = [0, *self.buckets()]
        masses = [probabilities[a:b].sum() for a, b in itertools.pairwise(edges)]
        key = jax.random.fold_in(jax.random.key(_SCHEDULE_SEED), step)
        return _draw(key, jnp.stack(masses))

    def draw(self, key: Array, step: Array, bucket: int) -> Array:
        """The length of a step's strings, given its bucket: a () int32."""
        edges = [0, *self.buckets()]
        lower = edges[edges.index(bucket) - 1]
        return lower + 1 + _draw(key, self.probabilities(step)[lower:bucket])


def _draw(key: Array, weights: Array) -> Array:
    """An index with probability proportional to its weight."""
    cumulative = jnp.cumsum(weights)
    uniform = jax.random.uniform(key) * cumulative[-1]
    index = jnp.sum(uniform >= cumulative, dtype=jnp.int32)
    return jnp.minimum(index, weights.shape[0] - 1)
