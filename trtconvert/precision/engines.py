"""What TensorRT cannot have in a float type although ONNX can."""

from __future__ import annotations

from collections.abc import Mapping

_LACKING = {
    "float16": (),
    "bfloat16": ("ConvTranspose",),
}  # seen: TensorRT-RTX 1.7.1, with ONNX's node tests


def lacking(dtype: str) -> Mapping[str, str]:
    """Op to the sentence that it stays in float32 for."""
    return {op: f"TensorRT has no {op} in {dtype}" for op in _LACKING.get(dtype, ())}
