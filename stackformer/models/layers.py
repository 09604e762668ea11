"""What all transformers here share: running their layers, and the caches of decoding.

Legend: B batch, T positions, D features, L layers that a forward pass runs.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from stackformer.models.layer_scan import groups_of_equals, scan_equals
from stackformer.models.outputs import Aux
from stackformer.nn.block import (
    BlockCache,
    BlockOutput,
    TransformerBlock,
    take_positions,
)

ReturnAux = bool | Literal["actions"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecodeCache:
    """Everything that decoding remembers: the next position and a state per layer."""

    index: jax.Array
    layers: tuple[BlockCache, ...]


def run_layers(
    blocks: Sequence[TransformerBlock],
    h: jax.Array,
    *,
    mask: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    actions: jax.Array | Sequence[jax.Array | None] | None = None,
    key: jax.Array | None = None,
    hard: bool | jax.Array = False,
    remat: bool = False,
    scan: bool = False,
    return_aux: ReturnAux = False,
    at: jax.Array | None = None,
) -> tuple[jax.Array, Aux]:
    """All layers in turn.

    Args:
      blocks: the L layers as they are run; a looped layer appears again.
      h: shape (B, T, D).
      mask, segment_ids, hard: see `TransformerBlock`.
      actions: given ones, see `StackTransformer`.
      key: of the forward pass; layer l gets fold_in(key, l).
      remat: compute each layer again in the backward pass instead of keeping it.
      scan: compile neighbours of equal shape once, as a loop; see `layer_scan`.
      return_aux: True fills in everything, "actions" what costs nothing.
      at: the positions wanted, shape (B, M); None: all.
    """
    if return_aux not in (False, True, "actions"):
        raise ValueError(
            f"`return_aux` should be False, True or 'actions', but got {return_aux!r}."
        )
    given = _given_actions(blocks, actions, mask, segment_ids)
    layers = [nnx.split(block) for block in blocks]
    keys: list[Any] = [None] * len(blocks)
    if key is not None:
        # At once: XLA writes out the hash of every single one.
        keys = list(jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(keys))))

    def run(graphdef, at, state, h, key, actions):
        return nnx.merge(graphdef, state)(
            h,
            mask=mask,
            segment_ids=segment_ids,
            actions=actions,
            key=key,
            hard=hard,
            return_weights=return_aux is True,
            at=at,
        )

    outputs: list[BlockOutput] = []
    for group in groups_of_equals(layers, given) if scan else _singly(len(layers)):
        graphdef = layers[group[0]][0]
        alone = len(group) == 1 and group[0] == len(layers) - 1
        function = functools.partial(run, graphdef, at if alone else None)
        if remat:
            function = jax.checkpoint(function, prevent_cse=len(group) == 1)
        inputs = [(layers[i][1], keys[i], given[i]) for i in group]
        h, results = scan_equals(function, h, inputs)
        outputs += results
        if at is not None and not alone and group[-1] == len(layers) - 1:
            h = take_positions(h, at)
    return h, _aux(outputs, given) if return_aux else Aux()


def init_caches(
    blocks: Sequence[TransformerBlock],
    batch_size: int,
    max_length: int,
    *,
    hard: bool = False,
) -> DecodeCache:
    """An empty decoding state for at most `max_length` positions."""
    layers = tuple(
        block.init_cache(batch_size, max_length, hard=hard) for block in blocks
    )
    return DecodeCache(jnp.zeros((), jnp.int32), layers)


def step_layers(
    blocks: Sequence[TransformerBlock], cache: DecodeCache, h: jax.Array
) -> tuple[DecodeCache, jax.Array]:
    """One position, h (B, D), through all layers."""
    layers = []
    for block, state in zip(blocks, cache.layers, strict=True):
        state, h = block.step(state, h, cache.index)
        layers.append(state)
    return DecodeCache(cache.index + 1, tuple(layers)), h


def prefill_layers(
    blocks: Sequence[TransformerBlock],
    cache: DecodeCache,
    h: jax.Array,
    length: int | jax.Array,
) -> tuple[DecodeCache, jax.Array]:
    """A prompt, h (B, T, D), through all layers at once; what its last position is.

    Args:
      blocks: the layers as they are run.
      cache: from `init_caches`.
      h: of T positions, of which the first `length` count.
      length: a number or a traced scalar, from 1 to T.

    Returns:
      The cache after `length` positions, and h at the last of them, (B, D).
    """
    layers = []
    for block, state in zip(blocks, cache.layers, strict=True):
        state, h = block.prefill(state, h, length)
        layers.append(state)
    index = jnp.asarray(length, cache.index.dtype)
    last = jax.lax.dynamic_index_in_dim(h, index - 1, axis=1, keepdims=False)
    return DecodeCache(index, tuple(layers)), last


def _singly(count: int) -> list[range]:
    return [range(layer, layer + 1) for layer in range(count)]


def _aux(outputs: list[BlockOutput], given: list[Any]) -> Aux:
    def collect(name: str) -> tuple[Any, ...]:
        return tuple(out.stack and getattr(out.stack, name) for out in outputs)

    return Aux(
        stack_weights=collect("weights"),
        stack_actions=collect("actions"),
        action_logits=collect("logits"),
        attention_weights=tuple(out.attention_weights for out in outputs),
    )


def _given_actions(
    blocks: Sequence[TransformerBlock],
    actions: jax.Array | Sequence[jax.Array | None] | None,
    mask: jax.Array | None,
    segment_ids: jax.Array | None,
) -> list[Any]:
    """The actions of each layer, None where they are predicted."""
    depth = len(blocks)
    if actions is None:
        return [None] * depth
    stacks = [block.stack for block in blocks]
    with_stack = [stack for stack in stacks if stack is not None]
    if not with_stack:
        raise ValueError(
            "`actions` should be None, as no layer of this model has a stack."
        )
    if isinstance(actions, Sequence):
        if len(actions) != depth:
            raise ValueError(
                f"`actions` should have one entry for each of the {depth} layers, but "
                f"got {len(actions)}."
            )
        for layer, (given, stack) in enumerate(zip(actions, stacks, strict=True)):
            if given is not None and stack is None:
                raise ValueError(
                    f"`actions[{layer}]` should be None, as layer {layer} has no "
                    f"stack, but got shape {given.shape}."
                )
        return list(actions)
    # What all layers share is computed once, and nothing else is sequential.
    shared = with_stack[0].share_actions(actions, mask=mask, segment_ids=segment_ids)
    return [None if stack is None else shared for stack in stacks]
