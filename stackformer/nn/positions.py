"""The positional encodings of the paper's appendix C, as functions of positions.

Nothing here is a table: every encoding is computed for the positions asked for, so a
length never seen in training cannot be out of range.

    none      nothing.
    sincos    `sinusoids`, added to the embeddings (Vaswani et al., 2017).
    relative  `RelativePositions`: Transformer-XL's four terms (Dai et al., 2019).
    rotary    `rotate`, applied to queries and keys (Su et al., 2021).
    alibi     `alibi_bias`, added to the attention logits (Press et al., 2022).

Legend: T query positions, S key positions, N heads, H features of a head, D = N * H.
"""

import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn import initializers

Positions = Literal["none", "sincos", "relative", "rotary", "alibi"]

POSITIONS: tuple[Positions, ...] = ("none", "sincos", "relative", "rotary", "alibi")


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
        raise ValueError(f"features should be even for sinusoids, but got {features}.")
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
            f"x should have an even last axis to be rotated, but got shape {x.shape}."
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

    Causal: -m_n (i - j) for keys j <= i. Not causal: -m_n |i - j|, with half a step
    given back to the keys on the left, m_n (1/2 - (i - j)) for j < i: without it a head
    could not tell left from right. So does the benchmark of Deletang et al. (2023).

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


def relative_shift(x: jax.Array) -> jax.Array:
    """Turns columns that stand for distances into columns that stand for keys.

    Column c of `x` belongs to the distance i - j = T - 1 - c, from T - 1 down to
    -(C - T). The result has at (i, j) what x has for distance i - j, that is column
    T - 1 - i + j. Each row moves by one step more than the row below it, which is one
    reshape of the padded array (Dai et al., 2019, appendix B).

    Args:
      x: shape (..., T, C) with C = T for causal attention (entries of keys on the right
        are then meaningless and have to be masked), or C = 2T - 1 for both directions.

    Returns:
      Shape (..., T, T).

    Example:
      >>> print(relative_shift(jnp.array([[1, 0, -1], [1, 0, -1]])))
      [[ 0 -1]
       [ 1  0]]
    """
    *batch, length, columns = x.shape
    x = jnp.pad(x, [(0, 0)] * (len(batch) + 1) + [(1, 0)])
    x = x.reshape(*batch, columns + 1, length)[..., 1:, :]
    return x.reshape(*batch, length, columns)[..., :length]


class RelativePositions(nnx.Module):
    """Transformer-XL's relative positions for one attention sub-layer.

    The attention logit of query i and key j is, before the division by sqrt(H),

        (q_i + u) . k_j + (q_i + v) . W_R s(i - j)

    with s the sinusoids of the distance (negative for keys on the right) and learned
    u, v (N, H) and W_R (D, D). This module holds them and computes the second term.
    """

    def __init__(
        self,
        features: int,
        num_heads: int,
        *,
        max_wavelength: float = 10_000.0,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = jnp.float32,
        kernel_init: initializers.Initializer,
        rngs: nnx.Rngs,
    ):
        self.num_heads = num_heads
        self.features = features
        self.max_wavelength = max_wavelength
        bias_shape = (num_heads, features // num_heads)
        bias_init = initializers.normal(0.02)
        self.content_bias = nnx.Param(bias_init(rngs.params(), bias_shape, param_dtype))
        self.position_bias = nnx.Param(
            bias_init(rngs.params(), bias_shape, param_dtype)
        )
        self.projection = nnx.Linear(
            features,
            features,
            use_bias=False,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init,
            rngs=rngs,
        )

    def keys(self, distances: jax.Array) -> jax.Array:
        """W_R s(distance), shape (N, C, H) for distances of shape (C,)."""
        encodings = sinusoids(
            distances, self.features, max_wavelength=self.max_wavelength
        )
        keys = self.projection(encodings)
        return keys.reshape(len(distances), self.num_heads, -1).transpose(1, 0, 2)

    def logits(self, queries: jax.Array, *, causal: bool) -> jax.Array:
        """(q_i + v) . W_R s(i - j) for all i, j < T; queries (B, N, T, H)."""
        length = queries.shape[-2]
        last = -1 if causal else -length
        keys = self.keys(jnp.arange(length - 1, last, -1)).astype(queries.dtype)
        return relative_shift(
            jnp.einsum("bnth,nch->bntc", queries + self.bias(1, queries.dtype), keys)
        )

    def bias(self, which: int, dtype: jax.typing.DTypeLike) -> jax.Array:
        """u (0) or v (1) with shape (1, N, 1, H)."""
        bias = (self.content_bias, self.position_bias)[which]
        return bias[...].astype(dtype)[None, :, None, :]
