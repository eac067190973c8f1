"""--precision int8 in a build: the model is quantized before anything is fused, and the rest is cast afterwards if asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnx import ModelProto

from trtconvert import calibration
from trtconvert import model as onnx_model
from trtconvert.custom_ops.custom import Custom
from trtconvert.feeds.contract import of_model
from trtconvert.op import Op
from trtconvert.precision import int8, int8_prepare
from trtconvert.precision.convert import Conversion, Converted, Kept
from trtconvert.precision.options import PrecisionOptions
from trtconvert.shapes import Profile


class Int8(Conversion):
    """A model quantized before fusing: `source` is the model with Q and DQ, whose floats stay or become float16."""

    def __init__(
        self,
        options: PrecisionOptions,
        model: ModelProto,
        folder: Path,
        profile: Profile,
        custom: Custom,
        ops: Sequence[type[Op]],
    ) -> None:
        data = calibration.calibration(options.calib, model, folder, of_model(model, profile))
        # A float16 model too: its Q and DQ have float32 steps, so that Casts are needed
        self.casts = options.name == "int8+fp16" or int8_prepare.has_halves(model)
        self.made = int8.quantize(
            model,
            folder,
            lambda: data,
            options.calib_method,
            ops,
            options.keep_fp32,
            search=options.calib_search,
            halves=self.casts,
        )
        rest = dataclasses.replace(options, name="fp16" if self.casts else "fp32")
        super().__init__(rest, self.made.model, folder, profile, custom, (dict(feed) for feed in data))
        if not self.casts:
            self.kind = dataclasses.replace(self.kind, dtype="")  # whatever the model's is
        self.told = self.made.notes if self.casts else self.made.notes[:1]  # the others are what is kept
        if options.calib is None:
            self.told.insert(
                0, "int8 scales were measured on random data, unlike what the model will see: give --calib"
            )
        self.calibration: dict[str, Any] = {
            "method": options.calib_method,
            "data": data.source,
            "samples": self.made.samples,
            "digest": data.digest(),
            "random": options.calib is None,
        }

    def apply(self, model: ModelProto, profile: Profile, interior: bool = False) -> Converted:
        """See Conversion. For int8 alone the model as it is: it has its Q and DQ."""
        if not self.casts:
            kept = [Kept(name, op, reason) for name, (op, reason) in self.made.left.items()]
            return Converted(onnx_model.copy(model), kept, self.calibration, self.told)
        cast = super().apply(model, profile, interior)
        return dataclasses.replace(cast, calibration=self.calibration, notes=[*self.told, *cast.notes])
