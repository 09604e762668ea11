"""Lengths of training strings: curricula, buckets, and what a step draws.

A step's length n has the probabilities p_s(1), .., p_s(L) of the curriculum at step s,
independently of all other steps. It is drawn in two parts, so that one program serves
many lengths and several seeds:

    bucket  ~ P(n in bucket), from (step) alone: all seeds pad to the same shape
    n       ~ p_s(n | bucket), from (seed, step)

The strings have length n and are padded to the bucket's upper edge. By accuracy a
seed's lengths depend on what it has learned: all seeds draw with the same number, each
from its own distribution, and pad to the bucket of the longest.
"""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp

from stackformer.training.errors import UserError

Array = jax.Array
CURRICULA = (
    "uniform",
    "fixed",
    "regular_increase",
    "reverse_exponential",
    "accuracy",
)
# Of the running accuracy of a length, and the batches that it must have seen at least.
_KEEP, _BATCHES = 0.75, 3
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Reached:
    """How far a seed has come in the curriculum by accuracy.

    Attributes:
      length: () int32, the longest length that it is trained on.
      right: (max_length,) float32, decaying sum of the accuracies of each length.
      seen: (max_length,) float32, the same sum of ones.
    """

    length: Array
    right: Array
    seen: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curriculum:
    """The distribution of lengths at each step: the benchmark's four kinds, and ours.

    uniform: every length from 1 to `max_length` alike (the paper's).
    fixed: always `value` (default `max_length`).
    regular_increase: uniform from 1 to 1 + step // `value`, up to `max_length`.
    reverse_exponential: p(n) proportional to `value` ** n.
    accuracy: from 1 to `start` at first, one more whenever the training accuracy of
      the newest three lengths is at least `value` (default 0.98); half of the steps
      draw from the newest three. It looks at training strings alone.

    Attributes:
      name: one of `CURRICULA`.
      value: the parameter named above, or None for its default.
      max_length: the longest training string.
      num_buckets: how many shapes lengths are padded to, at most.
      start: the longest length at first, by accuracy.
      num_groups: G, groups of a batch that draw a length each.

    Example:
      >>> Curriculum(name="uniform", max_length=4).probabilities(0).tolist()
      [0.25, 0.25, 0.25, 0.25]
    """

    name: str = "uniform"
    value: float | None = None
    max_length: int = 40
    num_buckets: int = 5
    start: int = 12
    num_groups: int = 1

    def __post_init__(self) -> None:
        if self.name not in CURRICULA:
            raise UserError(
                f"`curriculum` must be one of {', '.join(CURRICULA)}, got {self.name!r}"
            )
        if self.start < 1:
            raise UserError(f"--curriculum_start must be at least 1, got {self.start}")
        value = self.value
        if value is None:
            return
        if self.name == "accuracy" and not 0 < value <= 1:
            raise UserError(
                "`curriculum` accuracy:SHARE needs a share above 0 and up to 1, such "
                f"as accuracy:0.98, got {value}"
            )
        if self.name == "uniform":
            raise UserError(f"`curriculum` uniform takes no value, got {value}")
        if self.name == "fixed" and value not in range(1, self.max_length + 1):
            raise UserError(
                "`curriculum` fixed:LENGTH needs a length from 1 to "
                f"{self.max_length}, got {value}"
            )
        if value <= 0:
            raise UserError(
                f"`curriculum` {self.name}:VALUE needs a positive value, got {value}"
            )

    @classmethod
    def parse(
        cls, text: str, max_length: int, num_buckets: int = 5, **options: int
    ) -> "Curriculum":
        """Reads `NAME` or `NAME:VALUE`.

        >>> Curriculum.parse("fixed:20", 40).value
        20.0
        """
        name, colon, value = text.partition(":")
        try:
            number = float(value) if colon else None
        except ValueError:
            number = math.nan
        if (number is not None and not math.isfinite(number)) or text == "fixed":
            raise UserError(
                "`curriculum` should be NAME or NAME:NUMBER, such as fixed:20, but got "
                f"{text!r}"
            )
        return cls(
            name=name,
            value=number,
            max_length=max_length,
            num_buckets=num_buckets,
            **options,
        )

    def progress(self) -> Reached | None:
        """Where a seed begins; None where the step alone decides."""
        if self.name != "accuracy":
            return None
        zeros = jnp.zeros((self.max_length,), jnp.float32)
        return Reached(jnp.int32(min(self.start, self.max_length)), zeros, zeros)

    def advance(
        self, reached: Reached | None, lengths: Array, accuracies: Array
    ) -> Reached | None:
        """After a step with strings of G lengths, right to the shares `accuracies`."""
        if reached is None:
            return None
        n = jnp.arange(1, self.max_length + 1)
        right, seen = reached.right, reached.seen
        for group in range(self.num_groups):
            here = n == lengths[group]
            right = jnp.where(here, _KEEP * right + accuracies[group], right)
            seen = jnp.where(here, _KEEP * seen + 1.0, seen)
        newest = (n > reached.length - 3) & (n <= reached.length)
        least = sum(_KEEP**k for k in range(_BATCHES)) - 1e-3
        known = (right >= (self.value or 0.98) * seen - 1e-6) & (seen >= least)
        longer = jnp.all(known | ~newest) & (reached.length < self.max_length)
        return Reached(reached.length + longer.astype(jnp.int32), right, seen)

    def probabilities(self, step: int | Array, reached: Reached | None = None) -> Array:
        """p_s(1), .., p_s(max_length): shape (max_length,)."""
        n = jnp.arange(1, self.max_length + 1, dtype=jnp.float32)
        weight = self._weights(n, step, reached)
        return weight / weight.sum()

    def _weights(self, n: Array, step: int | Array, reached: Reached | None) -> Array:
        if reached is not None:
            allowed = (n <= reached.length).astype(jnp.float32)
            newest = allowed * (n > reached.length - 3)
            return allowed / allowed.sum() + newest / newest.sum()
        if self.name == "uniform":
            return jnp.ones_like(n)
        if self.name == "fixed":
            return (n == (self.value or self.max_length)).astype(jnp.float32)
        if self.name == "regular_increase":
            return (n <= 1 + step // (self.value or 1000.0)).astype(jnp.float32)
        base = self.value or 0.9
        # From the likeliest length on: no power of any base overflows.
        likeliest = 1 if base < 1 else self.max_length
        return jnp.exp(math.log(base) * (n - likeliest))

    def buckets(self) -> tuple[int, ...]:
        """Upper edges of the buckets that training compiles."""
        if self.name == "fixed":
            return (int(self.value or self.max_length),)
        return bucket_edges(self.max_length, self.num_buckets)

    def choose_bucket(self, step: Array, reached: Reached | None = None) -> Array:
        """The index of a step's bucket, the same for every seed: a () int32.

        Here `reached` has a leading axis of seeds.
        """
        if reached is not None:
            lengths = jax.vmap(lambda r: self._draw_shared(step, r))(reached)
            edges = jnp.asarray(self.buckets())
            return jnp.sum(jnp.max(lengths) > edges, dtype=jnp.int32)
        probabilities = self.probabilities(step)
        edges = [0, *self.buckets()]
        masses = [probabilities[a:b].sum() for a, b in itertools.pairwise(edges)]
        return _draw(_schedule_key(step), jnp.stack(masses))

    def _draw_shared(self, step: Array, reached: Reached) -> Array:
        """The lengths of a step's groups, (G,)."""
        weights = self.probabilities(step, reached)
        keys = _keys(_schedule_key(step), self.num_groups)
        return 1 + jnp.stack([_draw(key, weights) for key in keys])

    def draw(
        self, key: Array, step: Array, bucket: int, reached: Reached | None = None
    ) -> Array:
        """The lengths of a step's groups of strings, given its bucket: (G,) int32."""
        if reached is not None:
            return self._draw_shared(step, reached)
        edges = [0, *self.buckets()]
        lower = edges[edges.index(bucket) - 1]
        weights = self.probabilities(step)[lower:bucket]
        keys = _keys(key, self.num_groups)
        return lower + 1 + jnp.stack([_draw(key, weights) for key in keys])


def _schedule_key(step: Array) -> Array:
    return jax.random.fold_in(jax.random.key(_SCHEDULE_SEED), step)


def _keys(key: Array, count: int) -> list[Array]:
    """The key itself where one is asked for."""
    return [key, *(jax.random.fold_in(key, i) for i in range(1, count))]


def _draw(key: Array, weights: Array) -> Array:
    """An index with probability proportional to its weight."""
    cumulative = jnp.cumsum(weights)
    uniform = jax.random.uniform(key) * cumulative[-1]
    index = jnp.sum(uniform >= cumulative, dtype=jnp.int32)
    return jnp.minimum(index, weights.shape[0] - 1)
