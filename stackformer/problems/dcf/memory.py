"""Sizes that cannot work, by lower bounds on the memory that they need."""

import dataclasses
from typing import Any

from stackformer import models
from stackformer.problems.dcf.config import DCFConfig, task_named
from stackformer.tasks.sampling import FROZEN_STRINGS
from stackformer.training.memory import refuse_beyond_memory

# Bytes of an input symbol and of an answer's symbol with its mask.
_INPUT, _OUTPUT, _NUMBER = 4, 5, 4


def check_memory(config: DCFConfig) -> None:
    """Refuses lengths and numbers of strings for which the arrays alone are too big.

    The bounds are low, so that nothing is refused that could work: the strings that
    are drawn at once, the attention weights of one layer of a transformer, and what a
    recurrent model reads, keeps and says at every position.
    """
    strings = min(config.test_strings, FROZEN_STRINGS)
    for name, length, rows, what in (
        ("train_length", config.train_length, 1, "one string"),
        ("batch_size", config.train_length, config.batch_size, "a batch"),
        ("test_length", config.test_length, strings, f"{strings} strings"),
    ):
        task = task_named(config.task)
        output = int(task.output_length(length))
        needed = rows * (_INPUT * length + _OUTPUT * output)
        if name == "batch_size":
            needed *= len(config.seeds)
        positions = 1 + length + output
        passed = config.batch_size if name == "batch_size" else 1
        inside, of_what = _of_a_string(config, positions)
        inside *= passed * len(config.seeds)
        if inside > needed:
            needed, what = inside, of_what
        refuse_beyond_memory(name, getattr(config, name), needed, what)


def _of_a_string(config: DCFConfig, positions: int) -> tuple[int, str]:
    """Bytes that the model needs for one string, and for what."""
    fields = dataclasses.fields(models.MODELS[config.model].config)
    sizes: dict[str, Any] = {field.name: field.default for field in fields}
    sizes |= config.model_config
    if "num_heads" in sizes:
        heads = sizes["num_heads"] if sizes.get("attention", True) else 0
        return heads * _NUMBER * positions**2, "attention maps"
    return 3 * sizes["hidden_size"] * _NUMBER * positions, "hidden states"
