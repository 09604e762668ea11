"""The stack of frames as a Flax module: a pop that returns a value."""

import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer.checks import check_features
from stackformer.nn.feed_forward import Product, layer_norm, linear_init
from stackformer.nn.stacks.base import (
    Decoding,
    Stack,
    StackOutput,
    check_hidden,
    check_no_alpha,
)
from stackformer.nn.stacks.frames.config import FramesConfig
from stackformer.nn.stacks.sampling import choose_actions, noop_outside
from stackformer.ops.frames import (
    FrameState,
    frame_step,
    init_frame_state,
    open_frames,
    stack_of_frames,
)
from stackformer.ops.stack_attention.api import StackAction

Array = jax.Array
# F learns rules about items, so items should move slowly beside F: under Adam a kernel
# that is s times as large, in front of 1 / s, moves s times as slowly.
_SLOW = 8.0


class FrameStack(Stack):
    """A stack of frames over the positions of a sequence.

      a_i = W_A h_i + b_A                      actions: push, pop, no-op
      x_i = W_X LN(h_i)                        items, as large as values
      no-op  frame <- frame + [x_i]
      push   stack <- stack + [frame],  frame <- []
      pop    frame <- top of the stack + [F(frame)],  the stack loses its top
      S(H)_i = W_O [frame after i] + b_O

    F has two hidden layers of products (`Product`), and tanh at its output. Within a
    bracket nothing is seen of what lies outside, and nothing of it is seen outside but
    its value: what works in short brackets works in every one.

    Args:
      features: the size D of the hidden states.
      config: `FramesConfig`, or the fields of one as keywords.
      dtype: the dtype of the products; the input's where None.
      param_dtype: the dtype of the parameters.
      kernel_init: initializer of all linear layers.
      rngs: the "params" stream initialises the parameters.

    Example:
      >>> stack = FrameStack(16, items=4, hidden=32, rngs=nnx.Rngs(0))
      >>> h = jax.random.normal(jax.random.key(0), (2, 5, 16))
      >>> out = stack(h, return_weights=True)
      >>> out.top.shape, out.weights.shape, out.actions.shape
      ((2, 5, 16), (2, 5, 5), (2, 5, 3))
    """

    reads_at: ClassVar[bool] = FramesConfig.reads_at

    def __init__(
        self,
        features: int,
        *,
        config: FramesConfig | None = None,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = jnp.float32,
        kernel_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        if config is not None and options:
            raise ValueError(
                f"`config` should be given without {', '.join(options)}; put them into "
                "the `FramesConfig`."
            )
        self.config = config = config or FramesConfig(**options)
        check_features(features)
        self.features = features
        linear: dict[str, Any] = dict(
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init or linear_init(),
            rngs=rngs,
        )
        size = config.items * config.item_features
        self.action_head = nnx.Linear(features, len(StackAction), **linear)
        slow = nnx.initializers.normal(_SLOW)
        self.item_head = nnx.Linear(
            features,
            config.item_features,
            **{**linear, "kernel_init": slow, "use_bias": False},
        )
        self.item_norm = layer_norm(
            features,
            use_scale=False,
            use_bias=False,
            dtype=dtype,
            param_dtype=param_dtype,
            rngs=rngs,
        )
        self.close_in = Product(size, config.hidden, **linear)
        self.close_hidden = Product(config.hidden, config.hidden, **linear)
        self.close_out = nnx.Linear(config.hidden, config.item_features, **linear)
        self.output = nnx.Linear(size, features, **linear)

    def __call__(
        self,
        h: Array,
        *,
        mask: Array | None = None,
        segment_ids: Array | None = None,
        actions: Any = None,
        rngs: nnx.Rngs | None = None,
        hard: bool | Array = False,
        return_weights: bool = False,
        initial_state: FrameState | None = None,
        return_state: bool = False,
        at: Array | None = None,
    ) -> StackOutput:
        """Reads the current frame at every position; see `Stack`.

        `StackOutput.weights` says which positions are in the current frame; the
        position of a pop stands for the value of the frame that it closed.

        Args:
          initial_state: what an earlier piece of a long string left, the `state` that
            its call returned: h goes on with it, position 0 is no bottom.
          return_state: fill in `StackOutput.state`. It goes without `mask`, as a padded
            position would be an item of a frame.
          at: positions of shape (B, M); `top` has these alone.
        """
        check_hidden(self.features, h, mask, segment_ids)
        stateful = return_state or initial_state is not None
        check_no_alpha(stateful, return_weights)
        if return_state and mask is not None:
            raise ValueError(
                "`mask` should be None with `return_state`, as a padded position would "
                "be an item of a frame; cut the piece where its strings end."
            )
        if actions is not None and actions.shape != (*h.shape[:-1], len(StackAction)):
            raise ValueError(
                f"`actions` shape should be {(*h.shape[:-1], len(StackAction))}, but "
                f"got {actions.shape}."
            )
        given = actions is not None
        logits = None
        if given:
            actions = jax.lax.stop_gradient(actions)
        else:
            logits = self.action_logits(h)
            actions = self._choose(logits, rngs, hard)
        if mask is not None:
            actions = noop_outside(mask, actions)
        plain = self.config.actions_from == "strings" and not given
        noise = self._noise(h, rngs)
        options: dict[str, Any] = dict(
            num_items=self.config.items, segment_ids=segment_ids
        )
        if plain and not stateful:
            options["implementation"] = "by_pops"
        read = functools.partial(
            stack_of_frames,
            actions,
            self.items(h),
            self.close if noise is None else self._close_noisy,
            closing=h[..., :1] if noise is None else noise,
            at=at,
            **options,
        )
        weights = state = None
        if stateful:
            frames, state = read(initial_state=initial_state, return_state=True)
        else:
            frames = read()
        if return_weights:
            eye = jnp.eye(h.shape[-2], dtype=jnp.float32)
            positions = jnp.broadcast_to(eye, (*h.shape[:-1], h.shape[-2]))
            members = stack_of_frames(actions, positions, lambda _, at: at, **options)
            weights = jnp.sum(members, axis=-2)
        return StackOutput(
            top=self._read(frames),
            weights=weights,
            actions=actions,
            logits=logits,
            state=state if return_state else None,
        )

    def items(self, h: Array) -> Array:
        """x: what a no-op adds to a frame, (..., item_features)."""
        scale = _SLOW * math.sqrt(self.features)
        return self.item_head(self.item_norm(h)) / scale

    def close(self, frame: Array, _: Any = None) -> Array:
        """F: the value of a frame (..., K, item_features), (..., item_features)."""
        return jnp.tanh(self._before_tanh(frame))

    def action_logits(self, h: Array) -> Array:
        """W_A h + b_A in float32, shape (..., T, 3)."""
        if self.config.actions_from == "strings":
            h = jax.lax.stop_gradient(h)
        logits = self.action_head(h)
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))

    def init_state(
        self, batch_shape: tuple[int, ...], max_length: int, *, hard: bool = False
    ) -> Decoding:
        """The empty stack; with `hard`, or where actions are sampled, the steps take
        the most probable action."""
        frames = init_frame_state(
            batch_shape,
            self.config.items,
            self.config.item_features,
            depth=max((max_length - 1) // 2, 1),
            dtype=self.item_head.kernel.dtype,
        )
        return Decoding(frames, hard)

    def step(self, state: Decoding, h: Array, index: Array) -> tuple[Decoding, Array]:
        """Reads position `index`, h (..., D); see `Stack`."""
        actions = self._choose(self.action_logits(h), None, state.hard)
        actions = noop_outside(jnp.broadcast_to(index > 0, h.shape[:-1]), actions)
        frames, frame = frame_step(
            state.memory, actions, self.items(h), h[..., :1], self.close
        )
        return Decoding(frames, state.hard), self._read(frame)

    def prefill(
        self, state: Decoding, h: Array, length: int | Array
    ) -> tuple[Decoding, Array]:
        """Reads a prompt; see `Stack`. With certain actions F runs at pops alone, and
        no gradient flows into the actions; with mixed ones it is step by step.
        """
        plain = self.config.actions_from == "strings"
        if not (state.hard or plain or self.config.sampling != "soft"):
            return super().prefill(state, h, length)
        actions = self._choose(self.action_logits(h), None, state.hard)
        frames = stack_of_frames(
            actions,
            self.items(h),
            self.close,
            closing=h[..., :1],
            num_items=self.config.items,
            implementation="by_pops",
        )
        depth, last = state.memory.full.shape[-1], jnp.asarray(length) - 1
        places, there = open_frames(actions, last, depth=depth)
        full = there.astype(frames.dtype)
        stack = jnp.take_along_axis(frames, places[..., None, None], axis=-3)
        new = FrameState(
            frame=jax.lax.dynamic_index_in_dim(frames, last, -3, keepdims=False),
            stack=full[..., None, None] * stack,
            full=full,
        )
        new = jax.tree.map(lambda x, old: x.astype(old.dtype), new, state.memory)
        return Decoding(new, state.hard), self._read(frames)

    def _choose(self, logits: Array, rngs: nnx.Rngs | None, hard: bool | Array):
        if self.config.actions_from == "strings":
            return choose_actions(jax.lax.stop_gradient(logits), hard=True)
        return choose_actions(
            logits, sampling=self.config.sampling, rngs=rngs, hard=hard
        )

    def _before_tanh(self, frame: Array) -> Array:
        x = frame.reshape(*frame.shape[:-2], -1)
        return self.close_out(self.close_hidden(self.close_in(x)))

    def _close_noisy(self, frame: Array, noise: Array) -> Array:
        return jnp.tanh(self._before_tanh(frame) + noise.astype(frame.dtype))

    def _noise(self, h: Array, rngs: nnx.Rngs | None) -> Array | None:
        if not self.config.noise or rngs is None:
            return None
        shape = (*h.shape[:-1], self.config.item_features)
        return self.config.noise * jax.random.normal(rngs.actions(), shape)

    def _read(self, frames: Array) -> Array:
        return self.output(frames.reshape(*frames.shape[:-2], -1))
