"""The paper's stack transformer, as a masked and as an autoregressive model.

Legend: B batch, T positions, D features of the model, A actions, O output classes.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import initializers

from stackformer import ops
from stackformer.models.outputs import Aux
from stackformer.models.transformer_config import TransformerConfig
from stackformer.nn.attention import linear_init
from stackformer.nn.blocks import BlockCache, TransformerBlock, layer_norm
from stackformer.nn.dropout import dropout, dropout_key
from stackformer.nn.positions import sinusoids


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecodeCache:
    """Everything that decoding remembers: the next position and a state per layer."""

    index: jax.Array
    layers: tuple[BlockCache, ...]


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
    linear layers start smaller (`nn.attention.linear_init` says why), and sincos
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
        dtype = jnp.dtype(config.dtype)
        self.embedding = nnx.Embed(
            config.vocab_size,
            config.d_model,
            dtype=dtype,
            embedding_init=initializers.truncated_normal(0.02),
            rngs=rngs,
        )
        stack = dict(
            num_stacks=config.num_stacks,
            implementation=config.stack_implementation,
            chunk_size=config.stack_chunk_size,
            max_depth=config.max_depth,
            max_pops=config.max_pops,
        )
        self.layers = nnx.List(
            TransformerBlock(
                config.d_model,
                config.num_heads,
                hidden=config.d_ff or 4 * config.d_model,
                stack=stack if config.has_stack(layer) else None,
                causal=config.causal,
                positions=config.positions,
                max_wavelength=config.max_wavelength,
                dropout=config.dropout,
                pre_norm=config.pre_norm,
                stack_norm=config.stack_norm,
                dtype=dtype,
                rngs=rngs,
            )
            for layer in range(config.num_layers)
        )
        self.final_norm = (
            layer_norm(config.d_model, dtype=dtype, rngs=rngs)
            if config.pre_norm
            else None
        )
        self.head = nnx.Linear(
            config.d_model,
            config.output_size,
            dtype=dtype,
            kernel_init=linear_init(),
            rngs=rngs,
        )

    def __call__(
        self,
        tokens: jax.Array,
        *,
        mask: jax.Array | None = None,
        rngs: nnx.Rngs | None = None,
        actions: jax.Array | Sequence[jax.Array | None] | None = None,
        return_aux: bool | Literal["actions"] = False,
    ) -> jax.Array | tuple[jax.Array, Aux]:
        """Logits at every position.

        Args:
          tokens: token ids, shape (B, T), BOS first.
          mask: True at real tokens, shape (B, T); padding is at the right end and
            changes nothing at real positions. None: no padding.
          rngs: dropout happens if and only if this is given; its "dropout" stream.
          actions: structural supervision that replaces the predicted actions: one
            array (B, T, A) for the stacks of all layers, or a sequence with an array
            or None (predict) for each of the `config.depth` layers run. With S > 1
            stacks the shape is (B, S, T, A). To supervise the action head instead
            (or too), see `models.action_loss`.
          return_aux: True returns what every layer did, "actions" only the actions,
            which costs nothing.

        Returns:
          Logits (B, T, O) float32, or the pair (logits, `Aux`).
        """
        self._check_tokens(tokens, mask)
        if return_aux not in (False, True, "actions"):
            raise ValueError(
                "`return_aux` should be False, True or 'actions', but got "
                f"{return_aux!r}."
            )
        given = self._given_actions(actions)
        key = dropout_key(rngs, self.config.dropout)
        h = self._embed(tokens, jnp.arange(tokens.shape[1])[None, :])
        if self.config.positions == "sincos" and key is not None:
            h = dropout(
                h, self.config.dropout, jax.random.fold_in(key, self.config.depth)
            )
        collected = []
        for step in range(self.config.depth):
            block = self.layers[step % self.config.num_layers]
            layer_actions, layer_weights = given[step]
            h, aux = block(
                h,
                mask=mask,
                actions=layer_actions,
                weights=layer_weights,
                key=None if key is None else jax.random.fold_in(key, step),
                return_weights=return_aux is True,
                return_actions=bool(return_aux),
            )
            collected.append(aux)
        logits = self._output(h)
        if not return_aux:
            return logits
        fields = (field.name for field in dataclasses.fields(Aux))
        return logits, Aux(
            **{name: tuple(getattr(aux, name) for aux in collected) for name in fields}
        )

    def init_cache(self, batch_size: int, max_length: int) -> DecodeCache:
        """An empty state for `decode_step`, for at most `max_length` positions.

        A stack of `max_length` steps needs to remember max_length * K / (K + 1)
        elements, K = max_pops: what lies deeper can never come back to the top.
        """
        config = self.config
        depth = max_length * config.max_pops // (config.max_pops + 1) + 1
        depth = min(depth, config.max_depth or depth)
        layers = tuple(
            self.layers[step % config.num_layers].init_cache(
                batch_size, max_length, depth
            )
            for step in range(config.depth)
        )
        return DecodeCache(jnp.zeros((), jnp.int32), layers)

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
        layers = []
        for step, layer_cache in enumerate(cache.layers):
            block = self.layers[step % self.config.num_layers]
            layer_cache, h = block.step(layer_cache, h, cache.index)
            layers.append(layer_cache)
        return DecodeCache(cache.index + 1, tuple(layers)), self._output(h)

    def _embed(self, tokens, positions):
        """Scaled embeddings of tokens; `positions` has the same number of axes."""
        config = self.config
        h = self.embedding(tokens) * math.sqrt(config.d_model)
        if config.positions == "sincos":
            h = h + sinusoids(
                positions, config.d_model, max_wavelength=config.max_wavelength
            ).astype(h.dtype)
        return h

    def _output(self, h):
        if self.final_norm is not None:
            h = self.final_norm(h)
        return self.head(h).astype(jnp.float32)

    def _given_actions(self, actions):
        """Pairs (actions, alpha) for each layer run; None, None where predicted."""
        depth = self.config.depth
        if actions is None:
            return [(None, None)] * depth
        has_stack = [
            self.layers[step % self.config.num_layers].stack is not None
            for step in range(depth)
        ]
        if not any(has_stack):
            raise ValueError(
                "`actions` were given, but no layer of this model has a stack."
            )
        if isinstance(actions, (list, tuple)):
            if len(actions) != depth:
                raise ValueError(
                    f"`actions` should have one entry for each of the {depth} layers, "
                    f"but got {len(actions)}."
                )
            for step, (given, stack) in enumerate(zip(actions, has_stack, strict=True)):
                if given is not None and not stack:
                    raise ValueError(
                        f"`actions[{step}]` should be None, as layer {step} has no "
                        f"stack, but got shape {given.shape}."
                    )
            return [(layer_actions, None) for layer_actions in actions]
        # All layers share alpha: it is computed once, and nothing else is sequential.
        alpha = ops.stack_attention_weights(
            actions, max_depth=self.config.max_depth, max_pops=self.config.max_pops
        )
        return [(actions, alpha) if stack else (None, None) for stack in has_stack]

    def _check_tokens(self, tokens, mask):
        if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise ValueError(
                "`tokens` should be integers of shape (B, T), but got "
                f"{tokens.dtype} of shape {tokens.shape}."
            )
        if mask is not None and mask.shape != tokens.shape:
            raise ValueError(
                f"`mask` shape should be that of `tokens`, {tokens.shape}, but got "
                f"{mask.shape}."
            )
