"""One door to all models: a name, a task, and what should differ from the defaults."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from flax import nnx

from stackformer.checks import MODES, check_choice
from stackformer.models.recurrent import (
    NDStackRecurrentConfig,
    RecurrentConfig,
    RecurrentModel,
    StackRecurrentConfig,
    TapeRecurrentConfig,
)
from stackformer.models.transformer.config import TransformerConfig
from stackformer.models.transformer.model import StackTransformer
from stackformer.nn.stacks import STACKS


class TaskSizes(Protocol):
    """What a model must know of a task; every `stackformer.tasks` task has it."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def output_size(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """A line of the registry.

    Attributes:
      model: builds the model, `model(config, rngs=rngs)`.
      config: the model's configuration dataclass.
      fixed: fields of the configuration that the name stands for.
      setting: gives further fields from (name, mode, positions), or raises ValueError
        where the model does not offer that.
    """

    model: Callable[..., nnx.Module]
    config: type
    fixed: Mapping[str, Any]
    setting: Callable[[str, str, str], dict[str, Any]]


def _transformer(stack: str | None) -> ModelSpec:
    def setting(name: str, mode: str, positions: str) -> dict[str, Any]:
        return {"causal": mode == "alm", "positions": positions}

    return ModelSpec(StackTransformer, TransformerConfig, {"stack": stack}, setting)


def _recurrent(config: type[RecurrentConfig], **fixed: Any) -> ModelSpec:
    def setting(name: str, mode: str, positions: str) -> dict[str, Any]:
        if mode != "mlm":
            raise ValueError(
                f"`mode` should be 'mlm' with the recurrent model {name!r}, whose "
                f"outputs are read at the mask tokens, but got {mode!r}."
            )
        if positions != "none":
            raise ValueError(
                f"`positions` should be 'none' with the recurrent model {name!r}, "
                f"which reads from left to right, but got {positions!r}."
            )
        return {}

    return ModelSpec(RecurrentModel, config, fixed, setting)


MODELS: dict[str, ModelSpec] = {
    "stack_transformer": _transformer("superposition"),
    "transformer": _transformer(None),
    "rnn": _recurrent(RecurrentConfig, controller="rnn"),
    "stack_rnn": _recurrent(StackRecurrentConfig, controller="rnn"),
    "lstm": _recurrent(RecurrentConfig, controller="lstm"),
    "stack_lstm": _recurrent(StackRecurrentConfig, controller="lstm"),
    "tape_rnn": _recurrent(TapeRecurrentConfig, controller="rnn"),
    "ndstack_rnn": _recurrent(NDStackRecurrentConfig, controller="rnn"),
}


def build(
    name: str,
    task: TaskSizes,
    config: Mapping[str, Any] | None = None,
    *,
    mode: str = "mlm",
    positions: str = "none",
    stack: str | None = None,
    rngs: nnx.Rngs,
) -> nnx.Module:
    """A model for a task.

    Args:
      name: a key of `MODELS`: "stack_transformer", "transformer", "rnn", "stack_rnn",
        "lstm", "stack_lstm", "tape_rnn" or "ndstack_rnn".
      task: gives the number of token ids and of output classes.
      config: what should differ from the defaults of the model's configuration
        (`TransformerConfig`, `RecurrentConfig` and its kin), or of its stack's
        (`SuperpositionConfig` and its kin), by field name.
      mode: "mlm" (masked) or "alm" (autoregressive; transformers only).
      positions: "none", "sincos", "relative", "rotary" or "alibi" (transformers only).
      stack: the kind of stack of the stack transformer, a name of
        `stackformer.nn.STACKS`; None is the paper's.
      rngs: the "params" stream initialises the parameters.

    Returns:
      A model with the call `model(tokens, mask=mask)`, see `StackTransformer` and
      `RecurrentModel`; its `config` says what it is.

    Raises:
      ValueError: the name, a field or a combination does not exist.

    Example:
      >>> from stackformer import models, tasks
      >>> task = tasks.get("RS")
      >>> model = models.build("stack_rnn", task, {"num_stacks": 2}, rngs=nnx.Rngs(0))
      >>> model.config.hidden_size, model.config.num_stacks
      (256, 2)
    """
    check_choice("name", name, MODELS)
    check_choice("mode", mode, MODES)
    spec = MODELS[name]
    given = {
        "vocab_size": task.vocab_size,
        "output_size": task.output_size,
        **spec.fixed,
        **spec.setting(name, mode, positions),
    }
    if stack is not None:
        if given.get("stack") is None:
            raise ValueError(
                f"`stack` should be None with the model {name!r}, but got {stack!r}; "
                "kinds of stacks go with 'stack_transformer'."
            )
        check_choice("stack", stack, STACKS)
        given["stack"] = stack
    options = dict(config or {})
    fields = _field_names(spec.config)
    if given.get("stack") is not None:
        kind = STACKS[given["stack"]]
        names = [key for key in options if key not in fields]
        of_stack = {key: options.pop(key) for key in names if key in _field_names(kind)}
        given["stack"] = kind(**of_stack)
        fields = [*fields, *_field_names(kind)]
    _check_overrides(name, options, given, fields)
    return spec.model(spec.config(**given, **options), rngs=rngs)


def _field_names(config: type) -> list[str]:
    return [field.name for field in dataclasses.fields(config)]


def _check_overrides(name, overrides, given, fields):
    allowed = [field for field in fields if field not in given]
    wrong = [key for key in overrides if key not in allowed]
    if not wrong:
        return
    message = (
        f"`config` of model {name!r} should have keys among {', '.join(allowed)}, but "
        f"got {', '.join(map(str, wrong))}."
    )
    decided = [key for key in wrong if key in given]
    if decided:
        message += (
            f" The model's name, the task, `mode` and `positions` decide "
            f"{', '.join(decided)}."
        )
    raise ValueError(message)
