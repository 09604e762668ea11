"""Meshes with explicit axes, and `jax.shard_map`: values and gradients stay."""

import json
import os
import subprocess
import sys
from pathlib import Path


def test_every_form_on_explicit_axes_and_in_shard_map():
    finished = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("explicit_axes.py"))],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert finished.returncode == 0, finished.stderr
    rows = json.loads(finished.stdout.splitlines()[-1])
    form, way, message = rows.pop()
    assert (form, way) == ("None", "positions split")
    assert "`values` should be sharded along its leading axes" in message
    assert len(rows) >= 42
    wrong = [row for row in rows if isinstance(row[2], str) or row[2] > 1e-5]
    assert not wrong
