"""Inputs to run a model on: random ones at the shapes of a profile, or those of an .npz file."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trtconvert.errors import ConvertError
from trtconvert.manifest import IO
from trtconvert.model import numpy_dtype

Points: TypeAlias = "Mapping[str, Mapping[str, Sequence[int]]]"
"""Input name to what it has at "min", "opt" and "max", as in the manifest."""
NO_VALUES: Points = {}


def random_feeds(
    inputs: Sequence[IO], profile: Points, seed: int, values: Points = NO_VALUES, without: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    """Label and arrays at the profile's min, opt and max, each only once; at the static shapes without a profile.

    profile: shapes. values: of shape tensors, which are fed as they are. without: points that are left out.
    """
    random = np.random.default_rng(seed)
    seen = set()
    for point in ("min", "opt", "max") if profile or values else ("static",):
        if point in without:
            continue
        shapes = {}
        for io in inputs:
            shape = profile[io.name][point] if io.name in profile else io.shape or []
            shapes[io.name] = tuple(int(d) for d in shape if d is not None)
        given = {io.name: tuple(values[io.name][point]) for io in inputs if io.name in values}
        here = (tuple(shapes.values()), tuple(given.values()))
        if here in seen:
            continue
        seen.add(here)
        shown = ["x".join(map(str, shape)) or "scalar" for name, shape in shapes.items() if name not in given]
        shown += [f"{name}={','.join(map(str, numbers))}" for name, numbers in given.items()]
        yield (
            " ".join(shown),
            {
                io.name: np.array(given[io.name], io.dtype).reshape(shapes[io.name])
                if io.name in given
                else random_array(random, io.dtype, shapes[io.name])
                for io in inputs
            },
        )


def random_array(random: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Standard normal numbers; 0 or 1 for integers, which are valid ids, masks and lengths."""
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(np.bool_)
    if dtype.startswith(("int", "uint")):
        return random.integers(0, 2, shape).astype(dtype)
    return random.standard_normal(shape, dtype=np.float32).astype(numpy_dtype(dtype))


def from_file(path: Path, inputs: Sequence[IO], values: Points = NO_VALUES) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file. ConvertError unless they are the model's inputs, of its dtypes and shapes, and those of
    shape tensors within the values that the engine was built for."""
    if not path.is_file():
        raise ConvertError("input file not found", where=str(path))
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            arrays = {name: data[name] for name in data.files}
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise ConvertError(f"not an .npz file: {error}", where=str(path), fix="write it with numpy.savez") from error
    expected = {io.name: io.dtype for io in inputs}
    if set(arrays) != set(expected):
        raise ConvertError(
            f"the file has arrays {sorted(arrays)}, the model's inputs are {sorted(expected)}", where=str(path)
        )
    for name, array in arrays.items():
        if array.dtype.name != expected[name]:
            raise ConvertError(f"array {name!r} is {array.dtype}, the model takes {expected[name]}", where=str(path))
    for io in inputs:
        got, declared = arrays[io.name].shape, io.shape
        if declared is None:
            continue
        if len(got) != len(declared) or any(isinstance(d, int) and d != g for d, g in zip(declared, got, strict=True)):
            raise ConvertError(f"array {io.name!r} has shape {list(got)}, the model takes {declared}", where=str(path))
    for name, allowed in values.items():
        numbers = arrays[name].ravel()
        if ((numbers < np.array(allowed["min"])) | (numbers > np.array(allowed["max"]))).any():
            raise ConvertError(
                f"array {name!r} is {numbers.tolist()}, the engine takes values from {allowed['min']} to {allowed['max']}",
                where=str(path),
                fix="give values within the range, or build with a wider --value",
            )
    return arrays
