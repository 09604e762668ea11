"""Devices: the mesh, its three axes, and where every array lies.

Axes: `seeds` splits the vmapped runs, `data` splits the batch, `params` splits large
parameter arrays (and the batch too, as in FSDP). XLA inserts the communication.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from stackformer.training.errors import UserError

AXES: tuple[str, ...] = ("seeds", "data", "params")
# Smaller arrays are copied to every device: splitting them costs more than it saves.
MIN_SHARDED_SIZE = 2**14


def parse_mesh(text: str | None, num_devices: int, batch_size: int) -> dict[str, int]:
    """Sizes of the mesh axes from a flag such as `seeds:2,data:4`.

    An axis left out has size 1. Without a flag all devices go to `data`, or as many
    as divide the batch.

    >>> parse_mesh("seeds:2,data:4", num_devices=8, batch_size=32)
    {'seeds': 2, 'data': 4, 'params': 1}
    >>> parse_mesh(None, num_devices=3, batch_size=32)
    {'seeds': 1, 'data': 2, 'params': 1}
    """
    sizes = dict.fromkeys(AXES, 1)
    if not text:
        fitting = [n for n in range(1, num_devices + 1) if batch_size % n == 0]
        return sizes | {"data": fitting[-1]}
    given: set[str] = set()
    for part in text.split(","):
        name, _, size = part.partition(":")
        if name.strip() not in AXES or not size.strip().isdigit() or int(size) < 1:
            raise UserError(
                f"`mesh` should be AXIS:SIZE parts with the axes {', '.join(AXES)}, "
                f"such as data:4 or seeds:2,data:4, but got {part!r} in {text!r}"
            )
        if name.strip() in given:
            raise UserError(f"`mesh` should name an axis once, but got {text!r}")
        given.add(name.strip())
        sizes[name.strip()] = int(size)
    wanted = int(np.prod(list(sizes.values())))
    if wanted > num_devices:
        raise UserError(
            f"`mesh` should need at most the {num_devices} devices that JAX sees, but "
            f"got {text!r}, which needs {wanted} devices (to try it on a CPU, set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={wanted})"
        )
    split = sizes["data"] * sizes["params"]
    if batch_size % split:
        raise UserError(
            f"`mesh` should split the batch into parts that divide it, but got "
            f"{text!r}, {split} parts, and `batch_size` {batch_size} is not divisible "
            f"by {split}"
        )
    return sizes


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where arrays lie: a mesh and the rule for parameters, batches and the rest."""

    mesh: Mesh

    @classmethod
    def create(
        cls, sizes: dict[str, int] | None = None, devices: Any = None
    ) -> "Placement":
        """A placement on the first devices; all sizes 1 where none are given.

        >>> Placement.create({"data": 1}).mesh.shape["data"]
        1
        """
        sizes = dict.fromkeys(AXES, 1) | (sizes or {})
        devices = jax.devices() if devices is None else devices
        shape = tuple(sizes[axis] for axis in AXES)
        count = int(np.prod(shape))
        grid = np.array(devices[:count]).reshape(shape)
        return cls(Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES)))

    @property
    def replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, P())

    @property
    def splits_seeds(self) -> bool:
        """Whether the seeds lie on several devices."""
        return self.mesh.shape["seeds"] > 1

    def check_seeds(self, num_seeds: int) -> None:
        size = self.mesh.shape["seeds"]
        if num_seeds % size:
            raise UserError(
                f"`mesh` should split the {num_seeds} seeds into equal parts, but got "
                f"seeds:{size}"
            )

    def per_seed(self, leaf: Any) -> NamedSharding:
        """The sharding of one state array of shape (S, ...).

        The largest axis that the `params` axis divides is split, in arrays of at
        least `MIN_SHARDED_SIZE` numbers a seed.
        """
        spec: list[str | None] = ["seeds"] + [None] * (leaf.ndim - 1)
        parts = self.mesh.shape["params"]
        inner = leaf.shape[1:]
        if parts > 1 and np.prod(inner, dtype=np.int64) >= MIN_SHARDED_SIZE:
            fitting = [axis for axis, size in enumerate(inner) if size % parts == 0]
            if fitting:
                spec[1 + max(fitting, key=lambda axis: inner[axis])] = "params"
        return NamedSharding(self.mesh, P(*spec))

    def constrain_batch(self, batch: Any) -> Any:
        """Splits the leading axis of every leaf of a batch over data and params."""

        def constrain(leaf: jax.Array) -> jax.Array:
            spec = P(("data", "params")) if leaf.ndim else P()
            return jax.lax.with_sharding_constraint(
                leaf, NamedSharding(self.mesh, spec)
            )

        return jax.tree.map(constrain, batch)
