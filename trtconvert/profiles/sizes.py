"""Sizes for dynamic dimensions that nobody said anything about: found by running the model in onnxruntime at likely ones."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from onnx import ModelProto

from trtconvert import model as onnx_model
from trtconvert import reference
from trtconvert.inputs import random_array
from trtconvert.manifest import IO, model_io
from trtconvert.shapes import Range

Key: TypeAlias = "str | tuple[str, int]"
"""A dimension's name, which has one size in all inputs, or input and axis of one without."""
Sizes: TypeAlias = dict[Key, int]
BATCH = (1, 2)
LIKELY = (256, 64, 512, 48, 32, 1, 224, 128, 1024, 16, 160, 16000, 2)  # in the order in which they are tried
MAX_BATCH = 16
SPREAD = 4  # opt is so many times min, and max so many times opt, where the model runs at these
MAX_TRIALS, MAX_SECONDS = 150, 15.0
_NO_VALUES: Mapping[str, Range] = {}
MAX_ELEMENTS = 1 << 27  # of an input


def _key(name: str, axis: int, dim: int | str | None) -> Key:
    """What the dimension is known by."""
    return dim if isinstance(dim, str) else (name, axis)


def propose(
    model: ModelProto, folder: Path, given: Mapping[str, Range], values: Mapping[str, Range] = _NO_VALUES
) -> dict[str, Range]:
    """Shapes of all dynamic inputs at which the model runs on random data; none where it runs at none that were tried, or not at
    all. The given ones stay.

    folder: of external data. values: of shape tensors.
    """
    try:
        trials = _Trials(model, folder, {n: r.opt for n, r in given.items()}, {n: r.opt for n, r in values.items()})
    except Exception:  # noqa: BLE001  # onnxruntime's errors have no base of their own: what it cannot load it cannot try
        return {}
    opt = trials.first(trials.guesses())
    return {} if opt is None else trials.ranges(opt) | dict(given)


class _Trials:
    """Runs one model at sizes, as long as trials and time last."""

    def __init__(
        self,
        model: ModelProto,
        folder: Path,
        fixed: Mapping[str, Sequence[int]],
        values: Mapping[str, Sequence[int]],
    ) -> None:
        self.values = values
        declared = model_io(model, "input")
        named = {d: s for io in declared for d, s in zip(io.shape or (), fixed.get(io.name, ()), strict=False)}
        self.inputs = [IO(io.name, io.dtype, _known(io, fixed, named)) for io in declared]
        self.keys: dict[Key, bool] = {}  # whether it counts samples of a batch
        for io in self.inputs:
            for axis, dim in enumerate(io.shape or ()):
                if not isinstance(dim, int):
                    name = _key(io.name, axis, dim)
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
        shapes = {io.name: self._shape(io, sizes) for io in self.inputs}
        if any(math.prod(shape) > MAX_ELEMENTS for shape in shapes.values()):
            return False
        try:
            feeds = {io.name: random_array(random, io.dtype, shapes[io.name]) for io in self.inputs}
            for name, values in self.values.items():
                feeds[name] = np.array(values, feeds[name].dtype).reshape(shapes[name])
            self.session.run(None, feeds)
        except Exception:  # noqa: BLE001  # see propose
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

    def ranges(self, opt: Sizes) -> dict[str, Range]:
        """Around opt, each dimension for itself; one that the model runs at no other size of is fixed."""
        low, high = dict(opt), dict(opt)
        for name, is_batch in self.keys.items():
            size = opt[name]
            if self.runs(opt | {name: size + 1 if is_batch else size * SPREAD}):
                high[name] = MAX_BATCH if is_batch else size * SPREAD
                smaller = max(1, size // SPREAD)
                low[name] = smaller if self.runs(opt | {name: smaller}) else size
        return {
            io.name: Range(self._shape(io, low), self._shape(io, opt), self._shape(io, high))
            for io in self.inputs
            if any(not isinstance(d, int) for d in io.shape or ())
        }

    def _shape(self, io: IO, sizes: Sizes) -> tuple[int, ...]:
        return tuple(
            d if isinstance(d, int) else sizes[_key(io.name, axis, d)] for axis, d in enumerate(io.shape or ())
        )


def _known(
    io: IO, fixed: Mapping[str, Sequence[int]], named: Mapping[int | str | None, int]
) -> list[int | str | None] | None:
    """The shape of an input, as far as fixed inputs tell it."""
    if io.name in fixed:
        return [*fixed[io.name]]
    return io.shape and [named.get(d, d) if isinstance(d, str) else d for d in io.shape]


def _compositions(total: int, limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to write `total` as a sum of numbers below their limits."""
    if not limits:
        if total == 0:
            yield ()
        return
    for first in range(min(total, limits[0] - 1) + 1):
        for rest in _compositions(total - first, limits[1:]):
            yield (first, *rest)
