"""Sizes that cannot work, by lower bounds on the memory that they need."""

from stackformer.problems.dcf.config import DCFConfig, task_named
from stackformer.tasks.sampling import FROZEN_STRINGS
from stackformer.training.memory import refuse_beyond_memory

# Bytes of an input symbol and of an answer's symbol with its mask.
_INPUT, _OUTPUT, _NUMBER = 4, 5, 4
_TRANSFORMERS = ("transformer", "stack_transformer")


def check_memory(config: DCFConfig) -> None:
    """Refuses lengths and numbers of strings for which the arrays alone are too big.

    The bounds are low, so that nothing is refused that could work: the strings that
    are drawn at once, and in transformers the attention weights of one head.
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
        if config.model in _TRANSFORMERS:
            weights = passed * len(config.seeds) * _NUMBER * positions**2
            if weights > needed:
                needed, what = weights, "an attention map"
        refuse_beyond_memory(name, getattr(config, name), needed, what)
