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
      action_logits: what the action head said, float32, of the same shape; None
        where actions were given. `action_loss` and entropies are computed from them.
      attention_weights: softmax attention, (B, N, T, T) for N heads.
      bottom_first: whether position 0 is the bottom of the stacks, as in a
        transformer; the stacks of recurrent models rest below it.
    """

    stack_weights: tuple[jax.Array | None, ...] = ()
    stack_actions: tuple[jax.Array | None, ...] = ()
    action_logits: tuple[jax.Array | None, ...] = ()
    attention_weights: tuple[jax.Array | None, ...] = ()
    bottom_first: bool = dataclasses.field(default=True, metadata={"static": True})
