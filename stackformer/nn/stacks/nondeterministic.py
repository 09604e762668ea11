"""Nondeterministic stack attention: all runs of a learned pushdown automaton."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer.checks import check_positive, check_types
from stackformer.nn.feed_forward import linear_init
from stackformer.nn.stacks.base import Stack, StackConfig, StackOutput, check_hidden
from stackformer.ops.nondeterministic import (
    NDStackState,
    Transitions,
    init_ndstack_state,
    nondeterministic_stack,
    nondeterministic_step,
)

Array = jax.Array
# Log weights times this leave one run, the most probable one, with all of the weight.
_COLD = 2.0**14


@dataclasses.dataclass(frozen=True, kw_only=True)
class NondeterministicConfig(StackConfig):
    """Options of `NondeterministicStack`.

    Attributes:
      states: Q, states of the automaton.
      symbols: S, symbols of its stack.
      value_features: numbers of the vector that lies on the stack with each symbol.

    Example:
      >>> NondeterministicConfig(states=3).make(16, rngs=nnx.Rngs(0)).config.states
      3
    """

    name: ClassVar[str] = "nondeterministic"

    states: int = 2
    symbols: int = 3
    value_features: int = 8

    def __post_init__(self):
        check_types(self)
        check_positive(self, "states", "symbols", "value_features")

    def make(
        self,
        features: int,
        *,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = "float32",
        kernel_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs,
    ) -> "NondeterministicStack":
        """The module for hidden states of `features` numbers."""
        return NondeterministicStack(
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
    """The state of decoding: the stack, and whether the best run alone is read."""

    stack: NDStackState
    hard: bool = dataclasses.field(metadata={"static": True})


class NondeterministicStack(Stack):
    """The differentiable vector pushdown automaton of DuSell and Chiang (2024).

      weights_i = exp(W_A h_i + b_A)     of all pushes, pops and replaces
      v_i       = sigmoid(W_V h_i + b_V)  the vector that a push puts on the stack
      r_i       = E[state, symbol and vector on top], over all runs of the automaton
      S(H)_i    = W_O r_i + b_O

    with states and symbols one-hot, so that r has Q S value_features numbers. Unlike
    in their paper, whose bottom has a learned vector, the bottom is position 0, as in
    the other stacks here; its transitions are ignored.

    The runs are not followed one by one (`ops.nondeterministic`), but time is cubic in
    the length, O(T^3 Q^3 S^2), and memory quadratic, O(T^2 Q^2 S^2) for every string.

    Args:
      features: the size D of the hidden states.
      config: `NondeterministicConfig`, the default one where None.
      dtype: the dtype of the products; the input's where None. The automaton itself
        runs in float32 or wider.
      param_dtype: the dtype of the parameters.
      kernel_init: initializer of all linear layers.
      rngs: the "params" stream initialises the parameters.

    Example:
      >>> stack = NondeterministicStack(16, rngs=nnx.Rngs(0))
      >>> h = jax.random.normal(jax.random.key(0), (2, 5, 16))
      >>> out = stack(h, return_weights=True)
      >>> out.top.shape, out.weights.shape, out.actions.shape
      ((2, 5, 16), (2, 5, 5), (2, 5, 3))
    """

    def __init__(
        self,
        features: int,
        *,
        config: NondeterministicConfig | None = None,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = jnp.float32,
        kernel_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        self.config = config = config or NondeterministicConfig()
        self.features = features
        linear: dict[str, Any] = dict(
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init or linear_init(),
            rngs=rngs,
        )
        count = Transitions.count(config.states, config.symbols)
        self.action_head = nnx.Linear(features, count, **linear)
        self.value_head = nnx.Linear(features, config.value_features, **linear)
        reading = config.states * config.symbols * config.value_features
        self.output = nnx.Linear(reading, features, **linear)

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
    ) -> StackOutput:
        """Reads the stack at every position; see `Stack`.

        `actions` and `logits` of what is returned are the probabilities of all pushes,
        all pops and all replaces together, and their logarithms. With `hard` the most
        probable run up to each position is read in place of the mean over runs: weights
        to the power of 2^14, with the gradient as it were without that power. (The most
        probable action of each position might make no run at all, if it were a pop of
        the bottom.) Runs that are nearly as probable as the best still share the
        reading. Actions cannot be given: push and pop say neither state nor symbol.
        """
        del rngs
        check_hidden(self.features, h, mask, segment_ids)
        if actions is not None:
            raise ValueError(
                "`actions` should be None with a nondeterministic stack, whose "
                "transitions have states and symbols; teach it with a loss on "
                "`StackOutput.logits`, the logarithms of push, pop and replace."
            )
        logits = self._log_weights(h)
        weights = None
        options: dict[str, Any] = dict(
            num_states=self.config.states,
            num_symbols=self.config.symbols,
            mask=mask,
            segment_ids=segment_ids,
        )
        chosen = _coldly(logits, hard)
        reading = nondeterministic_stack(chosen, self._values(h), **options)
        if return_weights:
            eye = jnp.eye(h.shape[-2], dtype=jnp.float32)
            positions = jnp.broadcast_to(eye, (*h.shape[:-1], h.shape[-2]))
            whose = nondeterministic_stack(chosen, positions, **options)
            weights = whose.sum(axis=(-3, -2))
        kinds = self._kinds(logits)
        return StackOutput(
            top=self._read(reading, h.dtype),
            weights=weights,
            actions=jnp.exp(kinds),
            logits=kinds,
        )

    def init_state(
        self, batch_shape: tuple[int, ...], max_length: int, *, hard: bool = False
    ) -> Decoding:
        """The state before position 0; `hard` as in the whole call."""
        stack = init_ndstack_state(
            1,
            max_length,
            self.config.states,
            self.config.symbols,
            self.config.value_features,
            dtype=jnp.promote_types(self.action_head.kernel.dtype, jnp.float32),
        )
        return Decoding(
            jax.tree.map(
                lambda x: jnp.broadcast_to(x[0], (*batch_shape, *x.shape[1:])), stack
            ),
            hard,
        )

    def step(self, state: Decoding, h: Array, index: Array) -> tuple[Decoding, Array]:
        """Reads position `index`, h (..., D); see `Stack`."""
        lead = h.shape[:-1]

        def flat(array: Array) -> Array:
            return array.reshape(-1, *array.shape[len(lead) :])

        stack, reading = nondeterministic_step(
            jax.tree.map(flat, state.stack),
            flat(_coldly(self._log_weights(h), state.hard)),
            flat(self._values(h)),
            index,
        )
        stack = jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), stack)
        reading = reading.reshape(*lead, *reading.shape[1:])
        return Decoding(stack, state.hard), self._read(reading, h.dtype)

    def _log_weights(self, h: Array) -> Array:
        """Of all transitions, (..., count): their probabilities sum to one."""
        logits = self.action_head(h)
        logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        return jax.nn.log_softmax(logits, axis=-1)

    def _values(self, h: Array) -> Array:
        values = jax.nn.sigmoid(self.value_head(h))
        return values.astype(jnp.promote_types(values.dtype, jnp.float32))

    def _kinds(self, logits: Array) -> Array:
        """Log probability of all pushes, all pops and all replaces, (..., 3)."""
        pairs = (self.config.states * self.config.symbols) ** 2
        kinds = jnp.split(logits, (pairs, logits.shape[-1] - pairs), axis=-1)
        return jnp.stack([jax.nn.logsumexp(kind, axis=-1) for kind in kinds], axis=-1)

    def _read(self, reading: Array, dtype: Any) -> Array:
        return self.output(reading.reshape(*reading.shape[:-3], -1)).astype(dtype)


def _coldly(logits: Array, hard: bool | Array) -> Array:
    """The log weights, times `_COLD` where hard, with the gradient of the plain."""
    if hard is False:
        return logits
    colder = logits + jax.lax.stop_gradient((_COLD - 1.0) * logits)
    return jnp.where(hard, colder, logits)
