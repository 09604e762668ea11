"""The types of what a kernel returns."""

from typing import Any

import jax


def output_like(array: jax.Array, shape: tuple[int, ...] | None = None) -> Any:
    """A result of this dtype; inside `jax.shard_map` it differs where `array` does."""
    of_array: Any = jax.typeof(array)
    shape = array.shape if shape is None else shape
    kind = getattr(of_array, "manual_axis_type", None)
    if kind is not None:
        varies: dict[str, Any] = {"manual_axis_type": kind}
    else:
        varies = {"vma": of_array.vma}  # its name before jax 0.10.2
    return jax.ShapeDtypeStruct(shape, array.dtype, **varies)
