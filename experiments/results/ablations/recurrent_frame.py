"""Ablation: a recurrent state in place of a frame's list of items.

    python experiments/results/ablations/recurrent_frame.py --task=MA --out=RUN

It takes the flags of `experiments.dcf`, and the setting of the stack of frames.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from stackformer.nn.feed_forward import Product, layer_norm, linear_init
from stackformer.nn.stacks import STACKS, Stack, StackConfig, StackOutput
from stackformer.nn.stacks.sampling import choose_actions, noop_outside
from stackformer.ops.stack_attention.api import StackAction

# What `--stack=frames` has by default for MA, apart from the frame itself.
SETTING = [
    "--stack=recurrent_frame",
    "--batch_size=256",
    "--lengths_per_step=8",
    "--lr=2e-3",
    "--warmup=100",
    "--weight_decay=0.01",
    "--schedule=cooldown",
    "--curriculum=accuracy:0.95",
    "--curriculum_start=8",
    "--balance=1.0",
    "--balance_steps=1000",
    "--steps=3000",
    "--phases=soft",
    "--model_config=attention=False,learned_embedding=False,stack_first=True,"
    "num_layers=1,dropout=0.0",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentFrameConfig(StackConfig):
    """Options of `RecurrentFrame`.

    Attributes:
      state: numbers of the state.
      hidden: features of the hidden layers of F.
      noise: as in `FramesConfig`.
    """

    name: ClassVar[str] = "recurrent_frame"
    state: int = 64
    hidden: int = 128
    noise: float = 0.5

    def make(self, features: int, *, rngs: nnx.Rngs, **_: Any) -> "RecurrentFrame":
        """The module for hidden states of `features` numbers."""
        return RecurrentFrame(features, self, rngs=rngs)


class RecurrentFrame(Stack):
    """What was seen since a bracket was opened, in a gated state s of a few numbers.

    no-op  s <- G(s, x);  push  stack <- stack + [s], s <- 0;
    pop    s <- G(top of the stack, F(s)), the stack loses its top

    Actions are the most probable ones and learned from the strings, as with
    `FramesConfig(actions_from="strings")`.
    """

    def __init__(self, features: int, config: RecurrentFrameConfig, *, rngs: nnx.Rngs):
        self.config = config
        linear: dict[str, Any] = dict(kernel_init=linear_init(), rngs=rngs)
        size = config.state
        self.action_head = nnx.Linear(features, len(StackAction), **linear)
        self.item_norm = layer_norm(
            features, use_scale=False, use_bias=False, rngs=rngs
        )
        self.item_head = nnx.Linear(features, size, use_bias=False, **linear)
        self.update = nnx.Linear(2 * size, 2 * size, **linear)
        self.close_in = Product(size, config.hidden, **linear)
        self.close_hidden = Product(config.hidden, config.hidden, **linear)
        self.close_out = nnx.Linear(config.hidden, size, **linear)
        self.output = nnx.Linear(size, features, **linear)

    def __call__(self, h, *, mask=None, rngs=None, **_) -> StackOutput:
        logits = self.action_head(jax.lax.stop_gradient(h))
        actions = choose_actions(jax.lax.stop_gradient(logits), hard=True)
        if mask is not None:
            actions = noop_outside(mask, actions)
        chosen = jnp.argmax(actions, axis=-1).at[:, 0].set(StackAction.NOOP)
        items = self.item_head(self.item_norm(h))
        noise = jnp.zeros_like(items)
        if rngs is not None:
            normal = jax.random.normal(rngs.actions(), items.shape)
            noise = self.config.noise * normal
        batch, length, size = items.shape
        row = jnp.arange(batch)

        def step(carry, inputs):
            state, stack, height = carry
            action, item, noise = inputs
            push = action == StackAction.PUSH
            pop = (action == StackAction.POP) & (height > 0)
            noop = action == StackAction.NOOP
            place = jnp.where(push, height, length)
            stack = stack.at[row, place].set(state, mode="drop")
            below = stack[row, jnp.maximum(height - 1, 0)]
            value = self.close(state, noise)
            old = jnp.where(pop[:, None], below, state)
            new = self.gated(old, jnp.where(pop[:, None], value, item))
            new = jnp.where((noop | pop)[:, None], new, state)
            new = jnp.where(push[:, None], 0.0, new)
            return (new, stack, height + push - pop), new

        first = (
            jnp.zeros((batch, size)),
            jnp.zeros((batch, length // 2 + 1, size)),
            jnp.zeros(batch, jnp.int32),
        )
        inputs = (jnp.moveaxis(x, 1, 0) for x in (chosen, items, noise))
        _, states = jax.lax.scan(step, first, tuple(inputs))
        top = self.output(jnp.moveaxis(states, 0, 1))
        return StackOutput(top=top, actions=actions, logits=logits)

    def close(self, state, noise):
        """F: the value of a bracket."""
        x = self.close_hidden(self.close_in(state))
        return jnp.tanh(self.close_out(x) + noise)

    def gated(self, state, item):
        """G: the state with an item more."""
        gate, new = jnp.split(self.update(jnp.concatenate([state, item], -1)), 2, -1)
        gate = jax.nn.sigmoid(gate)
        return gate * state + (1 - gate) * jnp.tanh(new)


STACKS[RecurrentFrameConfig.name] = RecurrentFrameConfig

if __name__ == "__main__":
    from stackformer.commands import dcf  # after the line above: it lists the stacks

    sys.argv[1:] = [*SETTING, *sys.argv[1:]]
    sys.exit(dcf.main())
