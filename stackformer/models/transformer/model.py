"""The paper's stack transformer, as a masked and as an autoregressive model.

Legend: B batch, T positions, D features of the model, A actions, O output classes.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from stackformer.models.config import check_tokens
from stackformer.models.layers import (
    DecodeCache,
    ReturnAux,
    init_caches,
    prefill_layers,
    run_layers,
    step_layers,
)
from stackformer.models.transformer.config import TransformerConfig
from stackformer.nn.block import TransformerBlock
from stackformer.nn.dropout import dropout, forward_key
from stackformer.nn.feed_forward import layer_norm, linear_init
from stackformer.nn.positions import POSITIONS, string_positions


class StackTransformer(nnx.Module):
    """A transformer whose layers end in a differentiable stack.

        H^0 = sqrt(D) Embedding(w) [+ sinusoids]
        H^l = Stack(H_ffn) + H_ffn,  H_ffn = LN(FFN(H_mha) + H_mha),
        H_mha = LN(MHA(H^(l-1)) + H^(l-1))
        logits = W_P H^L + b_P

    The first token of every string must be BOS: position 0 is the bottom of the stacks.
    As in the benchmark that the paper builds on, embeddings start as a truncated normal
    of deviation 0.02 and are multiplied by sqrt(D), the projections of attention have
    no biases, and with sincos positions dropout acts on embeddings too. Unlike there,
    linear layers start smaller (`nn.feed_forward.linear_init` says why), and sincos
    positions count from the start of the string and not from its end, since from the
    end they would tell an autoregressive model how long its answer will be.

    Args:
      config: see `TransformerConfig`.
      rngs: the "params" stream initialises the parameters.

    Example:
      >>> config = TransformerConfig(vocab_size=6, output_size=2, num_layers=1)
      >>> model = StackTransformer(config, rngs=nnx.Rngs(0))
      >>> tokens = jnp.array([[1, 4, 5, 2, 2], [1, 5, 2, 0, 0]])
      >>> logits, aux = model(tokens, mask=tokens != 0, return_aux=True)
      >>> logits.shape, aux.stack_weights[0].shape
      ((2, 5, 2), (2, 5, 5))
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.config = config
        dtype = config.compute_dtype
        self.embedding = nnx.Embed(
            config.vocab_size,
            config.d_model,
            dtype=dtype,
            embedding_init=initializers.truncated_normal(0.02),
            rngs=rngs,
        )
        self.layers = nnx.List(
            TransformerBlock(
                config.d_model,
                config.num_heads if config.attention else 0,
                hidden=config.feed_forward,
                stack=config.stack_of(layer),
                stack_first=config.stack_first,
                causal=config.causal,
                positions=config.positions,
                max_wavelength=config.max_wavelength,
                dropout=config.dropout,
                pre_norm=config.pre_norm,
                stack_norm=config.stack_norm,
                gate=config.stack_gate,
                dtype=dtype,
                rngs=rngs,
            )
            for layer in range(config.num_layers)
        )
        self.final_norm = nnx.data(
            layer_norm(config.d_model, dtype=dtype, rngs=rngs)
            if config.pre_norm
            else None
        )
        self.head = nnx.Linear(
            config.d_model,
            config.output_size,
            dtype=jnp.float32,
            kernel_init=linear_init(),
            rngs=rngs,
        )

    def __call__(
        self,
        tokens: jax.Array,
        *,
        mask: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        rngs: nnx.Rngs | None = None,
        actions: jax.Array | Sequence[jax.Array | None] | None = None,
        hard: bool | jax.Array = False,
        return_aux: ReturnAux = False,
        at: jax.Array | None = None,
    ) -> Any:
        """Logits at every position.

        Args:
          tokens: token ids, shape (B, T), BOS first.
          mask: True at real tokens, shape (B, T); padding is at the right end and
            changes nothing at real positions. None: no padding.
          segment_ids: integers, shape (B, T): several strings in a row, each with a
            BOS, a stack and positions of its own.
          rngs: dropout, and the noise of sampled actions, happen if and only if this is
            given; its "dropout" stream.
          actions: structural supervision that replaces the predicted actions: one
            array (B, T, A) for the stacks of all layers, or a sequence with an array
            or None (predict) for each of the `config.depth` layers run. With S > 1
            stacks the shape is (B, S, T, A). They are data: no gradient flows into
            them. To supervise the action head instead (or too), see
            `models.action_loss`.
          hard: stacks take the most probable action; may be traced.
          return_aux: True returns what every layer did, "actions" only the actions,
            which costs nothing.
          at: the positions whose logits are wanted, shape (B, M); None: all.

        Returns:
          Logits (B, T, O), or (B, M, O), float32; with `return_aux` the pair (logits,
          `Aux`).
        """
        check_tokens(tokens, ("mask", mask), ("segment_ids", segment_ids))
        key = forward_key(rngs)
        h = self._embed(tokens, string_positions(tokens.shape[1], segment_ids))
        if key is not None and POSITIONS[self.config.positions].embeds:
            embed_key = jax.random.fold_in(key, self.config.depth)
            h = dropout(h, self.config.dropout, embed_key)
        h, aux = run_layers(
            self._blocks,
            h,
            mask=mask,
            segment_ids=segment_ids,
            actions=actions,
            key=key,
            hard=hard,
            remat=self.config.remat,
            scan=self.config.scan_layers,
            return_aux=return_aux,
            at=at,
        )
        logits = self._output(h)
        return (logits, aux) if return_aux else logits

    def init_cache(
        self, batch_size: int, max_length: int, *, hard: bool = False
    ) -> DecodeCache:
        """An empty state for `decode_step`, for at most `max_length` positions."""
        return init_caches(self._blocks, batch_size, max_length, hard=hard)

    def prefill(
        self, cache: DecodeCache, tokens: jax.Array, length: int | jax.Array
    ) -> tuple[DecodeCache, jax.Array]:
        """Reads a prompt at once: `decode_step` for the first `length` tokens.

        Args:
          cache: from `init_cache`.
          tokens: shape (B, P), BOS first; P is at most the cache's `max_length`.
          length: how many of them are read, a number or a traced scalar, from 1 to P.

        Returns:
          The cache after them and the logits at the last of them, (B, O).
        """
        h = self._embed(tokens, string_positions(tokens.shape[1]))
        cache, h = prefill_layers(self._blocks, cache, h, length)
        return cache, self._output(h)

    def decode_step(
        self, cache: DecodeCache, tokens: jax.Array
    ) -> tuple[DecodeCache, jax.Array]:
        """Reads one token of each string, the next in order, the first being BOS.

        Args:
          cache: from `init_cache` or the step before. After `max_length` steps it is
            full; nothing can check that here, `generate` does.
          tokens: shape (B,).

        Returns:
          The new cache and the logits at this position, (B, O): those of the full
          forward pass.
        """
        h = self._embed(tokens, cache.index[None])
        cache, h = step_layers(self._blocks, cache, h)
        return cache, self._output(h)

    @property
    def _blocks(self):
        """The layers as they are run."""
        return list(self.layers) * self.config.num_loops

    def _embed(self, tokens, positions):
        """Scaled embeddings of tokens; `positions` has the same number of axes."""
        h = self.embedding(tokens) * math.sqrt(self.config.d_model)
        if not self.config.learned_embedding:
            h = jax.lax.stop_gradient(h)
        return POSITIONS[self.config.positions].embed(
            h, positions, max_wavelength=self.config.max_wavelength
        )

    def _output(self, h):
        if self.final_norm is not None:
            h = self.final_norm(h)
        return self.head(h).astype(jnp.float32)
