"""Ctrl-C ends the command also while foreign code keeps Python from hearing of it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

DEAF = """
import hashlib, signal
from trtconvert.cli import interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background begins with it ignored
interrupt.heed(0.3)
print("ready", flush=True)
{work}
"""


def interrupted(work: str) -> tuple[float, int, str]:
    """Seconds from SIGINT to the end of the process, its exit code, and what it wrote to stderr."""
    command = [sys.executable, "-c", DEAF.format(work=work)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        told = process.communicate(timeout=60)[1]
        return time.monotonic() - started, process.returncode, told


def test_while_code_in_c_works() -> None:
    """pbkdf2_hmac works for minutes without looking for signals, and lets other threads run, as TensorRT's builder does."""
    seconds, code, told = interrupted("hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)")
    assert (code, told) == (1, "aborted\n")
    assert seconds < 20


def test_python_comes_first() -> None:
    code, told = interrupted(
        "try:\n    import time; time.sleep(60)\nexcept KeyboardInterrupt:\n    raise SystemExit(7)"
    )[1:]
    assert (code, told) == (7, "")
