"""Products of integers that onnxruntime gets wrong: without a CPU's VNNI it adds pairs of products of uint8 and int8 in 16 bits.

They saturate. Source: onnxruntime's documentation of quantization, on U8S8 with AVX2 and AVX512.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto

from trtconvert import graph as onnx_graph
from trtconvert.errors import ConvertError
from trtconvert.lowering import contrib_quantized
from trtconvert.lowering.branches import Values
from trtconvert.lowering.calls import Calls
from trtconvert.model import ORT_DOMAIN, STANDARD_DOMAINS, all_graphs, all_nodes, copy
from trtconvert.standard import integers
from trtconvert.standard.writer import Standard, Written

NOTE = "onnxruntime's products of integers saturate on this CPU: they are computed as floats"
_Products = dict[tuple[str, str], Callable[..., Written]]
_PRODUCTS: _Products = {
    (domain, op): integers.WRITERS[op]
    for domain in STANDARD_DOMAINS
    for op in ("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")
}
_ORT_DOMAIN_PRODUCTS: _Products = {
    (ORT_DOMAIN, op): contrib_quantized.WRITERS[op] for op in ("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm")
}
_PROBE = '<ir_version: 8, opset_import: ["": 17]> p (uint8[4,64] a, int8[64,16] b) => (int32[4,16] y) {y = MatMulInteger (a, b)}'


def without(model: ModelProto, folder: Path) -> ModelProto:
    """The model; where this CPU's products of integers saturate, a copy with exact ones of floats, as `build` writes them for
    TensorRT. folder: of external data."""
    if not concerns(model):
        return model
    made = _written(copy(model), folder, _ORT_DOMAIN_PRODUCTS)
    return _written(made, folder, _PRODUCTS)


def _written(model: ModelProto, folder: Path, products: _Products) -> ModelProto:
    calls = Calls()
    values: Values = {}
    for graph, view in zip(list(all_graphs(model.graph)), onnx_graph.views(model, folder), strict=True):
        for node in graph.node:
            writer = products.get((node.domain, node.op_type))
            if writer is None:
                continue
            op = Standard(node, view, values, native=True)
            with contextlib.suppress(ConvertError):  # of sizes that are not known: it stays
                outputs = writer(op, *op.inputs())
                if isinstance(outputs, tuple):
                    calls.call(node, op.body(outputs))
    return calls.inline(model)


def concerns(model: ModelProto) -> bool:
    """Whether the model has such products, and they saturate here."""
    products = _PRODUCTS | _ORT_DOMAIN_PRODUCTS
    return any((node.domain, node.op_type) in products for node in all_nodes(model)) and here()


@lru_cache(maxsize=1)
def here() -> bool:
    """Whether onnxruntime's products saturate on this CPU, by trying one."""
    session = onnxruntime.InferenceSession(
        onnx.parser.parse_model(_PROBE).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (sums,) = session.run(None, {"a": np.full((4, 64), 255, np.uint8), "b": np.full((64, 16), 127, np.int8)})
    return bool((sums != 64 * 255 * 127).any())
