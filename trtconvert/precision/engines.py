"""What TensorRT cannot have in a float type although ONNX can. Seen: TensorRT-RTX 1.7.1, `python -m tests.suites.precision`."""

from __future__ import annotations

from onnx import NodeProto

from trtconvert.model import attribute_values

_LACKING = {
    "float16": frozenset(("MeanVarianceNormalization", "TensorScatter")),
    "bfloat16": frozenset(
        (
            "Col2Im",
            "ConvTranspose",
            "GRU",
            "HardSwish",
            "LpNormalization",
            "MeanVarianceNormalization",
            "Mish",
            "TensorScatter",
        )
    ),
}
_LENGTHS = 4  # the input of an LSTM


def lacking(node: NodeProto, dtype: str) -> str | None:
    """The sentence for which the standard op stays in float32; None if it need not."""
    if node.op_type in _LACKING.get(dtype, ()):
        return f"TensorRT has no {node.op_type} in {dtype}"
    attributes = attribute_values(node)
    if node.op_type.startswith("Scatter") and attributes.get("reduction", "none") != "none":
        return f"adds up in place, which onnxruntime has not in {dtype}"
    if node.op_type == "LSTM" and len(node.input) > _LENGTHS and node.input[_LENGTHS]:
        return f"TensorRT has no LSTM with lengths in {dtype}"
    return None
