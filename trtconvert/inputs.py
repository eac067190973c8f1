"""Random inputs to run a model on, at the shapes of a profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trtconvert.manifest import IO
from trtconvert.model import numpy_dtype

Points: TypeAlias = "Mapping[str, Mapping[str, Sequence[int]]]"
"""Input name to what it has at "min", "opt" and "max", as in the manifest."""
NO_VALUES: Points = {}
Arrays: TypeAlias = "dict[str, NDArray[Any]]"
"""By the name of an input or output."""
Draw: TypeAlias = "Callable[[np.random.Generator, IO, tuple[int, ...]], NDArray[Any]]"
"""Makes the array of an input in a shape."""


@dataclass(frozen=True)
class Point:
    """A point of the profile. name: min, opt, max or static. given: the values of shape tensors."""

    name: str
    shapes: dict[str, tuple[int, ...]]
    given: dict[str, tuple[int, ...]]

    @property
    def label(self) -> str:
        """The shapes in the order of the inputs; shape tensors with their values."""
        shown = ["x".join(map(str, shape)) or "scalar" for name, shape in self.shapes.items() if name not in self.given]
        return " ".join([*shown, *(f"{name}={','.join(map(str, numbers))}" for name, numbers in self.given.items())])


def points(
    inputs: Sequence[IO], profile: Points, values: Points = NO_VALUES, without: Sequence[str] = ()
) -> Iterator[Point]:
    """The profile's min, opt and max, each only once; the static shapes without a profile.

    profile: shapes. values: of shape tensors. without: points that are left out.
    """
    seen = set()
    for name in ("min", "opt", "max") if profile or values else ("static",):
        if name in without:
            continue
        shapes = {}
        for io in inputs:
            shape = profile[io.name][name] if io.name in profile else io.shape or []
            shapes[io.name] = tuple(int(d) for d in shape if d is not None)
        given = {io.name: tuple(values[io.name][name]) for io in inputs if io.name in values}
        here = (tuple(shapes.values()), tuple(given.values()))
        if here not in seen:
            seen.add(here)
            yield Point(name, shapes, given)


def random_feeds(
    inputs: Sequence[IO], profile: Points, seed: int, values: Points = NO_VALUES, without: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    """Label and arrays at each of the `points`; shape tensors are fed their values."""
    random = np.random.default_rng(seed)
    for point in points(inputs, profile, values, without):
        yield point.label, arrays(random, inputs, point, lambda *of: random_array(of[0], of[1].dtype, of[2]))


def arrays(random: np.random.Generator, inputs: Sequence[IO], point: Point, draw: Draw) -> dict[str, NDArray[Any]]:
    """An array per input at one point."""
    return {
        io.name: np.array(point.given[io.name], io.dtype).reshape(point.shapes[io.name])
        if io.name in point.given
        else draw(random, io, point.shapes[io.name])
        for io in inputs
    }


def random_array(random: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Standard normal numbers; 0 or 1 for integers, which are valid ids, masks and lengths."""
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(np.bool_)
    if dtype.startswith(("int", "uint")):
        return random.integers(0, 2, shape).astype(dtype)
    return random.standard_normal(shape, dtype=np.float32).astype(numpy_dtype(dtype))
