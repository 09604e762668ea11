"""Masks for masked language modeling, drawn on the device."""

import jax
import jax.numpy as jnp


def mask_tokens(
    key: jax.Array,
    tokens: jax.Array,
    *,
    mask_id: int,
    vocab_size: int,
    special_ids: tuple[int, ...],
    rate: float = 0.15,
) -> tuple[jax.Array, jax.Array]:
    """Hides tokens in the way of BERT and RoBERTa.

    Each token that is not special is chosen with probability `rate`, on its own. Of
    the chosen ones 80% become the mask token, 10% a token drawn uniformly from the
    vocabulary, 10% stay as they are; all of them are to be predicted.

    Args:
      key: the masks are a function of it; fold the step into it for new masks.
      tokens: ids, any shape.
      mask_id: the id of <mask>.
      vocab_size: random tokens are drawn below it.
      special_ids: ids that are never chosen.
      rate: the share of tokens that is chosen.

    Returns:
      The tokens to feed, and where to predict the original ones (bool); both of the
      shape of `tokens`.

    Example:
      >>> tokens = jnp.full((8, 128), 7)
      >>> fed, chosen = mask_tokens(
      ...     jax.random.key(0), tokens, mask_id=4, vocab_size=300, special_ids=(0, 2)
      ... )
      >>> bool(0.1 < chosen.mean() < 0.2), bool((fed[~chosen] == 7).all())
      (True, True)
    """
    choose, how, what = jax.random.split(key, 3)
    special = jnp.zeros(tokens.shape, bool)
    for token in special_ids:
        special |= tokens == token
    chosen = jax.random.bernoulli(choose, rate, tokens.shape) & ~special
    kind = jax.random.uniform(how, tokens.shape)
    random = jax.random.randint(what, tokens.shape, 0, vocab_size, tokens.dtype)
    hidden = jnp.where(kind < 0.8, jnp.asarray(mask_id, tokens.dtype), random)
    fed = jnp.where(chosen & (kind < 0.9), hidden, tokens)
    return fed, chosen


def mask_rows(
    key: jax.Array, rows: jax.Array, tokens: jax.Array, **options
) -> tuple[jax.Array, jax.Array]:
    """`mask_tokens` for numbered chunks: a chunk's mask depends on its number alone.

    So a measurement sees the same masks whatever the batch size or the model.

    Args:
      key: of the measurement.
      rows: numbers of the chunks, (B,).
      tokens: (B, T).
      **options: see `mask_tokens`.
    """
    keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(rows)
    return jax.vmap(lambda key, row: mask_tokens(key, row, **options))(keys, tokens)
