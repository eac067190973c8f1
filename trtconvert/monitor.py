"""How far a build is: TensorRT's progress as calls of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trtconvert.backend import Backend

Progress = Callable[[str, int, int], None]
"""Takes the phase, the step and the number of steps."""


def monitor(backend: Backend, progress: Progress) -> Any:
    """TensorRT's progress as calls of `progress`."""
    trt = backend.trt

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.steps: dict[str, int] = {}

        def phase_start(self, phase: str, _parent: str | None, steps: int) -> None:
            self.steps[phase] = steps
            progress(phase, 0, steps)

        def step_complete(self, phase: str, step: int) -> bool:
            progress(phase, step + 1, self.steps.get(phase, 0))
            return True

        def phase_finish(self, phase: str) -> None:
            progress(phase, self.steps.get(phase, 0), self.steps.pop(phase, 0))

    return Monitor()
