"""Multi-head softmax attention with the positional encodings of `positions.py`.

Legend: B batch, T positions (queries), S positions (keys), N heads, H features of a
head, D = N * H features of the model.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn import initializers

from stackformer.nn.dropout import dropout
from stackformer.nn.feed_forward import linear_init
from stackformer.nn.positions import POSITIONS, string_numbers
from stackformer.ops.softmax_attention import (
    FORBIDDEN,
    attention_weights,
    softmax_attention,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionCache:
    """Keys and values of the positions read so far, (B * N, max_length, H) each.

    `table` is what the positional encoding knows of all distances (`Positions.table`).
    """

    keys: jax.Array
    values: jax.Array
    table: jax.Array | None = None


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
      positions: a name of `stackformer.nn.POSITIONS`. "sincos" is added to the
        embeddings and changes nothing here.
      max_wavelength: of the sinusoids of "relative" and "rotary".
      use_bias: biases in the four projections. The paper's model has none.
      dtype: dtype of the products; the softmax is always float32. None: the input's.
      param_dtype: dtype of the parameters.
      kernel_init: initializer of the projections.
      rngs: the "params" stream initialises the parameters.

    Example:
      >>> attention = MultiHeadAttention(16, 4, causal=True, rngs=nnx.Rngs(0))
      >>> attention(jnp.ones((2, 5, 16)))[0].shape
      (2, 5, 16)
    """

    def __init__(
        self,
        features: int,
        num_heads: int,
        *,
        causal: bool = False,
        positions: str = "none",
        max_wavelength: float = 10_000.0,
        use_bias: bool = False,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = jnp.float32,
        kernel_init: initializers.Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        if num_heads < 1 or features < 1 or features % num_heads:
            raise ValueError(
                f"`num_heads` should divide `features` ({features}), but got "
                f"{num_heads}."
            )
        if positions not in POSITIONS:
            raise ValueError(
                f"`positions` should be one of {', '.join(POSITIONS)}, but got "
                f"{positions!r}."
            )
        self.features = features
        self.num_heads = num_heads
        self.causal = causal
        options: dict[str, Any] = dict(
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init or linear_init(),
            rngs=rngs,
        )
        # One product for queries, keys and values.
        self.qkv = nnx.Linear(features, 3 * features, use_bias=use_bias, **options)
        self.out = nnx.Linear(features, features, use_bias=use_bias, **options)
        self.positions = POSITIONS[positions](
            features,
            num_heads,
            causal=causal,
            max_wavelength=max_wavelength,
            **options,
        )

    def __call__(
        self,
        h: jax.Array,
        *,
        mask: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        weight_dropout: float = 0.0,
        key: jax.Array | None = None,
        return_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Attends from every position.

        Args:
          h: shape (B, T, D).
          mask: True at real positions, shape (B, T); padding is at the right end and
            nothing attends to it. Causal attention never sees it and needs no mask.
          segment_ids: shape (B, T): a position attends to its own segment alone.
          weight_dropout: rate of dropout on alpha (GPT-2 and RoBERTa have it).
          key: that dropout happens if and only if there is a key.
          return_weights: return alpha too, as it was before dropout.

        Returns:
          Shape (B, T, D), and alpha, (B, N, T, T) float32, or None if not asked for.
        """
        length = h.shape[1]
        q, k, v, bias = self._project(h, 0, length, None)
        if mask is not None and not self.causal:
            bias = _add(bias, jnp.where(mask, 0.0, FORBIDDEN)[:, None, None, :])
        if segment_ids is not None:
            strings = string_numbers(segment_ids)
            same = strings[:, None, :, None] == strings[:, None, None, :]
            bias = _add(bias, jnp.where(same, 0.0, FORBIDDEN))
        drops = key is not None and weight_dropout > 0.0
        if not return_weights and not drops:
            return self._join(softmax_attention(q, k, v, bias)), None
        weights = attention_weights(q, k, bias)
        used = dropout(weights.astype(v.dtype), weight_dropout, key)
        out = self._join(jnp.einsum("bnts,bnsh->bnth", used, v))
        return out, weights if return_weights else None

    def init_cache(self, batch_size: int, max_length: int) -> AttentionCache:
        """An empty cache for `step`, for at most `max_length` positions."""
        if not self.causal:
            raise ValueError(
                "`causal` should be True to decode step by step, but got False; build "
                "the model with causal=True."
            )
        head = self.features // self.num_heads
        dtype = self.qkv.dtype or self.qkv.kernel.dtype
        zeros = jnp.zeros((batch_size * self.num_heads, max_length, head), dtype)
        return AttentionCache(zeros, zeros, self.positions.table(max_length))

    def prefill(
        self, cache: AttentionCache, h: jax.Array
    ) -> tuple[AttentionCache, jax.Array]:
        """Attends from all positions of a prompt, h (B, T, D), and fills the cache."""
        length = h.shape[1]
        q, k, v, bias = self._project(h, 0, length, None)

        def filled(old, new):
            new = new.reshape(-1, length, old.shape[2]).astype(old.dtype)
            return jax.lax.dynamic_update_slice(old, new, (0, 0, 0))

        cache = AttentionCache(
            filled(cache.keys, k), filled(cache.values, v), cache.table
        )
        return cache, self._join(softmax_attention(q, k, v, bias))

    def step(
        self, cache: AttentionCache, h: jax.Array, index: jax.Array
    ) -> tuple[AttentionCache, jax.Array]:
        """Attends from the scalar position `index` to itself and its past; h (B, D)."""
        _, length, head = cache.keys.shape
        q, k, v, bias = self._project(h[:, None, :], index, length, cache.table)
        assert bias is not None  # of causal attention
        bias = jnp.broadcast_to(bias, (*q.shape[:2], 1, length))
        # Three axes, as in the cache: with a reshape between its update and its product
        # XLA would copy the cache in every step instead of updating it in place.
        q, k, v = (x.reshape(-1, 1, head) for x in (q, k, v))
        k, v = k.astype(cache.keys.dtype), v.astype(cache.values.dtype)
        keys = jax.lax.dynamic_update_slice(cache.keys, k, (0, index, 0))
        values = jax.lax.dynamic_update_slice(cache.values, v, (0, index, 0))
        weights = attention_weights(q, keys, bias.reshape(-1, 1, length))
        out = jnp.einsum("xts,xsh->xth", weights.astype(values.dtype), values)
        cache = AttentionCache(keys, values, cache.table)
        return cache, self.out(out.reshape(h.shape))

    def _project(self, h, first, num_keys, table):
        """Queries, keys, values (B, N, T, H) at the positions first, first + 1, ..,
        and the bias of positions and causality against the keys 0..num_keys-1."""
        batch, length, _ = h.shape
        qkv = self.qkv(h).reshape(batch, length, 3, self.num_heads, -1)
        q, k, v = qkv.transpose(2, 0, 3, 1, 4)
        bias = self.positions.bias(q, first, num_keys, table)
        q, k = self.positions.rotate(q, k, first + jnp.arange(length))
        if self.causal:
            bias = _add(bias, _future(first, length, num_keys))
        return q, k, v, bias

    def _join(self, out):
        """The output projection of heads put side by side, (B, T, D)."""
        batch, _, length, _ = out.shape
        return self.out(out.transpose(0, 2, 1, 3).reshape(batch, length, -1))


def _future(first, length, num_keys):
    """`FORBIDDEN` at the keys on the right of each query, (1, 1, T, S)."""
    if isinstance(first, int):
        bias = np.full((length, num_keys), FORBIDDEN, np.float32)
        return jnp.asarray(np.triu(bias, 1 + first))[None, None]
    queries = first + jnp.arange(length)[:, None]
    future = jnp.arange(num_keys)[None, :] > queries
    return jnp.where(future, FORBIDDEN, 0.0)[None, None]


def _add(bias, more):
    return more if bias is None else bias + more
