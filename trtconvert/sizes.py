"""Sizes for dynamic dimensions that nobody said anything about: found by running the model in onnxruntime at likely ones."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from onnx import ModelProto

from trtconvert import model as onnx_model
from trtconvert import reference
from trtconvert.inputs import random_array
from trtconvert.manifest import IO, model_io

Key: TypeAlias = "str | tuple[str, int]"
"""A dimension's name, which has one size in all inputs, or input and axis of one without."""
Sizes: TypeAlias = dict[Key, int]
BATCH = (1, 2)
LIKELY = (256, 64, 512, 48, 32, 1, 224, 128, 1024, 16, 160, 16000, 2)  # in the order in which they are tried
MAX_BATCH = 16
SPREAD = 4  # opt is so many times min, and max so many times opt, where the model runs at these
MAX_TRIALS, MAX_SECONDS = 150, 15.0


@dataclass(frozen=True)
class Span:
    """min, opt and max size of a dimension. tried: whether the model runs at them, the others being at their opt."""

    min: int
    opt: int
    max: int


def key(name: str, axis: int, dim: int | str | None) -> Key:
    """What the dimension is known by."""
    return dim if isinstance(dim, str) else (name, axis)


def find(model: ModelProto, folder: Path, fixed: Mapping[str, Sequence[int]]) -> dict[str, list[Span]] | None:
    """Spans of all dimensions of every dynamic input, at which the model runs on random data; None where it runs at none of
    those that were tried, or not at all.

    folder: of external data. fixed: inputs of which the shape is known.
    """
    try:
        trials = _Trials(model, folder, fixed)
    except Exception:  # noqa: BLE001  # onnxruntime's errors have no base of their own: what it cannot load it cannot try
        return None
    opt = trials.first(trials.guesses())
    return None if opt is None else trials.spans(opt)


class _Trials:
    """Runs one model at sizes, as long as trials and time last."""

    def __init__(self, model: ModelProto, folder: Path, fixed: Mapping[str, Sequence[int]]) -> None:
        self.inputs = [_with_shape(io, fixed) for io in model_io(model, "input")]
        self.keys: dict[Key, bool] = {}  # whether it counts samples of a batch
        for io in self.inputs:
            for axis, dim in enumerate(io.shape or ()):
                if not isinstance(dim, int):
                    name = key(io.name, axis, dim)
                    leads = axis == 0 and len(io.shape or ()) > 1
                    self.keys[name] = self.keys.get(name, False) or leads or "batch" in str(dim).lower()
        self.session = reference.session(onnx_model.copy(model), folder)
        self.left, self.deadline = MAX_TRIALS, time.monotonic() + MAX_SECONDS
        self.known: dict[tuple[int, ...], bool] = {}

    def runs(self, sizes: Sizes) -> bool:
        """Whether the model runs at these sizes."""
        place = tuple(sizes[k] for k in self.keys)
        if place not in self.known:
            if self.left == 0 or time.monotonic() > self.deadline:
                return False
            self.left -= 1
            self.known[place] = self._run(sizes)
        return self.known[place]

    def _run(self, sizes: Sizes) -> bool:
        random = np.random.default_rng(0)
        feeds = {}
        for io in self.inputs:
            shape = [d if isinstance(d, int) else sizes[key(io.name, axis, d)] for axis, d in enumerate(io.shape or ())]
            feeds[io.name] = random_array(random, io.dtype, tuple(shape))
        try:
            self.session.run(None, feeds)
        except Exception:  # noqa: BLE001  # see find
            return False
        return True

    def guesses(self) -> Iterator[Sizes]:
        """Combinations of likely sizes, the likeliest first."""
        lists = [BATCH if is_batch else LIKELY for is_batch in self.keys.values()]
        for total in range(sum(len(one) - 1 for one in lists) + 1):
            for places in _compositions(total, [len(one) for one in lists]):
                yield {k: one[place] for k, one, place in zip(self.keys, lists, places, strict=True)}

    def first(self, guesses: Iterator[Sizes]) -> Sizes | None:
        """The first sizes at which the model runs."""
        for sizes in guesses:
            if self.runs(sizes):
                return sizes
            if self.left == 0 or time.monotonic() > self.deadline:
                return None
        return None

    def spans(self, opt: Sizes) -> dict[str, list[Span]]:
        """Around opt, each dimension for itself; one that the model runs at no other size of is fixed."""
        found: dict[Key, Span] = {}
        for name, is_batch in self.keys.items():
            size = opt[name]
            low = max(1, size // SPREAD) if not is_batch else 1
            high = size * SPREAD if not is_batch else size + 1
            if not self.runs(opt | {name: high}):
                found[name] = Span(size, size, size)
                continue
            low = low if self.runs(opt | {name: low}) else size
            found[name] = Span(low, size, MAX_BATCH if is_batch else high)
        return {
            io.name: [
                Span(d, d, d) if isinstance(d, int) else found[key(io.name, axis, d)]
                for axis, d in enumerate(io.shape or ())
            ]
            for io in self.inputs
            if any(not isinstance(d, int) for d in io.shape or ())
        }


def _with_shape(io: IO, fixed: Mapping[str, Sequence[int]]) -> IO:
    return IO(io.name, io.dtype, [*fixed[io.name]]) if io.name in fixed else io


def _compositions(total: int, limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to write `total` as a sum of numbers below their limits."""
    if not limits:
        if total == 0:
            yield ()
        return
    for first in range(min(total, limits[0] - 1) + 1):
        for rest in _compositions(total - first, limits[1:]):
            yield (first, *rest)
