"""One step of the nondeterministic stack, for all runs of the automaton at once.

After DuSell and Chiang (2020, 2022). The automaton has Q states and S stack symbols. It
starts in state 0 with one symbol 0 on its stack, and each step takes one of three kinds
of transition, with a weight of its own:

  push[q, x, r, y]     in state q with x on top: go to state r, put y above x
  pop[q, x, r]         in state q with x on top: go to state r, take x away
  replace[q, x, r, y]  in state q with x on top: go to state r, put y for x

A pop needs something below x: the last symbol can be replaced, never popped. Two tables
over nodes (node n is the moment after n steps) hold all runs, which are exponentially
many (Lang's algorithm):

  alpha[n][r, y]: total weight of the runs that are at node n in state r with y on top;
  gamma[i -> n][q, x, r, y]: total weight of the runs from node i, in state q with x on
      top, to node n, in state r with y on top, where y lies directly above that x
      and x was not touched in between.

  gamma[n-1 -> n] = push
  gamma[i -> n][q,x,r,y] += sum_{s,z} gamma[i -> n-1][q,x,s,z] replace[s,z,r,y]
  gamma[i -> n][q,x,r,y] += sum_{k,u} gamma[i -> k][q,x,u,y]
                              sum_{s,z} gamma[k -> n-1][u,y,s,z] pop[s,z,r]
  alpha[n][r,y] = sum_{i,q,x} alpha[i][q,x] gamma[i -> n][q,x,r,y]

Weights are products over all steps and leave the range of floats after a few dozen of
them. So alpha is kept as logarithms, less a constant at each node, and gamma relative
to it:

  below[n][y, r, q, x, i] = alpha[i][q,x] gamma[i -> n][q,x,r,y] / alpha[n][r,y]

is the probability, given state r and y on top at node n, that what lies below was on
top at node i, in state q and with symbol x. It needs no logarithms: every entry is
between 0 and 1, they sum to one (less the probability that nothing lies below), and the
sums over k above become matrix products.

Where every element of the stack also carries a vector (push puts value_n there, replace
keeps it), its expectation needs no table of its own:

  vector[n][y, r, :]: of the top at node n, given state r and y on top

A pop uncovers what was on top at node k, and given (u, y) at k, what came before k and
what came after are independent: pops mix `vector` with the weights that mix `below`. So
both are features of one row.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

# Log of a weight of zero. Finite, so that no gradient is NaN; far below any real one.
LOG_ZERO = -1e9
# Something less probable to lie below counts as impossible, since the gradient divides
# by that probability and would overflow.
_RARE = 1e-20


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Transitions:
    """Log weights of one step's transitions.

    Attributes:
      push: shape (B, Q, S, Q, S).
      pop: shape (B, Q, S, Q).
      replace: shape (B, Q, S, Q, S).
    """

    push: jax.Array
    pop: jax.Array
    replace: jax.Array

    @staticmethod
    def count(num_states: int, num_symbols: int) -> int:
        """Number of transitions in all."""
        return num_states**2 * num_symbols * (2 * num_symbols + 1)

    @classmethod
    def split(cls, flat: jax.Array, num_states: int, num_symbols: int) -> "Transitions":
        """Cuts (B, count) into the three kinds, in the order of the attributes."""
        q, s, batch = num_states, num_symbols, flat.shape[0]
        pairs, pops = (q * s) ** 2, q * s * q
        return cls(
            push=flat[:, :pairs].reshape(batch, q, s, q, s),
            pop=flat[:, pairs : pairs + pops].reshape(batch, q, s, q),
            replace=flat[:, pairs + pops :].reshape(batch, q, s, q, s),
        )

    def where(self, keep: jax.Array) -> "Transitions":
        """These where `keep` (B,) is True, else the step that changes nothing."""
        _, q, s, _ = self.pop.shape
        same = jnp.eye(q * s).reshape(1, q, s, q, s)
        nothing = (1.0 - same) * LOG_ZERO
        pairs = keep[:, None, None, None, None]
        return Transitions(
            push=jnp.where(pairs, self.push, LOG_ZERO),
            pop=jnp.where(keep[:, None, None, None], self.pop, LOG_ZERO),
            replace=jnp.where(pairs, self.replace, nothing),
        )


def init_ndstack(
    batch_size: int,
    num_nodes: int,
    num_states: int,
    num_symbols: int,
    *,
    value: jax.Array | None = None,
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> tuple[jax.Array, jax.Array]:
    """Node 0: state 0, and one symbol 0 alone.

    Args:
      batch_size: B.
      num_nodes: N, all nodes, this one among them.
      num_states: Q.
      num_symbols: S.
      value: the vector of that symbol, shape (B, D); None where there are no vectors.
      dtype: of both.

    Returns:
      Log alpha, shape (B, Q, S), and its row, shape (B, S, Q, Q S N + D): what lies
      below, nothing, and the vectors.
    """
    pair = (num_states, num_symbols)
    alpha = jnp.full((batch_size, *pair), LOG_ZERO, dtype).at[:, 0, 0].set(0.0)
    below = math.prod(pair) * num_nodes
    row = jnp.zeros((batch_size, *pair[::-1], below), dtype)
    if value is not None:
        vector = jnp.zeros((batch_size, *pair[::-1], value.shape[-1]), dtype)
        row = jnp.concatenate([row, vector.at[:, 0, 0].set(value)], axis=-1)
    return alpha, row


def ndstack_step(
    alpha: jax.Array,
    last: jax.Array,
    node: jax.Array,
    transitions: Transitions,
    value: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One step of the automaton, from node - 1 to node.

    Letters: (s, z) is state and symbol on top before the step, (r, y) after it, (q, x)
    what lies below afterwards; (u, y) is what lay below before a pop, at node k.

    Args:
      alpha: log weights of state and top at node - 1, up to a constant, (B, Q, S).
      last: the row of node - 1: `below`, (B, z, s, u y k), and `vector`, (B, z, s, D).
      node: the new node, a scalar.
      transitions: log weights of this step.
      value: the vector that a push puts on the stack, shape (B, D), or None.

    Returns:
      alpha: at the new node, shape (B, r, y), the greatest of them 0.
      base: the new row, shape (B, y, r, q x i + D), as pushes and replaces make it.
      mix: shape (B, y, k, u, r): pops add sum_{k,u} mix[y,k,u,r] row_k[y,u].
    """
    batch, q, s = alpha.shape
    features = 0 if value is None else value.shape[-1]
    nodes = (last.shape[-1] - features) // (q * s)
    below = last[..., : q * s * nodes].reshape(batch, s, q, q, s, nodes)
    below = jnp.where(below > _RARE, below, 0)
    before = alpha[:, :, :, None, None]  # [b s z - -]
    push = before + transitions.push  # [b s z r y]
    replace = before + transitions.replace
    uncovered = jnp.einsum("bzsuyk->bszy", below)[:, :, :, None, :]
    pop = before + transitions.pop[..., None]  # [b s z r -]
    logs = jnp.stack([push, replace, pop + _safe_log(uncovered)])
    new_alpha = jax.nn.logsumexp(logs, axis=(0, 2, 3))  # [b r y]
    # Shares of the new weight: which transition led to (r, y).
    after = new_alpha[:, None, None]
    pushed, replaced = jnp.exp(push - after), jnp.exp(replace - after)
    popped = jnp.exp(jnp.minimum(pop - after, -math.log(_RARE)))
    here = jax.nn.one_hot(node - 1, nodes, dtype=below.dtype)
    base = jnp.einsum("bqxry,i->byrqxi", pushed, here)
    base += jnp.einsum("bszry,bzsqxi->byrqxi", replaced, below)
    base = base.reshape(*last.shape[:-1], -1)
    if value is not None:
        vector = jnp.einsum("bqxry,bd->byrd", pushed, value)
        kept = last[..., -features:]
        vector += jnp.einsum("bszry,bzsd->byrd", replaced, kept)
        base = jnp.concatenate([base, vector], axis=-1)
    mix = jnp.einsum("bszry,bzsuyk->bykur", popped, below)
    # Nothing depends on the constant, so neither does the gradient.
    greatest = jax.lax.stop_gradient(new_alpha.max(axis=(1, 2), keepdims=True))
    return new_alpha - greatest, base, mix


def read_vectors(alpha: jax.Array, row: jax.Array, features: int) -> jax.Array:
    """P(state, symbol) E[vector | state, symbol] at a node, shape (B, Q, S, D)."""
    probability = jax.nn.softmax(alpha, axis=(-2, -1))
    return probability[..., None] * jnp.swapaxes(row[..., -features:], 1, 2)


def _safe_log(probability):
    possible = probability > 0
    return jnp.where(possible, jnp.log(jnp.where(possible, probability, 1)), LOG_ZERO)
