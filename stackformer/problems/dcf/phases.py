"""From soft to hard: what is added to the loss, and when, for each seed.

    soft       the paper's training: the stack mixes its actions
    sharpened  + entropy_weight times the mean entropy of the actions
    hard       the forward pass takes the most probable action (straight-through)

A seed goes from soft to sharpened when the running mean of its training accuracy
reaches `sharpen_at`, and from there to hard when the running mean of its entropy has
fallen to `harden_at` as well. `DCFConfig.phases` names the last phase that is allowed.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from stackformer import models

Array = jax.Array
PHASES = ("soft", "sharpened", "hard")
_SHARPENED, _HARD = 1, 2
_KEEP = 0.95  # running means look back over some twenty steps


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Phase:
    """How far a seed has come.

    Attributes:
      accuracy: () float32, running mean of the training accuracy.
      entropy: () float32, running mean of the entropy of the actions.
      number: () int32, index into `PHASES`; it never goes back.
    """

    accuracy: Array
    entropy: Array
    number: Array

    @classmethod
    def first(cls) -> "Phase":
        """The phase of a fresh model."""
        return cls(jnp.float32(0.0), jnp.float32(1.0), jnp.int32(0))

    def after(self, config: Any, accuracy: Array, entropy: Array) -> "Phase":
        """The phase after a step with this accuracy and entropy."""
        accuracy = _KEEP * self.accuracy + (1 - _KEEP) * accuracy
        entropy = _KEEP * self.entropy + (1 - _KEEP) * entropy
        right = accuracy >= config.sharpen_at
        sharp = right & (entropy <= config.harden_at)
        go_on = jnp.where(self.number == 0, right, sharp)
        last = PHASES.index(config.phases)
        number = jnp.minimum(self.number + go_on.astype(jnp.int32), last)
        return Phase(accuracy, entropy, number)

    def is_hard(self, config: Any) -> bool | Array:
        """Whether the forward pass takes the most probable action."""
        return config.phases == "hard" and self.number >= _HARD

    def loss(self, config: Any, entropy: Array) -> Array:
        """What is added to the loss."""
        return (
            jnp.where(self.number >= _SHARPENED, config.entropy_weight, 0.0) * entropy
        )


def action_metrics(aux: models.Aux, mask: Array) -> dict[str, Array]:
    """The entropy of every layer's actions, and their mean, in nats.

    Example:
      >>> logits = jnp.array([[[9.0, 0, 0], [0, 0, 0], [99.0, 0, 0]]])
      >>> aux = models.Aux(action_logits=(logits,))
      >>> {k: round(float(x), 2) for k, x in
      ...  action_metrics(aux, jnp.ones((1, 3), bool)).items()}
      {'entropy_0': 0.55, 'entropy': 0.55}
    """
    entropies = models.action_entropies(aux, mask=mask)
    metrics = {
        f"entropy_{layer}": x for layer, x in enumerate(entropies) if x is not None
    }
    if metrics:
        metrics["entropy"] = functools.reduce(jnp.add, metrics.values()) / len(metrics)
    return metrics
