"""Structural supervision: a loss on the action heads of a model with stacks."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from stackformer.models.outputs import Aux


def action_loss(
    aux: Aux,
    targets: jax.Array | Sequence[jax.Array | None],
    *,
    mask: jax.Array | None = None,
) -> jax.Array:
    """Cross-entropy of the action heads against given actions: structural supervision.

    The mean over layers and over real positions from 1 on (the stack ignores what is
    said at position 0) of -sum_a targets(a) log predicted(a).

    Args:
      aux: of a forward pass with return_aux="actions" (or True).
      targets: action distributions (B, T, A), (B, S, T, A) with several stacks, the
        same for all layers; or a sequence with an array or None for each layer run.
      mask: True at real positions, shape (B, T).

    Returns:
      A scalar, to be added to the loss with a weight of choice.

    Example:
      >>> from flax import nnx
      >>> from stackformer.models import StackTransformer, TransformerConfig
      >>> brackets = jnp.array([[1, 4, 4, 5, 5]])  # BOS ( ( ) )
      >>> actions = jax.nn.one_hot(jnp.where(brackets == 4, 0, 1), 3)
      >>> config = TransformerConfig(vocab_size=6, output_size=2, num_layers=1)
      >>> model = StackTransformer(config, rngs=nnx.Rngs(0))
      >>> logits, aux = model(brackets, return_aux="actions")
      >>> bool(action_loss(aux, actions) > 0)
      True
    """
    if not isinstance(targets, (list, tuple)):
        targets = [targets] * len(aux.predicted_actions)
    if len(targets) != len(aux.predicted_actions):
        raise ValueError(
            "`targets` should have one entry for each of the "
            f"{len(aux.predicted_actions)} layers, but got {len(targets)}."
        )
    losses = []
    for predicted, target in zip(aux.predicted_actions, targets, strict=True):
        if predicted is None or target is None:
            continue
        tiny = jnp.finfo(predicted.dtype).tiny
        loss = -jnp.sum(target * jnp.log(jnp.maximum(predicted, tiny)), axis=-1)
        counts = jnp.ones_like(loss).at[..., 0].set(0.0)
        if mask is not None:
            counts *= mask if loss.ndim == 2 else mask[:, None, :]
        losses.append(jnp.sum(loss * counts) / jnp.maximum(jnp.sum(counts), 1.0))
    if not losses:
        raise ValueError(
            "`aux` has no predicted actions for these targets; call the model with "
            "return_aux='actions' and give targets for a layer with a stack."
        )
    return sum(losses) / len(losses)
