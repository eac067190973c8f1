"""Products of integers that onnxruntime gets wrong: without a CPU's VNNI it adds pairs of products of uint8 and int8 in 16 bits.

They saturate. Source: onnxruntime's documentation of quantization, on U8S8 with AVX2 and AVX512.
"""

from __future__ import annotations

import contextlib
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, NodeProto

from trtconvert import graph as onnx_graph
from trtconvert.errors import ConvertError
from trtconvert.lowering.branches import Values
from trtconvert.lowering.calls import Calls
from trtconvert.model import STANDARD_DOMAINS, all_graphs, all_nodes, copy
from trtconvert.standard.integers import WRITERS
from trtconvert.standard.writer import Standard

NOTE = "onnxruntime's products of integers saturate on this CPU: they are computed as floats"
_PRODUCTS = ("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")
_PROBE = '<ir_version: 8, opset_import: ["": 17]> p (uint8[4,64] a, int8[64,16] b) => (int32[4,16] y) {y = MatMulInteger (a, b)}'


def without(model: ModelProto, folder: Path) -> ModelProto:
    """The model; where this CPU's products of integers saturate, a copy with exact ones of floats, as `build` writes them for
    TensorRT. folder: of external data."""
    if not concerns(model):
        return model
    made, calls = copy(model), Calls()
    values: Values = {}
    for graph, view in zip(list(all_graphs(made.graph)), onnx_graph.views(made, folder), strict=True):
        for node in filter(_is_product, graph.node):
            op = Standard(node, view, values, native=True)
            with contextlib.suppress(ConvertError):  # of sizes that are not known: it stays
                outputs = WRITERS[node.op_type](op, *op.inputs())
                if isinstance(outputs, tuple):
                    calls.call(node, op.body(outputs))
    return calls.inline(made)


def concerns(model: ModelProto) -> bool:
    """Whether the model has such products, and they saturate here."""
    return any(map(_is_product, all_nodes(model))) and here()


def _is_product(node: NodeProto) -> bool:
    return node.op_type in _PRODUCTS and node.domain in STANDARD_DOMAINS


@lru_cache(maxsize=1)
def here() -> bool:
    """Whether onnxruntime's products saturate on this CPU, by trying one."""
    session = onnxruntime.InferenceSession(
        onnx.parser.parse_model(_PROBE).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (sums,) = session.run(None, {"a": np.full((4, 64), 255, np.uint8), "b": np.full((64, 16), 127, np.int8)})
    return bool((sums != 64 * 255 * 127).any())
