"""What `trtconvert build` can be told of precision."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PRECISIONS = ("fp16", "bf16", "fp32", "int8", "int8+fp16")
CALIBRATORS = ("percentile", "entropy", "minmax")
CASTERS = ("trtconvert", "onnxruntime", "modelopt")
KEEP = "keep"


@dataclass(frozen=True)
class PrecisionOptions:
    """name: "fp16", "bf16" or "fp32"; "int8", which leaves the rest of the model as it is, or "int8+fp16"; "" for the model as
    it is. io: dtype of the model's float inputs and outputs, of those names too, or "keep". keep_fp32: nodes that stay in
    float32, by name or op. caster: who converts. calib: folder or file of samples that int8's scales, or what float16 cannot
    hold, are measured on, random ones if None; calib_method: how the scales follow, see `int8_ranges.measure`; calib_search:
    leave float what int8 costs most, see `int8_sensitivity`.
    """

    name: str = ""
    io: str = KEEP
    keep_fp32: tuple[str, ...] = ()
    caster: str = CASTERS[0]
    calib: Path | None = None
    calib_method: str = CALIBRATORS[0]
    calib_search: bool = False
