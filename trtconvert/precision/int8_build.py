"""--precision int8 in a build: the model is quantized before anything is fused, and the result is what is converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx import ModelProto

from trtconvert import calibration
from trtconvert.feeds.contract import Contract
from trtconvert.manifest import model_io
from trtconvert.op import Op
from trtconvert.precision import int8
from trtconvert.precision.convert import Conversion, Converted
from trtconvert.precision.options import PrecisionOptions
from trtconvert.shapes import Profile, Range


class Int8(Conversion):
    """A model quantized before fusing: `source` is the model with Q and DQ, which needs no further conversion."""

    def __init__(
        self, options: PrecisionOptions, model: ModelProto, folder: Path, profile: Profile, ops: Sequence[type[Op]]
    ) -> None:
        points = {name: _points(given) for name, given in profile.ranges.items()}
        values = {name: _points(given) for name, given in profile.values.items()}
        contract = Contract(model_io(model, "input"), [o.name for o in model.graph.output], points, values)
        data = calibration.calibration(options.calib, model, folder, contract)
        made = int8.quantize(
            model, folder, lambda: data, options.calib_method, ops, options.keep_fp32, search=options.calib_search
        )
        super().__init__(options, made.model, folder, profile)
        self.notes = list(made.notes)
        if options.calib is None:
            self.notes.insert(
                0, "int8 scales were measured on random data, which is not what the model will see: give --calib"
            )
        self.calibration: dict[str, Any] = {
            "method": options.calib_method,
            "data": data.source,
            "samples": made.samples,
            "sha256": data.digest(),
            "random": options.calib is None,
        }

    def apply(self, model: ModelProto, profile: Profile, interior: bool = False) -> Converted:
        return Converted(model, calibration=self.calibration, notes=self.notes)


def _points(given: Range) -> Mapping[str, Sequence[int]]:
    return {"min": given.min, "opt": given.opt, "max": given.max}
