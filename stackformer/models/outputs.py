"""What a model can return beside its logits."""

import dataclasses

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Aux:
    """What every layer did in one forward pass, for attention maps and probing.

    Each field is a tuple with one entry per layer that was run (a looped layer has
    one entry per loop); an entry is None where the layer has no such part.

    Attributes:
      stack_weights: stack attention alpha, (B, T, T), or (B, S, T, T) with S > 1
        stacks.
      stack_actions: the action probabilities that moved the stack, (B, T, A), or
        (B, S, T, A); given actions appear here as given.
      predicted_actions: what the action head said, of the same shape. The same as
        `stack_actions` unless actions were given.
      attention_weights: softmax attention, (B, N, T, T) for N heads.
    """

    stack_weights: tuple[jax.Array | None, ...] = ()
    stack_actions: tuple[jax.Array | None, ...] = ()
    predicted_actions: tuple[jax.Array | None, ...] = ()
    attention_weights: tuple[jax.Array | None, ...] = ()
