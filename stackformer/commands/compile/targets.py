"""Devices that are described, not present: XLA compiles for them all the same."""

import importlib.util
import os
from typing import Any

from stackformer.training.errors import UserError

TARGETS = ("v5e:2x2", "v6e:2x2", "v5e:4x4", "h100", "cpu")
# What XLA must know of an H100 (the proto GpuTargetConfig): its data sheet, and the
# limits of compute capability 9.0.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84978434048
  shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  cuda_compute_capability { major: 9 minor: 0 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
# The package that compiles for a platform, and the extra that brings it.
_PACKAGES = {
    "tpu": ("libtpu", "aot-tpu"),
    "gpu": ("jax_plugins.xla_cuda12", "aot-gpu"),
}


def platform_of(target: str) -> str:
    """The platform of a target.

    >>> platform_of("v5e:2x2"), platform_of("h100"), platform_of("cpu")
    ('tpu', 'gpu', 'cpu')
    """
    return {"h100": "gpu", "cpu": "cpu"}.get(target, "tpu")


def missing_package(target: str) -> str | None:
    """What to install before a target can be compiled for, or None."""
    platform = platform_of(target)
    if platform not in _PACKAGES:
        return None
    package, extra = _PACKAGES[platform]
    try:
        found = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        found = False
    if found:
        return None
    return (
        f"--target={target} needs the package {package}, which is not installed; run "
        f"pip install 'stackformer-jax[{extra}]', or in a clone pip install -e "
        f"'.[{extra}]'"
    )


def devices_of(target: str) -> list[Any]:
    """The described devices of a target; for "cpu" those of this machine.

    Raises:
      UserError: the target is unknown, or its package is not installed.
    """
    if target not in TARGETS:
        raise UserError(
            f"--target should be one of {', '.join(TARGETS)}, but got {target!r}"
        )
    complaint = missing_package(target)
    if complaint is not None:
        raise UserError(complaint)
    import jax

    jax.config.update("jax_platforms", "cpu")  # nothing is run elsewhere
    platform = platform_of(target)
    if platform == "cpu":
        return jax.devices()
    from jax.experimental import topologies

    if platform == "gpu":
        os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
        description = topologies.get_topology_desc(
            platform="cuda", topology_name="", target_config=_H100, topology="1x1x1"
        )
    else:
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        description = topologies.get_topology_desc(platform="tpu", topology_name=target)
    return list(description.devices)
