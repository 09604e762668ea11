"""The positional encodings of the paper's appendix C: one class each.

Nothing here is a table: every encoding is computed for the positions asked for, so a
length never seen in training cannot be out of range.

    none      `Positions`: nothing.
    sincos    `Sincos`: sinusoids added to the embeddings (Vaswani et al., 2017).
    relative  `Relative`: Transformer-XL's four terms (Dai et al., 2019).
    rotary    `Rotary`: queries and keys are rotated (Su et al., 2021).
    alibi     `Alibi`: a bias on the attention logits (Press et al., 2022).

A new encoding is a subclass of `Positions` and a line in `POSITIONS`.

Legend: B batch, T query positions, S key positions, N heads, H features of a head,
D = N * H.
"""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn import initializers

Array = jax.Array


def string_positions(length: int, segment_ids: Array | None = None) -> Array:
    """0, 1, 2, ... from the start of every string: (1, T), or (B, T) with segments.

    Example:
      >>> print(string_positions(5, jnp.array([[7, 7, 8, 8, 8]])))
      [[0 1 0 1 2]]
    """
    at = jnp.arange(length)[None, :]
    if segment_ids is None:
        return at
    return at - jax.lax.cummax(jnp.where(_changes(segment_ids), at, 0), axis=1)


def string_numbers(segment_ids: Array) -> Array:
    """0, 1, 2, ... for the strings of a row, (B, T): an id may come back later.

    Example:
      >>> print(string_numbers(jnp.array([[7, 7, 8, 7, 7]])))
      [[0 0 1 2 2]]
    """
    return jnp.cumsum(_changes(segment_ids), axis=1)


def _changes(segment_ids: Array) -> Array:
    return jnp.pad(segment_ids[:, 1:] != segment_ids[:, :-1], ((0, 0), (1, 0)))


def _angles(positions: jax.Array, count: int, max_wavelength: float) -> jax.Array:
    """positions * max_wavelength^(-k / count) for k < count, (..., count), float32."""
    exponents = -np.arange(count, dtype=np.float32) / count
    frequencies = np.asarray(max_wavelength**exponents, np.float32)
    return jnp.expand_dims(positions.astype(jnp.float32), -1) * frequencies.reshape(
        (1,) * positions.ndim + (count,)
    )


def sinusoids(
    positions: jax.Array, features: int, *, max_wavelength: float = 10_000.0
) -> jax.Array:
    """Sinusoidal encodings of integer positions, which may be negative.

    With theta_k = max_wavelength^(-2k/D): feature k is sin(p theta_k) and feature
    D/2 + k is cos(p theta_k), for k < D/2. (Vaswani et al. interleave the two halves;
    that is a permutation of the features.)

    Args:
      positions: integers of any shape (...).
      features: D, even.
      max_wavelength: the longest wavelength is 2 pi times nearly this.

    Returns:
      Encodings, shape (..., D), float32.

    Example:
      >>> sinusoids(jnp.arange(3), 4).shape
      (3, 4)
    """
    if features % 2:
        raise ValueError(
            f"`features` should be even for sinusoids, but got {features}."
        )
    angles = _angles(positions, features // 2, max_wavelength)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def rotate(
    x: jax.Array, positions: jax.Array, *, max_wavelength: float = 10_000.0
) -> jax.Array:
    """Rotary encoding: turns pairs of features by an angle that grows with position.

    Features k and H/2 + k, read as the complex number x_k + i x_{H/2+k}, are multiplied
    by exp(i p theta_k), theta_k = max_wavelength^(-2k/H). The product of a rotated
    query and a rotated key then depends on the difference of their positions alone.

    Args:
      x: queries or keys, shape (..., T, H), H even.
      positions: shape (T,).
      max_wavelength: as in `sinusoids`.

    Returns:
      Rotated x, same shape and dtype.

    Example:
      >>> float(rotate(jnp.array([[1.0, 0.0]]), jnp.array([jnp.pi]))[0, 0])
      -1.0
    """
    if x.shape[-1] % 2:
        raise ValueError(
            f"`x` should have an even last axis to be rotated, but got shape {x.shape}."
        )
    angles = _angles(positions, x.shape[-1] // 2, max_wavelength)
    angles = angles.reshape((1,) * (x.ndim - 2) + angles.shape)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    real, imaginary = jnp.split(x, 2, axis=-1)
    return jnp.concatenate(
        [real * cos - imaginary * sin, real * sin + imaginary * cos], axis=-1
    )


def alibi_slopes(num_heads: int) -> np.ndarray:
    """ALiBi's slopes of the heads, (N,): the geometric sequence 2^(-8/N), 2^(-16/N)..

    When N is not a power of two, the sequence of the power of two below comes first and
    every other slope of the power of two above fills the rest, as its authors do.

    Example:
      >>> alibi_slopes(2).tolist()
      [0.0625, 0.00390625]
    """
    below = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * (n + 1) / below) for n in range(below)]
    if below < num_heads:
        slopes += alibi_slopes(2 * below)[0::2][: num_heads - below].tolist()
    return np.asarray(slopes, np.float32)


def alibi_bias(
    query_positions: jax.Array,
    key_positions: jax.Array,
    num_heads: int,
    *,
    causal: bool,
) -> jax.Array:
    """ALiBi's addition to the attention logits: a penalty linear in the distance.

    Causal: -m_n (i - j) for keys j <= i, as its authors have it. Not causal:
    -m_n |i - j|, with half a step given back to the keys on the left,
    m_n (1/2 - (i - j)) for j < i: without it a head could not tell left from right.
    The benchmark of Deletang et al. (2023) does the latter in both cases, so its causal
    ALiBi differs from this one by half a step.

    Args:
      query_positions: i, shape (T,).
      key_positions: j, shape (S,).
      num_heads: N.
      causal: whether keys on the right are masked anyway.

    Returns:
      Biases, shape (N, T, S), float32.

    Example:
      >>> print(alibi_bias(jnp.arange(2), jnp.arange(2), 8, causal=False)[0])
      [[ 0.   -0.5 ]
       [-0.25  0.  ]]
    """
    distance = query_positions[:, None] - key_positions[None, :]
    steps = -jnp.abs(distance).astype(jnp.float32)
    if not causal:
        steps = steps + 0.5 * (distance > 0)
    return jnp.asarray(alibi_slopes(num_heads))[:, None, None] * steps[None]


def relative_shift(x: Array, num_keys: int) -> Array:
    """Turns columns that stand for distances into columns that stand for keys.

    Column c of row i belongs to the distance T - 1 - c + first, from the farthest key
    on the left of the last query downwards; the result has at (i, j) column
    T - 1 - i + j. Each row moves by one step more than the row below it, which is one
    reshape of the padded array (Dai et al., 2019, appendix B).

    Args:
      x: shape (..., T, C). C = T + S - 1 covers every pair. With C = T = S only keys on
        the left are covered (causal attention); the others' entries are meaningless
        and have to be masked.
      num_keys: S.

    Returns:
      Shape (..., T, S).

    Example:
      >>> print(relative_shift(jnp.array([[1, 0, -1], [1, 0, -1]]), 2))
      [[ 0 -1]
       [ 1  0]]
    """
    *batch, length, columns = x.shape
    x = jnp.pad(x, [(0, 0)] * (len(batch) + 1) + [(1, 0)])
    x = x.reshape(*batch, columns + 1, length)[..., 1:, :]
    return x.reshape(*batch, length, columns)[..., :num_keys]


class Positions(nnx.Module):
    """No positions; the base of the others, and all that attention knows of them.

    Args:
      features: D.
      num_heads: N.
      causal: whether a position attends to its past alone.
      max_wavelength: of the sinusoids.
      dtype, param_dtype, kernel_init, rngs: of what an encoding learns.
    """

    name: ClassVar[str] = "none"
    # Whether `embed` changes embeddings (dropout then acts on them too).
    embeds: ClassVar[bool] = False

    def __init__(
        self,
        features: int,
        num_heads: int,
        *,
        causal: bool = False,
        max_wavelength: float = 10_000.0,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = jnp.float32,
        kernel_init: initializers.Initializer | None = None,
        rngs: nnx.Rngs | None = None,
    ):
        self.features = features
        self.num_heads = num_heads
        self.causal = causal
        self.max_wavelength = max_wavelength
        self.check(features, num_heads)

    @classmethod
    def check(cls, features: int, num_heads: int) -> None:
        """Raises ValueError where these sizes do not fit the encoding."""

    @classmethod
    def embed(cls, h: Array, positions: Array, *, max_wavelength: float) -> Array:
        """Embeddings (..., D) with their positions, which broadcast to (...)."""
        return h

    def rotate(self, q: Array, k: Array, positions: Array) -> tuple[Array, Array]:
        """Queries and keys (B, N, T, H) as they enter the product; positions (T,)."""
        return q, k

    def table(self, length: int) -> Array | None:
        """What `bias` needs to know of distances below `length`; decoding keeps it."""
        return None

    def bias(
        self, q: Array, first: int | Array, num_keys: int, table: Array | None
    ) -> Array | None:
        """Additions to the attention logits, float32, broadcast to (B, N, T, S).

        Args:
          q: queries at the positions first, first + 1, ..., before `rotate`,
            (B, N, T, H).
          first: a number, or a traced scalar.
          num_keys: S; keys are at the positions 0..S-1.
          table: `table(length)` with length >= S.
        """
        return None


class Sincos(Positions):
    """Sinusoids of the absolute position, added to the embeddings."""

    name = "sincos"
    embeds = True

    @classmethod
    def check(cls, features: int, num_heads: int) -> None:
        _check_even("features", features, cls.name)

    @classmethod
    def embed(cls, h: Array, positions: Array, *, max_wavelength: float) -> Array:
        encodings = sinusoids(positions, h.shape[-1], max_wavelength=max_wavelength)
        return h + encodings.astype(h.dtype)


class Rotary(Positions):
    """Queries and keys turned by an angle that grows with the position: `rotate`."""

    name = "rotary"

    @classmethod
    def check(cls, features: int, num_heads: int) -> None:
        _check_even("features / num_heads", features // num_heads, cls.name)

    def rotate(self, q: Array, k: Array, positions: Array) -> tuple[Array, Array]:
        options = {"max_wavelength": self.max_wavelength}
        return rotate(q, positions, **options), rotate(k, positions, **options)


class Alibi(Positions):
    """A penalty on the attention logits, linear in the distance: `alibi_bias`."""

    name = "alibi"

    def bias(
        self, q: Array, first: int | Array, num_keys: int, table: Array | None
    ) -> Array:
        queries = first + jnp.arange(q.shape[-2])
        return alibi_bias(
            queries, jnp.arange(num_keys), self.num_heads, causal=self.causal
        )[None]


class Relative(Positions):
    """Transformer-XL's relative positions for one attention sub-layer.

    The attention logit of query i and key j is, before the division by sqrt(H),

        (q_i + u) . k_j + (q_i + v) . W_R s(i - j)

    with s the sinusoids of the distance (negative for keys on the right) and learned
    u, v (N, H) and W_R (D, D).
    """

    name = "relative"

    def __init__(self, features: int, num_heads: int, **options):
        super().__init__(features, num_heads, **options)
        rngs, param_dtype = options["rngs"], options.get("param_dtype", jnp.float32)
        shape = (num_heads, features // num_heads)
        init = initializers.normal(0.02)
        self.content_bias = nnx.Param(init(rngs.params(), shape, param_dtype))
        self.position_bias = nnx.Param(init(rngs.params(), shape, param_dtype))
        self.projection = nnx.Linear(
            features,
            features,
            use_bias=False,
            dtype=options.get("dtype"),
            param_dtype=param_dtype,
            kernel_init=options["kernel_init"],
            rngs=rngs,
        )

    @classmethod
    def check(cls, features: int, num_heads: int) -> None:
        _check_even("features", features, cls.name)

    def rotate(self, q: Array, k: Array, positions: Array) -> tuple[Array, Array]:
        return q + _per_head(self.content_bias, q.dtype), k

    def table(self, length: int) -> Array:
        """W_R s(d) for d from length - 1 down to 1 - length, (N, 2 length - 1, H)."""
        return self._keys(jnp.arange(length - 1, -length, -1))

    def bias(
        self, q: Array, first: int | Array, num_keys: int, table: Array | None
    ) -> Array:
        length, head = q.shape[-2:]
        if table is None:  # a whole string: causal attention needs no keys on the right
            last = -1 if self.causal else -length
            keys = self._keys(jnp.arange(length - 1, last, -1))
        else:
            # From the distance of the last query to key 0 down to that of the first
            # query to key S - 1.
            start = (table.shape[1] - 1) // 2 - (first + length - 1)
            keys = jax.lax.dynamic_slice_in_dim(
                table, start, length + num_keys - 1, axis=1
            )
        biased = q + _per_head(self.position_bias, q.dtype)
        logits = jnp.einsum("bnth,nch->bntc", biased, keys.astype(q.dtype))
        logits = relative_shift(logits, num_keys).astype(jnp.float32)
        return logits / math.sqrt(head)

    def _keys(self, distances: Array) -> Array:
        encodings = sinusoids(
            distances, self.features, max_wavelength=self.max_wavelength
        )
        keys = self.projection(encodings)
        return keys.reshape(len(distances), self.num_heads, -1).transpose(1, 0, 2)


# Every encoding by name; "none" first, the paper's default.
POSITIONS: dict[str, type[Positions]] = {
    kind.name: kind for kind in (Positions, Sincos, Relative, Rotary, Alibi)
}


def _per_head(bias: nnx.Param, dtype: jax.typing.DTypeLike) -> Array:
    return bias[...].astype(dtype)[None, :, None, :]


def _check_even(what: str, size: int, name: str) -> None:
    if size % 2:
        raise ValueError(
            f"`{what}` should be even with positions={name!r}, but got {size}."
        )
