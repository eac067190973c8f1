"""Calls a function in a child process, for code that may crash, hang or need much memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any


class Child:
    """A silent process that runs one function, call after call. It starts when needed, and anew after a crash."""

    def __init__(self, function: Callable[..., Any], limit_s: float) -> None:
        self.function, self.limit_s = function, limit_s
        self.running: tuple[BaseProcess, Connection] | None = None

    def __call__(self, *arguments: Any) -> tuple[str, Any]:
        """("ok", result), ("error", message of the exception) or ("crash", reason: how the process ended)."""
        if self.running is None:
            context = get_context("spawn")
            connection, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(self.function, theirs), daemon=True)
            process.start()
            theirs.close()
            self.running = process, connection
        process, connection = self.running
        try:
            connection.send(arguments)
            if connection.poll(self.limit_s):
                return connection.recv()
            reason = f"took over {self.limit_s:g} s"
        except (EOFError, OSError):
            process.join()
            reason = f"ended with exit code {process.exitcode}"
        self.close()
        return "crash", reason

    def close(self) -> None:
        """End the process, by force if it does not when nothing more can come."""
        if self.running is not None:
            process, connection = self.running
            connection.close()
            process.join(5)
            process.kill()
            process.join()
            self.running = None


def _serve(function: Callable[..., Any], connection: Connection) -> None:
    """The child: call the function with each set of arguments that comes."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    while True:
        try:
            arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = "ok", function(*arguments)
        except Exception as error:  # noqa: BLE001  whatever it is, it is the answer
            answer = "error", f"{type(error).__name__}: {error}"
        connection.send(answer)
