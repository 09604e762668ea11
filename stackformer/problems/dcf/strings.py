"""Strings without answers, from which the balance term learns the actions."""

import dataclasses

import jax
import jax.numpy as jnp

from stackformer import models, tasks
from stackformer.problems.dcf.config import DCFConfig

Array = jax.Array
_NUM_STRINGS = 128
# Shares of the first steps until which actions are explored, and are decided.
_EXPLORED, _DECIDED = 0.3, 0.6


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Strings:
    """Strings of many lengths, as a model reads them.

    Attributes:
      tokens: (B, T).
      mask: (B, T) True at real tokens.
    """

    tokens: Array
    mask: Array

    @classmethod
    def draw(cls, task: tasks.Task, config: DCFConfig, key: Array) -> "Strings":
        """Lengths are uniform over the longer half of the training lengths."""
        longest = config.train_length

        def one(key: Array) -> "Strings":
            length_key, string_key = jax.random.split(key)
            length = jax.random.randint(length_key, (), longest // 2, longest) + 1
            sample = task.sample(string_key, 1, length, longest)
            framed = tasks.frame(task, sample, config.mode)
            return cls(framed.tokens[0], framed.mask[0])

        return jax.vmap(one)(jax.random.split(key, _NUM_STRINGS))

    def balance(self, aux: models.Aux, done: Array) -> Array:
        """The balance term after the share `done` of the first steps."""
        explore = jnp.clip((_DECIDED - done) / (_DECIDED - _EXPLORED), 0.0, 1.0)
        return models.balance_loss(aux, mask=self.mask, explore=explore)
