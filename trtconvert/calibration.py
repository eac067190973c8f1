"""Calibration data: samples of the model's inputs on which int8's scales are measured."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from trtconvert.errors import ConvertError
from trtconvert.feeds import files
from trtconvert.feeds.contract import Contract
from trtconvert.feeds.draw import draw
from trtconvert.feeds.roles import Role, of_inputs
from trtconvert.inputs import Arrays, Point, arrays, points
from trtconvert.manifest import IO

RANDOM = 16  # samples, where no data is given
_SEED = 0


@dataclass(frozen=True)
class Calibration:
    """Samples that can be gone through any number of times, and always come in the same order.

    path: a folder or file, see `feeds.files`; None for random data by role at the profile's opt. An array may hold
    many samples, along one more axis in front or along its first. roles: of random inputs.
    """

    contract: Contract
    path: Path | None = None
    point: Point | None = None
    roles: Mapping[str, Role] | None = None

    def __iter__(self) -> Iterator[Arrays]:
        if self.path is None:
            yield from self._random()
            return
        loose = Contract([IO(io.name, io.dtype, None) for io in self.contract.inputs], baked=self.contract.baked)
        for read in files.batches(self.path, loose):
            batch = read()
            where = f"{batch.label} of {self.path}" if self.path.is_dir() else str(self.path)
            for sample in self._split(batch.arrays, where):
                self.contract.check(sample, where)
                yield sample

    def _random(self) -> Iterator[Arrays]:
        assert self.point is not None
        assert self.roles is not None
        known = self.roles

        def one(random: np.random.Generator, io: IO, shape: tuple[int, ...]) -> NDArray[Any]:
            return draw(random, known[io.name], io.dtype, shape)

        for sample in range(RANDOM):
            yield arrays(np.random.default_rng([_SEED, sample]), self.contract.inputs, self.point, one)

    def _split(self, given: Arrays, where: str) -> Iterator[Arrays]:
        """The arrays as samples: each input in as many pieces as the others, or whole in all of them."""
        pieces = {io.name: self._pieces(io, given[io.name]) for io in self.contract.inputs}
        counts = {name: len(found) for name, found in pieces.items() if len(found) > 1}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{count} in {name!r}" for name, count in counts.items())
            raise ConvertError(f"the inputs have different numbers of samples: {told}", where=where)
        for index in range(max(counts.values(), default=1)):
            yield {name: found[index if len(found) > 1 else 0] for name, found in pieces.items()}

    def _pieces(self, io: IO, array: NDArray[Any]) -> list[NDArray[Any]]:
        """The samples of one input: along one more axis than it has, or along its first where that is longer than it takes."""
        if io.shape is None or io.name in self.contract.values:
            return [array]
        if array.ndim == len(io.shape) + 1:
            return list(array)
        batch, most = self._batch(io)
        if array.ndim != len(io.shape) or not batch or len(array) <= most:
            return [array]
        return [array[start : start + batch] for start in range(0, len(array), batch)]

    def _batch(self, io: IO) -> tuple[int, int]:
        """How long the first axis is to be, and how long it may be; 0 where that is not known."""
        first = (io.shape or [0])[0]
        if isinstance(first, int):
            return first, first
        given = self.contract.profile.get(io.name)
        return (int(given["opt"][0]), int(given["max"][0])) if given else (0, 0)

    @property
    def source(self) -> str:
        """What the data is, for people."""
        return str(self.path) if self.path is not None else f"{RANDOM} random samples (seed {_SEED})"

    def digest(self) -> str:
        """sha256 of all samples: names, dtypes, shapes and bytes."""
        made = hashlib.sha256()
        for sample in self:
            for name, array in sorted(sample.items()):
                made.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
                made.update(np.ascontiguousarray(array).tobytes())
        return made.hexdigest()


def calibration(path: Path | None, model: ModelProto, folder: Path, contract: Contract) -> Calibration:
    """The data at `path`, or random data for the model. folder: of the model's external data."""
    if path is not None:
        return Calibration(contract, path)
    places = {place.name: place for place in points(contract.inputs, contract.profile, contract.values, contract.unfit)}
    place = places.get("opt") or next(iter(places.values()))
    return Calibration(contract, None, place, of_inputs(model, folder, contract.inputs, place.shapes))
