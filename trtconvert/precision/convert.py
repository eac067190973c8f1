"""A model in another precision: what is measured of it once, and the conversion of it and of all models made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx import ModelProto

from trtconvert.errors import ConvertError
from trtconvert.precision.options import PrecisionOptions
from trtconvert.shapes import Profile


@dataclass(frozen=True)
class Kept:
    """A node that stays in float32, after the path of the nodes that hold its graph, and why."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True)
class Converted:
    """The model in its new precision, which onnxruntime runs too; the nodes that stayed in float32.

    calibration: method, samples and digest of what measured the values.
    """

    model: ModelProto
    kept: list[Kept] = field(default_factory=list)
    calibration: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Conversion:
    """Converts a model and what is made from it, such as the model fused, or cuts of it.

    source: the model before fusing, whose values are measured. folder: of its external data.
    """

    def __init__(self, options: PrecisionOptions, source: ModelProto, folder: Path, profile: Profile) -> None:
        self.options, self.source, self.folder, self.profile = options, source, folder, profile

    def apply(self, model: ModelProto, profile: Profile, interior: bool = False) -> Converted:
        """The model, or one made from it, converted; it is not changed itself. interior: its inputs and outputs are tensors
        inside the source, and have their types."""
        raise ConvertError(f"--precision {self.options.name} is not there yet")
