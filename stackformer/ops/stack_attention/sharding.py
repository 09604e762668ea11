"""Stack attention on meshes whose axes are part of an array's type.

With explicit axes (the default of `jax.make_mesh`) every operation must know how its
result lies on the devices, and inside `jax.shard_map` along which axes it differs. No
string looks at another one, and no feature at another one; so a form runs as it is on
the part of the strings and features that a device holds, without communication.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


def on_shards(
    function: Callable[..., Any],
    actions: jax.Array,
    values: jax.Array | None = None,
    *,
    starts: jax.Array | None = None,
    initial_state: jax.Array | None = None,
    **options: Any,
) -> Any:
    """`function(**arrays, **options)`, on each device's part of the arrays.

    Args:
      function: of the arrays by name; gives (..., T, T), or with values (..., T, D) and
        a state (..., H + 1, D) or None. Hashable, so that an eager call compiles once.
      actions: shape (..., T, A).
      values: shape (..., T, D), or None.
      starts: shape (..., T), or None.
      initial_state: shape (..., H + 1, D), or None.
      **options: hashable, passed on.

    Raises:
      ValueError: the positions of a string, or its actions, lie on several devices.
    """
    given = {
        "actions": actions,
        "values": values,
        "starts": starts,
        "initial_state": initial_state,
    }
    arrays = {name: array for name, array in given.items() if array is not None}
    specs = {name: _explicit_spec(array) for name, array in arrays.items()}
    if not any(axis is not None for spec in specs.values() for axis in spec):
        return function(**_equally_varying(arrays), **options)
    main = [specs[name] for name in ("actions", "values") if name in specs]
    leading = _leading(main)
    for name, spec in zip(("actions", "values"), main, strict=False):
        _check(name, spec)
    whole = P(*leading, None, None)
    sliced = whole if values is None else P(*leading, None, specs["values"][-1])
    wanted = {
        "actions": whole,
        "values": sliced,
        "starts": P(*leading, None),
        "initial_state": sliced,
    }
    mesh = next(s.mesh for s in map(_sharding, arrays.values()) if not s.mesh.empty)
    inputs = tuple((name, wanted[name]) for name in arrays)
    placed = [
        jax.sharding.reshard(arrays[name], NamedSharding(mesh, spec))
        for name, spec in inputs
    ]
    output = whole if values is None else (sliced, sliced)
    run = _compiled(function, mesh, inputs, output, tuple(sorted(options.items())))
    return run(*placed)


def varying_like(array: jax.Array, other: jax.Array) -> jax.Array:
    """Inside `jax.shard_map`: lets an array differ along the axes that another does.

    What a scan starts from must have the type of what it carries on.
    """
    missing = _varying(other) - _varying(array)
    return jax.lax.pcast(array, tuple(missing), to="varying") if missing else array


@functools.lru_cache(maxsize=256)
def _compiled(function, mesh, inputs, output, options):
    names = [name for name, _ in inputs]

    def run(*arrays):
        named = dict(zip(names, arrays, strict=True))
        return function(**_equally_varying(named), **dict(options))

    explicit = [
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == AxisType.Explicit
    ]
    return jax.jit(
        jax.shard_map(
            run,
            mesh=mesh,
            in_specs=tuple(spec for _, spec in inputs),
            out_specs=output,
            axis_names=frozenset(explicit),
        )
    )


def _equally_varying(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    for other in list(arrays.values()):
        arrays = {name: varying_like(array, other) for name, array in arrays.items()}
    return arrays


def _varying(array: jax.Array) -> frozenset[str]:
    of_array: Any = jax.typeof(array)
    if hasattr(of_array, "manual_axis_type"):
        return of_array.manual_axis_type.varying
    return of_array.vma  # its name before jax 0.10.2


def _sharding(array: jax.Array) -> Any:
    return jax.typeof(array).sharding


def _explicit_spec(array: jax.Array) -> tuple[Any, ...]:
    """How the axes lie on the explicit axes of the mesh."""
    spec = tuple(_sharding(array).spec)
    return spec + (None,) * (array.ndim - len(spec))


def _leading(specs: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The sharding of the leading axes: that of the first array that has one there."""
    columns = zip(*(spec[:-2] for spec in specs), strict=True)
    return tuple(next((a for a in axes if a is not None), None) for axes in columns)


def _check(name: str, spec: tuple[Any, ...]) -> None:
    where = spec[-2] if name == "values" else spec[-2] or spec[-1]
    if where is not None:
        too = " and its features" if name == "values" else ""
        raise ValueError(
            f"`{name}` should be sharded along its leading axes{too} alone, as a stack "
            f"reads a whole string, but got {P(*spec)}; use jax.sharding.reshard."
        )
