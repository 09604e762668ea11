"""Multi-head softmax attention with the positional encodings of `positions.py`.

Legend: B batch, T positions (queries), S positions (keys), N heads, H features of a
head, D = N * H features of the model.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn import initializers

from stackformer.nn.dropout import dropout
from stackformer.nn.positions import (
    POSITIONS,
    Positions,
    RelativePositions,
    alibi_bias,
    rotate,
)
from stackformer.nn.softmax_attention import (
    FORBIDDEN,
    attention_weights,
    softmax_attention,
)


def linear_init() -> initializers.Initializer:
    """Uniform over +-1 / sqrt(fan in), a deviation of 0.58 / sqrt(fan in).

    The benchmark's truncated normal of deviation 0.88 / sqrt(fan in) learns slower: on
    SM (seed 0, learning rate 3e-4, batch 32) it had 0.76 of the training symbols right
    after 2,275 steps (with a cosine schedule, commit d5bd64e), and this 0.95 after 500.
    """
    return initializers.variance_scaling(1 / 3, "fan_in", "uniform")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionCache:
    """Keys and values of the positions read so far, (B * N, max_length, H) each.

    `relative_keys` (N, 2 * max_length - 1, H) are the projected encodings of the
    distances max_length - 1 down to -(max_length - 1); None without relative positions.
    """

    keys: jax.Array
    values: jax.Array
    relative_keys: jax.Array | None = None


class MultiHeadAttention(nnx.Module):
    """Softmax self-attention with N heads: MHA of the paper's section 2.1.

        e_ij    = q_i . k_j / sqrt(H)   [+ what `positions` adds]
        alpha_i = softmax over the allowed j of e_ij
        out_i   = W_O concat over heads of sum_j alpha_i(j) v_j

    With `causal` a position attends to itself and to what lies on its left. (The text
    of the paper says so too, "up to and including itself", while its formula for the
    mask has n < i; with that the first position could attend to nothing.)

    Args:
      features: D.
      num_heads: N, a divisor of D.
      causal: mask the future.
      positions: "none", "relative", "rotary" or "alibi" act here; "sincos" is added to
        the embeddings and changes nothing here.
      max_wavelength: of the sinusoids of "relative" and "rotary".
      use_bias: biases in the four projections. The paper's model has none.
      dtype: dtype of the products; the softmax is always float32. None: the input's.
      param_dtype: dtype of the parameters.
      kernel_init: initializer of the projections.
      rngs: the "params" stream initialises the parameters.

    Example:
      >>> attention = MultiHeadAttention(16, 4, causal=True, rngs=nnx.Rngs(0))
      >>> attention(jnp.ones((2, 5, 16))).shape
      (2, 5, 16)
    """

    def __init__(
        self,
        features: int,
        num_heads: int,
        *,
        causal: bool = False,
        positions: Positions = "none",
        max_wavelength: float = 10_000.0,
        use_bias: bool = False,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = jnp.float32,
        kernel_init: initializers.Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        if num_heads < 1 or features % num_heads:
            raise ValueError(
                f"`num_heads` should divide `features` ({features}), but got "
                f"{num_heads}."
            )
        if positions not in POSITIONS:
            raise ValueError(
                f"`positions` should be one of {POSITIONS}, but got {positions!r}."
            )
        if positions == "rotary" and (features // num_heads) % 2:
            raise ValueError(
                f"`features / num_heads` should be even with rotary positions, but got "
                f"{features} / {num_heads}."
            )
        self.features = features
        self.num_heads = num_heads
        self.causal = causal
        self.positions = positions
        self.max_wavelength = max_wavelength
        options = dict(
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init or linear_init(),
            rngs=rngs,
        )
        # One product for queries, keys and values.
        self.qkv = nnx.Linear(features, 3 * features, use_bias=use_bias, **options)
        self.out = nnx.Linear(features, features, use_bias=use_bias, **options)
        self.relative = (
            RelativePositions(
                features, num_heads, max_wavelength=max_wavelength, **options
            )
            if positions == "relative"
            else None
        )

    def __call__(
        self,
        h: jax.Array,
        *,
        mask: jax.Array | None = None,
        weight_dropout: float = 0.0,
        key: jax.Array | None = None,
        return_weights: bool = False,
    ) -> jax.Array | tuple[jax.Array, jax.Array]:
        """Attends from every position.

        Args:
          h: shape (B, T, D).
          mask: True at real positions, shape (B, T); padding is at the right end and
            nothing attends to it. Causal attention never sees it and needs no mask.
          weight_dropout: rate of dropout on alpha (GPT-2 and RoBERTa have it).
          key: that dropout happens if and only if there is a key.
          return_weights: return alpha too, as it was before dropout.

        Returns:
          Shape (B, T, D), and with `return_weights` also alpha, (B, N, T, T) float32.
        """
        length = h.shape[1]
        q, k, v = self._project(h, jnp.arange(length))
        bias = None
        at = jnp.arange(length)
        if self.relative is not None:
            bias = self.relative.logits(q, causal=self.causal) / math.sqrt(q.shape[-1])
            q = q + self.relative.bias(0, q.dtype)
        elif self.positions == "alibi":
            bias = alibi_bias(at, at, self.num_heads, causal=self.causal)[None]
        if self.causal:
            future = np.triu(np.full((length, length), FORBIDDEN, np.float32), 1)
            bias = _add(bias, jnp.asarray(future)[None, None])
        elif mask is not None:
            bias = _add(bias, jnp.where(mask, 0.0, FORBIDDEN)[:, None, None, :])
        drops = key is not None and weight_dropout > 0.0
        if not return_weights and not drops:
            out = softmax_attention(q, k, v, bias)
            return self._join(out)
        weights = attention_weights(q, k, bias)
        used = dropout(weights.astype(v.dtype), weight_dropout, key)
        out = self._join(jnp.einsum("bnts,bnsh->bnth", used, v))
        return (out, weights) if return_weights else out

    def init_cache(self, batch_size: int, max_length: int) -> AttentionCache:
        """An empty cache for `step`, for at most `max_length` positions."""
        self._check_causal()
        head = self.features // self.num_heads
        dtype = self.qkv.dtype or self.qkv.kernel.dtype
        zeros = jnp.zeros((batch_size * self.num_heads, max_length, head), dtype)
        relative_keys = None
        if self.relative is not None:
            distances = jnp.arange(max_length - 1, -max_length, -1)
            relative_keys = self.relative.keys(distances).astype(dtype)
        return AttentionCache(zeros, zeros, relative_keys)

    def step(
        self, cache: AttentionCache, h: jax.Array, index: jax.Array
    ) -> tuple[AttentionCache, jax.Array]:
        """Attends from the scalar position `index` to itself and its past; h (B, D)."""
        self._check_causal()
        q, k, v = self._project(h[:, None, :], index[None])
        _, length, head = cache.keys.shape
        at = jnp.arange(length)
        bias = jnp.where(at <= index, 0.0, FORBIDDEN)[None, None, :]
        if self.relative is not None:
            relative_keys = jax.lax.dynamic_slice_in_dim(
                cache.relative_keys, length - 1 - index, length, axis=1
            )
            biased = q + self.relative.bias(1, q.dtype)
            relative = jnp.einsum("bnth,nsh->bnts", biased, relative_keys)
            relative = relative.astype(jnp.float32) / math.sqrt(head)
            bias = bias + relative.reshape(-1, 1, length)
            q = q + self.relative.bias(0, q.dtype)
        elif self.positions == "alibi":
            alibi = alibi_bias(index[None], at, self.num_heads, causal=True)
            bias = bias + jnp.tile(alibi, (len(h), 1, 1))
        # Three axes, as in the cache: with a reshape between its update and its product
        # XLA would copy the cache in every step instead of updating it in place.
        q, k, v = (x.reshape(-1, 1, head) for x in (q, k, v))
        keys = jax.lax.dynamic_update_slice(cache.keys, k, (0, index, 0))
        values = jax.lax.dynamic_update_slice(cache.values, v, (0, index, 0))
        weights = attention_weights(q, keys, bias).astype(values.dtype)
        out = jnp.einsum("xts,xsh->xth", weights, values)
        cache = AttentionCache(keys, values, cache.relative_keys)
        return cache, self.out(out.reshape(h.shape))

    def _join(self, out):
        """The output projection of heads put side by side, (B, T, D)."""
        batch, _, length, _ = out.shape
        return self.out(out.transpose(0, 2, 1, 3).reshape(batch, length, -1))

    def _project(self, h, positions):
        """Queries, keys and values, (B, N, T, H) each."""
        batch, length, _ = h.shape
        qkv = self.qkv(h).reshape(batch, length, 3, self.num_heads, -1)
        q, k, v = qkv.transpose(2, 0, 3, 1, 4)
        if self.positions == "rotary":
            q = rotate(q, positions, max_wavelength=self.max_wavelength)
            k = rotate(k, positions, max_wavelength=self.max_wavelength)
        return q, k, v

    def _check_causal(self):
        if not self.causal:
            raise ValueError(
                "Decoding step by step needs causal attention, but got causal=False; "
                "build the model with causal=True."
            )


def _add(bias, more):
    return more if bias is None else bias.astype(jnp.float32) + more
