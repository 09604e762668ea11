"""Structural supervision: a loss on the action heads of a model with stacks."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from stackformer.models.outputs import Aux
from stackformer.nn.stacks import entropy


def action_loss(
    aux: Aux,
    targets: jax.Array | Sequence[jax.Array | None],
    *,
    mask: jax.Array | None = None,
) -> jax.Array:
    """Cross-entropy of the action heads against given actions: structural supervision.

    The mean over layers and over real positions of -sum_a targets(a) log softmax(z)(a),
    from the logits z, so that its gradient never vanishes. A transformer's stack
    ignores what is said at position 0, its bottom, which does not count; the stack of a
    recurrent model rests below position 0, so there all positions count
    (`Aux.bottom_first`).

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
    if not isinstance(targets, Sequence):
        targets = [targets] * len(aux.action_logits)
    if len(targets) != len(aux.action_logits):
        raise ValueError(
            "`targets` should have one entry for each of the "
            f"{len(aux.action_logits)} layers, but got {len(targets)}."
        )
    losses = []
    for predicted, target in zip(aux.action_logits, targets, strict=True):
        if predicted is None or target is None:
            continue
        loss = -jnp.sum(target * jax.nn.log_softmax(predicted), axis=-1)
        losses.append(_mean_over_actions(loss, aux, mask))
    if not losses:
        raise ValueError(
            "`aux` has no predicted actions for these targets; call the model with "
            "return_aux='actions' and give targets for a layer with a stack."
        )
    return functools.reduce(jnp.add, losses) / len(losses)


def action_entropies(
    aux: Aux, *, mask: jax.Array | None = None
) -> list[jax.Array | None]:
    """Mean entropy of each layer's predicted actions, in nats; None without a stack.

    0 is a hard stack, log 3 = 1.1 one that does everything at once. The mean is over
    the positions that `action_loss` counts.

    Args:
      aux: of a forward pass with return_aux="actions" (or True).
      mask: True at real positions, shape (B, T).
    """
    return [
        None if logits is None else _mean_over_actions(entropy(logits), aux, mask)
        for logits in aux.action_logits
    ]


def action_counts(
    shape: tuple[int, ...], aux: Aux, mask: jax.Array | None
) -> jax.Array:
    """1.0 where a predicted action moves a stack, (B, T) or (B, S, T), else 0.0."""
    counts = jnp.ones(shape)
    if aux.bottom_first:
        counts = counts.at[..., 0].set(0.0)
    if mask is not None:
        counts *= mask if len(shape) == 2 else mask[:, None, :]
    return counts


def _mean_over_actions(x: jax.Array, aux: Aux, mask: jax.Array | None) -> jax.Array:
    counts = action_counts(x.shape, aux, mask)
    return jnp.sum(x * counts) / jnp.maximum(jnp.sum(counts), 1.0)
