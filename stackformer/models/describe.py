"""How many parameters a model has, and where."""

import math

from flax import nnx


def count_parameters(model: nnx.Module) -> int:
    """Number of parameters in all.

    Example:
      >>> count_parameters(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
      9
    """
    return sum(size for _, size, _ in _rows(model))


def describe(model: nnx.Module) -> str:
    """A table of a model's parameters, one line for each module that holds some.

    Example:
      >>> from stackformer import models, tasks
      >>> model = models.build("rnn", tasks.get("RS"), rngs=nnx.Rngs(0))
      >>> print(describe(model))
      RecurrentModel: 68,354 parameters, 0.26 MiB
      <BLANKLINE>
      module                       parameters  arrays
      input                             2,304  bias 256, kernel 8x256
      memory.controller.recurrent      65,536  kernel 256x256
      output                              514  bias 2, kernel 256x2
      <BLANKLINE>
      total                            68,354
    """
    rows = _rows(model)
    total = sum(size for _, size, _ in rows)
    num_bytes = sum(
        math.prod(leaf.shape) * leaf.dtype.itemsize for _, leaf in _leaves(model)
    )
    left = max(len(name) for name in ["module", *(name for name, _, _ in rows)])
    right = max(len("parameters"), len(f"{total:,}"))
    lines = [
        f"{type(model).__name__}: {total:,} parameters, {num_bytes / 2**20:.2f} MiB",
        "",
        f"{'module':<{left}}  {'parameters':>{right}}  arrays",
    ]
    lines += [
        f"{name:<{left}}  {size:>{right},}  {arrays}" for name, size, arrays in rows
    ]
    lines += ["", f"{'total':<{left}}  {total:>{right},}"]
    return "\n".join(lines)


def _leaves(model):
    """Pairs of path and array, in the model's order."""
    return [
        (path, param[...])
        for path, param in nnx.to_flat_state(nnx.state(model, nnx.Param))
    ]


def _rows(model):
    """Triples of module name, number of parameters, and its arrays as text."""
    modules = {}
    for path, leaf in _leaves(model):
        name = ".".join(map(str, path[:-1])) or "(model)"
        modules.setdefault(name, []).append((str(path[-1]), leaf.shape))
    return [
        (
            name,
            sum(math.prod(shape) for _, shape in arrays),
            ", ".join(f"{key} {'x'.join(map(str, shape))}" for key, shape in arrays),
        )
        for name, arrays in modules.items()
    ]
