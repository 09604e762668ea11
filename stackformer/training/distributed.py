"""Several processes as one run."""

import os

import jax

from stackformer.training.errors import UserError


def initialize(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> None:
    """Joins the processes of a run; call it before anything touches a device.

    Without arguments JAX reads the cluster's environment (SLURM, Open MPI, Kubernetes,
    TPU pods). By hand, start the same command in every process with the address of the
    first one, the number of processes, and each one's number from 0.
    """
    given = [x is not None for x in (coordinator, num_processes, process_id)]
    if any(given) and not all(given):
        raise UserError(
            "`coordinator`, `num_processes` and `process_id` should be given together, "
            "or none of them on a cluster that JAX knows"
        )
    if "cpu" in (os.environ.get("JAX_PLATFORMS") or "cpu"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"`distributed`: the processes could not be joined: {error}. On a machine "
            "that JAX does not know as a cluster give `coordinator` HOST:PORT, "
            "`num_processes` and `process_id`"
        ) from None
