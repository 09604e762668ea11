"""Stacks: sub-layers with the shape of their input, behind one protocol (base.py)."""

from collections.abc import Mapping
from typing import Any

from stackformer.nn.stacks.base import Stack, StackConfig, StackOutput
from stackformer.nn.stacks.frames import FramesConfig, FrameStack
from stackformer.nn.stacks.nondeterministic import (
    NondeterministicConfig,
    NondeterministicStack,
)
from stackformer.nn.stacks.pointer import PointerConfig, PointerStack
from stackformer.nn.stacks.sampling import SAMPLINGS, choose_actions, entropy
from stackformer.nn.stacks.superposition import StackAttention, SuperpositionConfig

# Every kind of stack by name: `--stack=NAME`, and the "name" in saved configurations.
STACKS: dict[str, type[StackConfig]] = {
    config.name: config
    for config in (
        SuperpositionConfig,
        FramesConfig,
        NondeterministicConfig,
        PointerConfig,
    )
}

# What a model's configuration takes as its stack.
StackLike = StackConfig | Mapping[str, Any] | str | bool | None


def stack_config(value: StackLike) -> StackConfig | None:
    """A stack's configuration from what a user or a file says.

    Args:
      value: a `StackConfig`; a name of `STACKS`, or "none"; what
        `StackConfig.to_json` wrote; True for the paper's stack; None or False for no
        stack.

    Example:
      >>> stack_config("superposition").max_pops
      1
      >>> stack_config({"name": "superposition", "max_pops": 2}).max_pops
      2
    """
    if value is None or value is False or value == "none":
        return None
    if isinstance(value, StackConfig):
        return value
    if value is True:
        return SuperpositionConfig()
    options: dict[str, Any] = {"name": value}
    if isinstance(value, Mapping):
        options = dict(value)
    name = options.pop("name", None)
    if not isinstance(name, str) or name not in STACKS:
        raise ValueError(
            f"`stack` should be one of {', '.join(STACKS)} or none, but got {name!r}."
        )
    return STACKS[name](**options)


__all__ = [
    "SAMPLINGS",
    "STACKS",
    "FrameStack",
    "FramesConfig",
    "NondeterministicConfig",
    "NondeterministicStack",
    "PointerConfig",
    "PointerStack",
    "Stack",
    "StackAttention",
    "StackConfig",
    "StackLike",
    "StackOutput",
    "SuperpositionConfig",
    "choose_actions",
    "entropy",
    "stack_config",
]
