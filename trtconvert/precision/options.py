"""What `trtconvert build` can be told of precision."""

from __future__ import annotations

from dataclasses import dataclass

PRECISIONS = ("fp16", "bf16", "fp32")
CASTERS = ("trtconvert", "onnxruntime", "modelopt")
KEEP = "keep"


@dataclass(frozen=True)
class PrecisionOptions:
    """name: "fp16", "bf16" or "fp32", "" for the model as it is. io: dtype of the model's float inputs and outputs, of those
    names too, or "keep". keep_fp32: nodes that stay in float32, by name or op. caster: who converts.
    """

    name: str = ""
    io: str = KEEP
    keep_fp32: tuple[str, ...] = ()
    caster: str = CASTERS[0]
