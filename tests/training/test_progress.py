"""Progress: what is on the screen, and that a second Ctrl-C is heard."""

import io
import os
import pathlib
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

from stackformer.training.progress import Estimate, Progress, can_redraw


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_a_line_that_moves_and_fits(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with Progress(stream=terminal) as shown:
        shown.say("going on from step 300 of 1,000")
        shown.wait_for("compiling the training step, 3 lengths")
        time.sleep(0.7)
        shown.count("training", 500, 1000, note="loss 0.123", left=75.9)
        time.sleep(0.5)
        shown.count("training", 1000, 1000, note="loss 0.123, " * 8)
    text = terminal.getvalue()
    drawn = [part for part in text.replace("\n", "\r").split("\r") if part.strip()]
    assert drawn[0] == "going on from step 300 of 1,000"
    compiling = {part.strip() for part in drawn if "compiling" in part}
    assert len(compiling) >= 3, "the spinner turns"
    assert any("500/1,000  50% [#" in part for part in drawn)
    assert any("1:15 left, loss 0.123" in part for part in drawn)
    assert "1,000/1,000 100%" in drawn[-1] and text.endswith("\n")
    assert max(map(len, drawn)) < 80


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_elsewhere_plain_lines_come_every_few_seconds(stream, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    screen = stream()
    with Progress(stream=screen, every=0.2) as shown:
        shown.wait_for("compiling the evaluation up to length 25")
        time.sleep(0.6)
        shown.count("testing", 25, 100, unit=" lengths", left=30.0)
        time.sleep(0.3)
    lines = screen.getvalue().splitlines()
    assert lines[0] == "compiling the evaluation up to length 25  0:00"
    assert 3 <= len(lines) <= 7
    assert lines[-1].startswith("testing 25/100 lengths  25%")
    assert "\r" not in screen.getvalue()


def test_nothing_is_shown_where_nothing_is_wanted():
    screen = io.StringIO()
    with Progress(stream=screen, enabled=False, every=0.01) as shown:
        shown.say("text")
        shown.wait_for("compiling")
        time.sleep(0.2)
    assert not screen.getvalue()


def test_a_terminal_without_columns_is_not_redrawn():
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as stream:
        assert not can_redraw(stream)  # a fresh pty has no size
    os.close(leader)


def test_time_left_weighs_lengths_by_their_cost():
    """Four buckets of 25 lengths; a length of bucket k takes k**2, compiling 3."""
    estimate, clock = Estimate(), 0.0
    parts = [(k, float(k * k)) for k in (1, 2, 3, 4) for _ in range(25)]
    total = sum(cost for _, cost in parts) + 4 * 3.0
    seen = set()
    for done, (kind, cost) in enumerate(parts, start=1):
        seconds = cost + 3.0 * (kind not in seen)
        seen.add(kind)
        clock += seconds
        estimate.add(kind, cost, seconds)
        remaining = {}
        for other, each in parts[done:]:
            remaining[other] = remaining.get(other, 0.0) + each
        left = estimate.left(remaining)
        if done > 1:
            assert left == pytest.approx(total - clock, abs=1e-6)


# A lock of C that is taken twice: no signal brings the main thread back from it, as
# from a compilation; other threads run.
BUSY = """
import ctypes
from stackformer.training.signals import StopRequest
c, lock = ctypes.CDLL(None), ctypes.create_string_buffer(128)
c.pthread_mutex_init(lock, None)
c.pthread_mutex_lock(lock)
with StopRequest():
    print("ready", flush=True)
    c.pthread_mutex_lock(lock)
"""


def test_a_second_interrupt_ends_a_compilation():
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert select.select([process.stderr], [], [], 5)[0]
        time.sleep(0.5)
        assert process.poll() is None, "the first waits for a safe point"
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read().decode()
        assert process.wait(5) == 130 and time.monotonic() - begin < 2
    assert "stopping at the next safe point" in errors
    assert "Traceback" not in errors and "interrupted" in errors


def test_two_interrupts_end_a_command_that_compiles(tmp_path):
    """Without waiting for XLA's threads, and without a crash of theirs."""
    command = [sys.executable, "-m", "experiments.dcf", "--task=RS"]
    command += ["--no_compilation_cache", f"--out={tmp_path / 'run'}"]
    slow = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    root = pathlib.Path(__file__).parents[2]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, env=slow, cwd=root
    ) as process:
        for line in process.stderr:
            if b"compiling the training step" in line:
                break
        for wait in (0.5, 0.7):
            time.sleep(wait)
            process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        errors = process.stderr.read().decode()
        assert process.wait(20) == 130 and time.monotonic() - begin < 5
    assert "interrupted" in errors
    assert "Traceback" not in errors and "Fatal" not in errors


def test_an_interrupt_while_jax_is_loaded_is_one_word():
    code = "from stackformer.commands import start; start.hello(); "
    code += "print('ready', flush=True); import time; time.sleep(20)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"\ninterrupted\n" and process.wait() == 130
