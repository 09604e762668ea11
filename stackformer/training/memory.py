"""What cannot fit into memory is refused with a figure, before anything is made."""

import os

from stackformer.training.errors import UserError
from stackformer.training.problem import Problem

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def machine_bytes() -> int | None:
    """Memory of the device that computes, or of the machine; None where unknown."""
    import jax

    device = jax.local_devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"]) * jax.local_device_count()
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None


def format_bytes(count: float) -> str:
    """A number of bytes in a unit that a person reads.

    >>> format_bytes(3 * 2**30), format_bytes(10.0**24)
    ('3.0 GiB', '867361.7 EiB')
    """
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.1f} {_UNITS[unit]}"


def check_parameters(problem: Problem, seeds: int) -> None:
    """Raises `UserError` where parameters and Adam's two moments do not fit."""
    import jax

    have, needed = machine_bytes(), 3 * seeds * problem.parameter_bytes
    # Over several machines they are sharded.
    if have is not None and needed > have * jax.process_count():
        raise UserError(
            "the model should be smaller, or there should be fewer seeds: its "
            f"parameters and optimizer need at least {format_bytes(needed)}, but there "
            f"are {format_bytes(have)}"
        )


def refuse_beyond_memory(name: str, value: int, needed: int, what: str) -> None:
    """Raises `UserError` where an option needs more memory than there is.

    Args:
      name: the option, a field of a configuration.
      value: what it is.
      needed: bytes that it needs at the least.
      what: what needs them, such as "512 strings of one length".
    """
    have = machine_bytes()
    if have is not None and needed > have:
        raise UserError(
            f"`{name}` should be smaller: with {value:,}, {what} needs at least "
            f"{format_bytes(needed)}, but there are {format_bytes(have)}"
        )
