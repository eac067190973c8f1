"""Programs under glibc's malloc check, which ends the process where a block was written over its end, or freed twice."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys

import pytest

LIBRARY = "libc_malloc_debug.so.0"
needs_malloc_check = pytest.mark.skipif(
    ctypes.util.find_library("c_malloc_debug") is None, reason=f"no {LIBRARY} on this machine"
)


def assert_whole(program: str, *arguments: str) -> None:
    """Run the Python program, which prints "whole" as its last word."""
    environment = {**os.environ, "LD_PRELOAD": LIBRARY, "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165"}
    command = [sys.executable, "-c", program, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (result.returncode, result.stdout.strip()) == (0, "whole"), result.stderr[-500:]
