"""Differentiable stacks in transformers, in JAX.

What lies on top of a stack, at every position, as a function with a gradient:

  >>> import jax, jax.numpy as jnp, stackformer
  >>> from flax import nnx
  >>> actions = jax.nn.one_hot(jnp.array([2, 0, 0, 1]), 3)  # -, push, push, pop
  >>> values = jnp.array([[0.0], [10.0], [20.0], [30.0]])
  >>> print(stackformer.stack_attention(actions, values)[:, 0])
  [ 0. 10. 20. 10.]

As a sub-layer that learns its actions, and as a whole model:

  >>> stack = stackformer.StackAttention(16, rngs=nnx.Rngs(0))
  >>> stack(jnp.ones((2, 5, 16))).top.shape
  (2, 5, 16)
  >>> config = stackformer.TransformerConfig(vocab_size=6, output_size=2)
  >>> model = stackformer.StackTransformer(config, rngs=nnx.Rngs(0))
  >>> model(jnp.array([[1, 4, 5, 3, 2]])).shape
  (1, 5, 2)

Sub-packages, imported when they are used:
  ops       the kernels: stack attention in several forms, frames, softmax attention
  nn        Flax (NNX) modules: stacks behind one protocol, attention, blocks, cells
  models    the stack transformer, GPT-2 and RoBERTa with stacks, recurrent baselines
  tasks     formal languages, sampled on the device: `tasks.get("RS")`
  data      frozen test sets and text
  training  the engine: one loop, one evaluation, one kind of checkpoint
  problems  what is trained with it: dcf (length generalization), lm (text)
  viz       curves, attention maps, the stack explorer

On the command line: `stackformer --help`, or from a clone `python -m experiments.dcf
--task=RS`.
"""

import importlib
import importlib.metadata
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stackformer import data, models, nn, ops, problems, tasks, training, viz
    from stackformer.models import StackTransformer, TransformerConfig
    from stackformer.nn.stacks.superposition import StackAttention
    from stackformer.ops.stack_attention.api import (
        StackAction,
        stack_attention,
        stack_attention_weights,
    )
    from stackformer.problems.dcf import load

__version__ = "0.2.0"

# Where each name comes from; nothing is imported before it is used.
_NAMES = {
    "StackAction": "ops.stack_attention.api",
    "StackAttention": "nn.stacks.superposition",
    "StackTransformer": "models",
    "TransformerConfig": "models",
    "load": "problems.dcf",
    "stack_attention": "ops.stack_attention.api",
    "stack_attention_weights": "ops.stack_attention.api",
}
_PACKAGES = ("data", "models", "nn", "ops", "problems", "tasks", "training", "viz")

__all__ = [
    "StackAction",
    "StackAttention",
    "StackTransformer",
    "TransformerConfig",
    "__version__",
    "data",
    "load",
    "models",
    "nn",
    "ops",
    "problems",
    "stack_attention",
    "stack_attention_weights",
    "tasks",
    "training",
    "viz",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"stackformer.{name}")
    if name in _NAMES:
        module = importlib.import_module(f"stackformer.{_NAMES[name]}")
        globals()[name] = getattr(module, name)
        return globals()[name]
    raise AttributeError(f"module 'stackformer' has no attribute {name!r}")


def _warn_of_the_other() -> None:
    """Says so where the PyTorch package `stackformer` shares this folder."""
    try:
        other = importlib.metadata.distribution("stackformer")
    except importlib.metadata.PackageNotFoundError:
        return
    if any(name.startswith("torch") for name in other.requires or ()):
        warnings.warn(
            "the PyTorch package `stackformer` is installed in the same folder as this "
            "one in JAX, and either may have overwritten files of the other; to be "
            "sure: pip uninstall stackformer stackformer-jax, then pip install "
            "stackformer-jax, or pip install -e . in a clone",
            stacklevel=3,
        )


_warn_of_the_other()


def __dir__() -> list[str]:
    return sorted(__all__)
