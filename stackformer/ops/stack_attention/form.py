"""What a form of stack attention is: how it computes, and what it refuses."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from stackformer.checks import check_positive
from stackformer.ops.stack_attention.sharding import varying_like

# Arrays of which a form need only know whether they are there.
_ARRAYS = {"segment_ids": "segments", "initial_state": "a state"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What a caller may ask for beside the arrays; the defaults ask for nothing.

    The fields are keyword arguments of `stackformer.stack_attention`. Of the
    initial state they know whether there is one.
    """

    chunk_size: int | None = None
    max_depth: int | None = None
    max_pops: int = 1
    segment_ids: bool = False
    initial_state: bool = False
    return_state: bool = False

    def __post_init__(self):
        check_positive(self, "chunk_size", "max_depth", "max_pops")

    def unsupported(self, *names: str) -> str | None:
        """The complaint about the first of these options that was asked for.

        Example:
          >>> Options(max_depth=4).unsupported("chunk_size", "max_depth")
          '`max_depth` should be None, but got 4'
        """
        for name in names:
            value, default = getattr(self, name), getattr(Options, name)
            if value != default and name in _ARRAYS:
                return f"`{name}` should be None, but got {_ARRAYS[name]}"
            if value != default:
                return f"`{name}` should be {default}, but got {value}"
        return None


Array = jax.Array
STATES = ("initial_state", "return_state")
# (actions, values, options, starts, initial state) to (tops, state or None)
Attend = Callable[..., tuple[Array, Array | None]]
# (actions, options, starts) to alpha
Weights = Callable[..., Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """One way to compute stack attention; give `weights_of`, `attend_to` or both.

    Attributes:
      refuses: for T and the options, the reason why the form cannot serve them ("`x`
        should be …, but got …"), or None.
      weights_of: (actions (..., T, A), options, starts) to alpha (..., T, T); where
        None, the tops of one-hot values are alpha.
      attend_to: (actions (..., T, A), values (..., T, D), options, starts, initial
        state) to tops (..., T, D) and the state after them, None unless
        `options.return_state`; where None, alpha @ values.
      longest: the largest T at which it is worth timing; None is every T.
      forward_mode: whether `jax.jvp` goes through it; a gradient that is written by
        hand goes in reverse only.
      interpreted: whether it is a kernel of an accelerator, interpreted on a CPU, where
        its time says nothing.

    `starts`, (..., T) bool, is True where a string begins; None is position 0 alone, or
    nowhere with an initial state, which is (..., H + 1, D).
    """

    refuses: Callable[[int, Options], str | None]
    weights_of: Weights | None = None
    attend_to: Attend | None = None
    longest: int | None = None
    forward_mode: bool = True
    interpreted: bool = False

    def weights(
        self, actions: Array, options: Options, starts: Array | None = None
    ) -> Array:
        """alpha, shape (..., T, T)."""
        if self.weights_of is not None:
            return self.weights_of(actions, options, starts)
        length = actions.shape[-2]
        positions = jnp.eye(length, dtype=actions.dtype)
        one_hot = jnp.broadcast_to(positions, (*actions.shape[:-1], length))
        one_hot = varying_like(one_hot, actions)
        return self.attend(actions, one_hot, options, starts)[0]

    def attend(
        self,
        actions: Array,
        values: Array,
        options: Options,
        starts: Array | None = None,
        initial_state: Array | None = None,
        *,
        through_weights: bool = False,
    ) -> tuple[Array, Array | None]:
        """The tops, shape (..., T, D), and the state after them where it was asked for.

        `through_weights` computes alpha first.
        """
        if self.attend_to is not None and not through_weights:
            return self.attend_to(actions, values, options, starts, initial_state)
        alpha = self.weights(actions, options, starts)
        return jnp.matmul(alpha, values, precision=jax.lax.Precision.HIGHEST), None


def with_first(starts: Array | None, shape: tuple[int, ...]) -> Array:
    """The starts with position 0 among them, shape (..., T).

    Example:
      >>> print(with_first(None, (3,)))
      [ True False False]
    """
    starts = jnp.zeros(shape, bool) if starts is None else starts
    return starts.at[..., 0].set(True)
