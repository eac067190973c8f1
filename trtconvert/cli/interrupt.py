"""Ctrl-C while TensorRT works: Python learns of it only when that returns, which for a large model takes minutes."""

from __future__ import annotations

import os
import signal
import threading
import time

SHOW_CURSOR = b"\x1b[?25h\n"  # a progress bar has hidden it


def heed(grace_s: float = 1.0) -> None:
    """From now on end the process by SIGINT, with exit code 1, if Python itself has not after `grace_s` seconds."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)  # the handler in C writes there at once
    threading.Thread(target=_wait, args=(read, grace_s), daemon=True).start()


def _wait(read: int, grace_s: float) -> None:
    while os.read(read, 1)[0] != signal.SIGINT:
        pass
    time.sleep(grace_s)
    os.write(2, SHOW_CURSOR * os.isatty(2) + b"aborted\n")
    os._exit(1)
