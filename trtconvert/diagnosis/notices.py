"""What TensorRT takes in another way than the model says it, and why that is no fault."""

from __future__ import annotations

import onnx
from onnx import ModelProto, TensorProto

from trtconvert import model as onnx_model
from trtconvert.backend import Backend

# The newest opset that NVIDIA documents for each parser, by the versions that have it. Parsers do not check it themselves.
_NEWEST_OPSET = {"rtx": ((1, 7), 24), "tensorrt": ((11, 4), 24)}
_OLDEST_OPSET = 9


def notices(model: ModelProto, backend: Backend) -> list[str]:
    """A line on each thing of that kind. model: as it was given."""
    return [*_narrowed(model), *_defaults(model), *_opsets(model, backend)]


def _narrowed(model: ModelProto) -> list[str]:
    found = [
        (side, value.name)
        for side, values in (("input", model.graph.input), ("output", model.graph.output))
        for value in values
        if value.type.tensor_type.elem_type == TensorProto.DOUBLE
    ]
    return [
        f"{side} {name!r} is float64 in the model, float32 in the engine: TensorRT has no float64"
        for side, name in found
    ]


def _defaults(model: ModelProto) -> list[str]:
    """From IR 4 on an input that is also an initializer may be given by the caller; before, all weights were written so."""
    if model.ir_version < 4:
        return []
    inputs = {value.name for value in model.graph.input}
    names = [tensor.name for tensor in model.graph.initializer if tensor.name in inputs]
    if not names:
        return []
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
    return [
        f"{shown}: inputs with a default value (an initializer) are built in as constants, the engine has no such input"
    ]


def _opsets(model: ModelProto, backend: Backend) -> list[str]:
    opset = onnx_model.opset(model)
    if opset < _OLDEST_OPSET:
        return [f"the model has opset {opset}; {backend.title} is documented from opset {_OLDEST_OPSET} on"]
    (since, newest) = _NEWEST_OPSET[backend.name]
    version = tuple(int(part) for part in backend.version.split(".")[:2] if part.isdigit())
    if opset <= newest or version > since:
        return []
    kinds = {node.op_type for node in onnx_model.all_nodes(model) if node.domain in onnx_model.STANDARD_DOMAINS}
    changed = [
        f"{kind} (version {schema.since_version})"
        for kind in sorted(kinds)
        if onnx.defs.has(kind, opset, "") and (schema := onnx.defs.get_schema(kind, opset, "")).since_version > newest
    ]
    if not changed:
        return []
    return [
        f"opset {opset}: {backend.title} is documented up to opset {newest}, and reads newer versions of an op as that: "
        f"{', '.join(changed)}"
    ]
