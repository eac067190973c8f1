"""What QuantizeLinear and DequantizeLinear nodes mean: int8 around 0 with one scale for the tensor, or something else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from trtconvert.graph import GraphView
from trtconvert.model import ORT_DOMAIN, STANDARD_DOMAINS, all_graphs, attribute_values

DOMAINS = (
    *STANDARD_DOMAINS,
    ORT_DOMAIN,
)  # onnxruntime's quantizer writes its own ones for 16-bit integers, or when asked to


def scale_of(view: GraphView, node: NodeProto) -> float | str:
    """The scale of a QuantizeLinear or DequantizeLinear node to or from int8, symmetric, one scale for the tensor; else the
    sentence why it is not that.

    `saturate` and `precision` do not matter: the one is for float8, the other says how exact the division is at the least.
    """
    where = f"{node.op_type} {node.name}".rstrip()
    scale = view.constant(node.input[1])
    if scale is None:
        return f"{where}: its scale {node.input[1]} is not a constant"
    if scale.size != 1 or scale.ndim > 1 or view.attributes(node).get("block_size", 0):
        return f"{where}: its scale {node.input[1]} has shape {list(scale.shape)}, not one number for the tensor"
    reason = _not_int8(view, node)
    return float(scale.reshape(-1)[0]) if reason is None else f"{where}: {reason}"


def _not_int8(view: GraphView, node: NodeProto) -> str | None:
    """Why the integers are not int8 around 0; None if they are."""
    name = node.input[2] if len(node.input) > 2 else ""
    if name:
        zero = view.constant(name)
        if zero is None:
            return f"its zero point {name} is not a constant"
        if zero.dtype != np.int8:
            return f"its zero point {name} is {zero.dtype.name}, not int8"
        return f"its zero point {name} is {zero.reshape(-1)[0]}, not 0" if zero.any() else None
    if node.op_type == "DequantizeLinear":
        dtype = view.info(node.input[0]).dtype
        return None if dtype == "int8" else f"{node.input[0]} is {dtype or 'of unknown dtype'}, not int8"
    made = view.attributes(node).get("output_dtype", 0)
    return None if made == TensorProto.INT8 else "without a zero point its result is not int8"


def dequantize_biases(model: ModelProto, folder: Path) -> int:
    """Make floats of constants that are int32 and dequantized, in place; returns how many there were.

    onnxruntime's quantizer writes biases so; TensorRT's DequantizeLinear takes 8 bits and fewer.
    """
    count = 0
    for graph in all_graphs(model.graph):
        held = {t.name: t for t in graph.initializer}
        outputs = {o.name for o in graph.output}
        gone = [n for n in graph.node if _is_bias(n, held) and n.output[0] not in outputs]
        for node in gone:
            x, scale = (numpy_helper.to_array(held[name], str(folder)) for name in node.input[:2])
            axis = attribute_values(node).get("axis", 1) if x.ndim > 1 else 0
            along = scale.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]) if scale.size > 1 else scale
            value = (x.astype(np.float32) * along).astype(scale.dtype)
            graph.initializer.append(numpy_helper.from_array(value.reshape(x.shape), node.output[0]))
            graph.node.remove(node)
        count += len(gone)
    return count


def _is_bias(node: NodeProto, held: Mapping[str, TensorProto]) -> bool:
    """Whether the node dequantizes an int32 constant by a constant scale: by ONNX' rules around 0."""
    if node.op_type != "DequantizeLinear" or node.domain not in STANDARD_DOMAINS or node.input[1] not in held:
        return False
    return node.input[0] in held and held[node.input[0]].data_type == TensorProto.INT32
