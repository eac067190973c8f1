"""Element types that TensorRT does not have, or has only in some places."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

from trtconvert import model as onnx_model
from trtconvert.diagnosis.faults import Fault
from trtconvert.graph import GraphView

# As TensorRT-RTX 1.7.1 takes them. float64 is read as float32, which notices tell.
_TAKEN = frozenset(
    (
        TensorProto.UNDEFINED, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE,
        TensorProto.INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL,
    )
)  # fmt: skip
_QUANTIZED = frozenset(
    getattr(TensorProto, name)
    for name in ("FLOAT8E4M3FN", "INT4", "FLOAT4E2M1", "FLOAT8E8M0")
    if hasattr(TensorProto, name)
)
# Where TensorRT takes a quantized tensor as it is.
_QUANTIZED_READERS = frozenset(("DequantizeLinear", "Concat", "Reshape", "Transpose", "Shape", "Identity"))
_INSTEAD = {
    "int16": "int32", "uint16": "int32", "uint32": "int64", "uint64": "int64", "string": "numbers", "int2": "int8",
    "uint2": "int8", "uint4": "int8",
}  # fmt: skip


def name(elem_type: int) -> str:
    """ONNX's name of an element type, in lower case; numpy's for float32 and float64."""
    text = {1: "float32", 11: "float64"}.get(elem_type)
    return text or str(TensorProto.DataType.Name(elem_type)).lower()


def faults(model: ModelProto, views: list[GraphView]) -> Iterator[Fault]:
    """Inputs, outputs, constants and nodes of a type that TensorRT lacks. model: every node with a name of its own."""
    for side, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            yield from _io(side, value, model.graph)
    outputs = {value.name for value in model.graph.output}
    for graph, view in zip(onnx_model.all_graphs(model.graph), views, strict=True):
        made = {v.name: v.type.tensor_type.elem_type for v in graph.value_info}
        constants = {t.name: t.data_type for t in graph.initializer if t.data_type not in _TAKEN | _QUANTIZED}
        for node in graph.node:
            found = {made.get(n, 0) for n in node.output if n not in outputs} - _TAKEN - _QUANTIZED
            found |= {constants[n] for n in node.input if n in constants}
            if node.op_type in ("Cast", "Constant"):
                values_ = [
                    a.i if a.name == "to" else a.t.data_type for a in node.attribute if a.name in ("to", "value")
                ]
                found |= set(values_) - _TAKEN - _QUANTIZED
            for elem_type in sorted(found)[:1]:
                kind = name(elem_type)
                instead = _INSTEAD.get(kind, "float32")
                yield Fault(
                    node.name,
                    node.op_type,
                    f"it works with {kind}, which TensorRT lacks",
                    f"use {instead} instead of {kind}",
                    view.path + node.name,
                )


def replaced(model: ModelProto) -> ModelProto:
    """A copy with int32 in the place of what TensorRT lacks, to ask the parser about all the rest: it stops at the first such
    tensor."""
    copy = onnx_model.copy(model)
    for value in (*copy.graph.input, *copy.graph.output):
        kind = value.type.tensor_type
        if value.type.WhichOneof("value") != "tensor_type" or kind.elem_type not in _TAKEN | _QUANTIZED:
            kind.elem_type = TensorProto.INT32
    for graph in onnx_model.all_graphs(copy.graph):
        for tensor in [t for t in graph.initializer if t.data_type not in _TAKEN | _QUANTIZED]:
            copy.graph.input.append(helper.make_tensor_value_info(tensor.name, TensorProto.INT32, list(tensor.dims)))
            graph.initializer.remove(tensor)
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Cast" and attribute.name == "to" and attribute.i not in _TAKEN | _QUANTIZED:
                    attribute.i = TensorProto.INT32
    return copy


def _io(side: str, value: ValueInfoProto, graph: GraphProto) -> Iterator[Fault]:
    kind = value.type.WhichOneof("value")
    if kind is not None and kind != "tensor_type":
        told = kind.removesuffix("_type")
        yield Fault(value.name, "", f"this {side} is a {told}, TensorRT has tensors only", "export it as a tensor")
        return
    elem_type = value.type.tensor_type.elem_type
    if elem_type in _QUANTIZED:
        readers = [n for n in graph.node if value.name in n.input and n.op_type not in _QUANTIZED_READERS]
        if readers or side == "output":
            by = f"; {readers[0].op_type} ({readers[0].name}) reads it" if readers else ""
            yield Fault(
                value.name,
                "",
                f"this {side} is {name(elem_type)}, which TensorRT takes only into DequantizeLinear{by}",
                f"let a DequantizeLinear read it, or make the {side} float16",
            )
    elif elem_type not in _TAKEN:
        kind_ = name(elem_type)
        yield Fault(
            value.name,
            "",
            f"this {side} is {kind_}, which TensorRT lacks",
            f"make it {_INSTEAD.get(kind_, 'float32')}, and cast outside the engine",
        )
