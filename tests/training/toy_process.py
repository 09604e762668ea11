"""The toy command in processes of its own."""

import os
import subprocess
import sys
from pathlib import Path

COMMAND = Path(__file__).with_name("toy_problem.py")


def start(out, *flags, devices=1, cache=None) -> subprocess.Popen:
    """Starts it on so many CPU devices; `cache` holds compiled programs."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    if cache is not None:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(cache)
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return subprocess.Popen(
        [sys.executable, str(COMMAND), str(out), *flags],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen) -> str:
    """Waits for a good end and gives what was printed."""
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def toy(out, *flags, **options) -> str:
    """Starts and waits."""
    return finish(start(out, *flags, **options))
