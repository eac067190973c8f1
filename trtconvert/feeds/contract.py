"""What an engine takes, and batches checked against it: names, dtypes, shapes, and the values of shape tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from trtconvert import shapes
from trtconvert.errors import ConvertError
from trtconvert.inputs import Arrays, Points
from trtconvert.manifest import IO, Manifest, model_io
from trtconvert.shapes import Profile


@dataclass(frozen=True)
class Batch:
    """Arrays by input. label: shapes, file or number of the call. sample: number among the batches of that label, from 0.
    expected: outputs by name, where the data itself says what the model should give."""

    label: str
    arrays: Arrays
    sample: int = 0
    expected: Arrays = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The label, with the number from the second sample on."""
        return f"{self.label} #{self.sample + 1}" if self.sample else self.label


@dataclass(frozen=True)
class Contract:
    """Inputs of the model as it was built, without baked ones, and names of its outputs. profile: shapes at min, opt and max.
    values: those of shape tensors. unfit: points at which the sizes do not go together. baked: inputs that are constants now.
    """

    inputs: Sequence[IO]
    outputs: Sequence[str] = ()
    profile: Points = field(default_factory=dict)
    values: Points = field(default_factory=dict)
    unfit: Sequence[str] = ()
    baked: Sequence[str] = ()

    def check(self, arrays: Mapping[str, NDArray[Any]], where: str) -> None:
        """ConvertError unless there is an array for each input, of its dtype, in a shape and with values that the engine takes.

        where: file, or place in a script.
        """
        expected = {io.name for io in self.inputs}
        if missing := sorted(expected - set(arrays)):
            raise ConvertError(
                f"no array for input {', '.join(map(repr, missing))}; there are {', '.join(map(repr, arrays)) or 'none'}",
                where=where,
                fix=f"give one for each input of the model: {', '.join(sorted(expected))}",
            )
        if unknown := sorted(set(arrays) - expected):
            baked = f"; {unknown[0]!r} was made a constant by --bake" if unknown[0] in self.baked else ""
            raise ConvertError(
                f"array {', '.join(map(repr, unknown))} is no input of the model{baked}",
                where=where,
                fix=f"inputs: {', '.join(sorted(expected))}",
            )
        for io in self.inputs:
            self._check_one(io, arrays[io.name], where)

    def _check_one(self, io: IO, array: NDArray[Any], where: str) -> None:
        if array.dtype.name != io.dtype:
            raise ConvertError(
                f"array {io.name!r} is {array.dtype.name}, the model takes {io.dtype}",
                where=where,
                fix=f"convert it: array.astype({io.dtype!r})",
            )
        got, declared = list(array.shape), io.shape
        if declared is not None and (
            len(got) != len(declared) or any(isinstance(d, int) and d != g for d, g in zip(declared, got, strict=True))
        ):
            shown = "[" + ", ".join("?" if d is None else str(d) for d in declared) + "]"
            raise ConvertError(f"array {io.name!r} has shape {got}, the model takes {shown}", where=where)
        if io.name in self.profile:
            low, high = (list(self.profile[io.name][point]) for point in ("min", "max"))
            if len(low) != len(got) or any(not a <= g <= b for a, g, b in zip(low, got, high, strict=True)):
                raise ConvertError(
                    f"array {io.name!r} has shape {got}, the engine takes {low} to {high}",
                    where=where,
                    fix="give a shape within the range, or build with a wider --shape",
                )
        if io.name in self.values:
            allowed, numbers = self.values[io.name], array.ravel()
            if ((numbers < np.array(allowed["min"])) | (numbers > np.array(allowed["max"]))).any():
                raise ConvertError(
                    f"array {io.name!r} is {numbers.tolist()}, the engine takes values from {allowed['min']} to "
                    f"{allowed['max']}",
                    where=where,
                    fix="give values within the range, or build with a wider --value",
                )


def of_model(model: ModelProto, profile: Profile) -> Contract:
    """Of a model that is being built for that profile."""
    outputs = [output.name for output in model.graph.output]
    return Contract(model_io(model, "input"), outputs, shapes.points(profile.ranges), shapes.points(profile.values))


def of_plan(described: Manifest) -> Contract:
    """What the manifest says."""
    return Contract(
        described.onnx_inputs,
        [io.name for io in described.onnx_outputs],
        described.profile,
        described.values,
        described.unfit,
        tuple(described.baked),
    )
