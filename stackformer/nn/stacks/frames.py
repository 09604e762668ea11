"""The stack of frames as a Flax module: a pop that returns a value."""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer.checks import check_choice, check_features, check_positive, check_types
from stackformer.nn.feed_forward import layer_norm, linear_init
from stackformer.nn.stacks.base import (
    Stack,
    StackConfig,
    StackOutput,
    check_hidden,
)
from stackformer.nn.stacks.sampling import (
    SAMPLINGS,
    Sampling,
    choose_actions,
    noop_outside,
)
from stackformer.ops.frames import (
    FrameState,
    frame_step,
    init_frame_state,
    stack_of_frames,
)
from stackformer.ops.stack_attention.api import StackAction

Array = jax.Array
ACTIONS_FROM = ("answers", "strings")
# F learns rules about items, so items should move slowly beside F: under Adam a kernel
# that is s times as large, in front of 1 / s, moves s times as slowly.
_SLOW = 8.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class FramesConfig(StackConfig):
    """Options of `FrameStack`.

    Attributes:
      items: K, the items that a frame keeps, the newest.
      item_features: numbers of an item.
      hidden: features of the two hidden layers of F, the network that closes a frame.
      noise: deviation of the normal noise on what F says before its tanh, while
        training: values that survive it are nearly binary, so that they do not drift
        however deep brackets are nested.
      sampling: of the actions, see `choose_actions`.
      actions_from: what teaches the actions. "answers": the gradient of the readings,
        through a mixture of stacks. "strings": losses on the action logits alone
        (`models.balance_loss`, `models.action_loss`), which move the action head and
        nothing before it; the stack is then always a plain one of the most probable
        actions, which costs a fraction.

    Example:
      >>> FramesConfig(items=4).make(16, rngs=nnx.Rngs(0)).config.items
      4
    """

    name: ClassVar[str] = "frames"

    items: int = 6
    item_features: int = 32
    hidden: int = 256
    noise: float = 0.0
    sampling: Sampling = "gumbel"
    actions_from: str = "answers"

    def __post_init__(self):
        check_types(self)
        check_positive(self, "items", "item_features", "hidden")
        check_choice("sampling", self.sampling, SAMPLINGS)
        check_choice("actions_from", self.actions_from, ACTIONS_FROM)
        if self.noise < 0.0:
            raise ValueError(f"`noise` should be at least 0, but got {self.noise}.")

    def make(
        self,
        features: int,
        *,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = "float32",
        kernel_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs,
    ) -> "FrameStack":
        """The module for hidden states of `features` numbers."""
        return FrameStack(
            features,
            config=self,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init,
            rngs=rngs,
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decoding:
    """The state of decoding: the frames, and whether actions are made hard."""

    frames: FrameState
    hard: bool = dataclasses.field(metadata={"static": True})


class Product(nnx.Module):
    """A hidden layer of products, LN(W x + b) * LN(U x + c).

    A product of two linear maps says how two items of a frame combine, as in a table of
    addition or multiplication; sums and ReLU need many more units and steps for it.

    Example:
      >>> Product(8, 16, rngs=nnx.Rngs(0))(jnp.ones((2, 8))).shape
      (2, 16)
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        *,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = jnp.float32,
        kernel_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        options: dict[str, Any] = dict(dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        kernel_init = kernel_init or linear_init()
        self.both = nnx.Linear(features, 2 * hidden, kernel_init=kernel_init, **options)
        self.norm = layer_norm(hidden, **options)
        self.gate_norm = layer_norm(hidden, **options)

    def __call__(self, x: Array) -> Array:
        """Shape (..., features) to (..., hidden)."""
        value, gate = jnp.split(self.both(x), 2, axis=-1)
        return self.norm(value) * self.gate_norm(gate)


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

    reads_at: ClassVar[bool] = True

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
        at: Array | None = None,
    ) -> StackOutput:
        """Reads the current frame at every position; see `Stack`.

        With `at`, positions of shape (B, M), `top` has these alone.

        `StackOutput.weights` says which positions are in the current frame; the
        position of a pop stands for the value of the frame that it closed.
        """
        check_hidden(self.features, h, mask, segment_ids)
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
        if plain:
            options["implementation"] = "by_pops"
        frames = stack_of_frames(
            actions,
            self.items(h),
            self.close if noise is None else self._close_noisy,
            closing=h[..., :1] if noise is None else noise,
            at=at,
            **options,
        )
        weights = None
        if return_weights:
            eye = jnp.eye(h.shape[-2], dtype=jnp.float32)
            positions = jnp.broadcast_to(eye, (*h.shape[:-1], h.shape[-2]))
            members = stack_of_frames(actions, positions, lambda _, at: at, **options)
            weights = jnp.sum(members, axis=-2)
        return StackOutput(
            top=self._read(frames), weights=weights, actions=actions, logits=logits
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
            state.frames, actions, self.items(h), h[..., :1], self.close
        )
        return Decoding(frames, state.hard), self._read(frame)

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
