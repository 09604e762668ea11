"""What GPT-2 and RoBERTa share: how their parts are made.

Legend: B batch, T positions, D features, L layers, V token ids.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer.models.language.config import LanguageModelConfig
from stackformer.nn import feed_forward
from stackformer.nn.block import TransformerBlock


def weight_init(stddev: float = 0.02) -> nnx.Initializer:
    """How GPT-2 and RoBERTa draw every matrix."""
    return nnx.initializers.normal(stddev)


def linear(
    config: LanguageModelConfig, inputs: int, outputs: int, rngs: nnx.Rngs
) -> nnx.Linear:
    """A dense layer with a bias that starts at zero."""
    return nnx.Linear(
        inputs,
        outputs,
        dtype=config.compute_dtype,
        kernel_init=weight_init(),
        rngs=rngs,
    )


def layer_norm(config: LanguageModelConfig, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Layer norm over the features, statistics in float32."""
    return feed_forward.layer_norm(
        config.d_model,
        epsilon=config.layer_norm_eps,
        dtype=config.compute_dtype,
        rngs=rngs,
    )


def embedding(config: LanguageModelConfig, rows: int, rngs: nnx.Rngs) -> nnx.Embed:
    """A table of `rows` vectors."""
    return nnx.Embed(
        rows,
        config.d_model,
        dtype=config.compute_dtype,
        embedding_init=weight_init(),
        rngs=rngs,
    )


def blocks(
    config: LanguageModelConfig,
    *,
    causal: bool,
    pre_norm: bool,
    activation: Callable[[jax.Array], jax.Array],
    rngs: nnx.Rngs,
) -> nnx.List:
    """The column of blocks.

    pre-norm (GPT-2):     H + MHA(LN(H)),   H + FFN(LN(H)),   H + S(H)
    post-norm (RoBERTa):  LN(H + MHA(H)),   LN(H + FFN(H)),   H + S(H)
    """
    return nnx.List(
        TransformerBlock(
            config.d_model,
            config.num_heads,
            hidden=config.feed_forward,
            stack=config.stack_of(layer),
            causal=causal,
            use_bias=True,
            activation=activation,
            dropout=config.dropout,
            weight_dropout=config.attention_rate,
            pre_norm=pre_norm,
            gate=config.stack_gate,
            layer_norm_eps=config.layer_norm_eps,
            dtype=config.compute_dtype,
            kernel_init=weight_init(),
            rngs=rngs,
        )
        for layer in range(config.num_layers)
    )


def tied_logits(x: jax.Array, embed: nnx.Embed) -> jax.Array:
    """x @ E^T with float32 sums, (..., D) -> (..., V)."""
    table = embed.embedding[...].astype(x.dtype)
    return jnp.einsum("...d,vd->...v", x, table, preferred_element_type=jnp.float32)
