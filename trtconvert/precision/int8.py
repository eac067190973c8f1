"""int8 by explicit Q and DQ: which tensors, on what data, and onnxruntime's static quantizer to write the nodes.

TensorRT's rules: int8 around 0, weights with a scale for each output channel, activations with one scale, biases and outputs
in float. Source: NVIDIA TensorRT documentation, "Working with Quantized Types", explicit quantization.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationMethod, QuantType
from onnxruntime.quantization.calibrate import TensorsData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert import registry
from trtconvert.bodies import Writing
from trtconvert.custom_ops import wishes
from trtconvert.errors import ConvertError
from trtconvert.fuse import fuse_model
from trtconvert.graph import GraphView
from trtconvert.model import numpy_dtype
from trtconvert.op import Op
from trtconvert.precision import int8_places, int8_prepare, int8_ranges, int8_sensitivity
from trtconvert.precision.int8_places import Places
from trtconvert.precision.int8_ranges import Samples

_OPTIONS = {
    "ActivationSymmetric": True,
    "WeightSymmetric": True,
    "QuantizeBias": False,
    "OpTypesToExcludeOutputQuantization": list(int8_places.PRODUCTS),
}


@dataclass(frozen=True)
class Quantized:
    """The model with Q and DQ; how many products are int8; the op of those that stayed float, and why."""

    model: ModelProto
    products: int
    left: dict[str, tuple[str, str]]
    samples: int

    @property
    def notes(self) -> list[str]:
        """What is worth telling."""
        told = [f"int8: {self.products} of {self.products + len(self.left)} products with weights"]
        shown = list(self.left.items())[:5]
        told += [f"{name} stays float: {reason}" for name, (_, reason) in shown]
        return told + ([f"and {len(self.left) - 5} more products stay float"] if len(self.left) > 5 else [])


def quantize(
    model: ModelProto,
    folder: Path,
    samples: Samples,
    method: str = "percentile",
    ops: Sequence[type[Op]] | None = None,
    keep: Collection[str] = (),
    before_gelu: bool = True,
    search: bool = False,
    halves: bool = False,
) -> Quantized:
    """A copy of the model with QuantizeLinear and DequantizeLinear around its products.

    Each quantized tensor has one Q, right behind what makes it, so that fusions which end in Q apply. samples: the calibration
    data. method: see int8_ranges.measure. ops: whose fusions keep their products as they are; none given means all but opt-in
    ones. keep: nodes that stay float, by name or op. before_gelu: see int8_places.find. search: leave float what
    int8_sensitivity finds. halves: the floats are to become float16. ConvertError says what is wrong with model or data, and if
    nothing can be quantized.
    """
    copy = int8_prepare.prepare(model, folder, halves)
    view = onnx_graph.views(copy, folder)[0]
    wanted = registry.by_pattern(()) if ops is None else ops
    places = int8_places.find(view, _fused(copy, folder, wanted) | _kept(keep, model, copy), before_gelu)
    if not places.products:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(places.left.items())[:3])
        raise ConvertError(
            f"nothing in the model can be int8: it has no Conv, ConvTranspose, Gemm or MatMul with constant weights"
            f"{f' that int8 takes ({reasons})' if reasons else ''}",
            fix="build without --precision int8",
        )
    tensors = [product.tensor for product in places.products] + list(places.readers)
    dtypes = {name: view.info(name).dtype for name in tensors}
    ranges = int8_ranges.measure(copy, folder, dtypes, samples, method)
    _leave_out(view, places, ranges.unusable)
    made = _written(copy, folder, places, ranges.largest)
    if search and (costly := int8_sensitivity.sensitive(made, folder, samples, list(ranges.largest))):
        _leave_out(view, places, costly)
        made = _written(copy, folder, places, ranges.largest)
    ops_of = {node.name: node.op_type for node in view.nodes}
    left = {name: (ops_of[name], reason) for name, reason in places.left.items()}
    return Quantized(made, len(places.products), left, ranges.samples)


def _written(model: ModelProto, folder: Path, places: Places, largest: Mapping[str, float]) -> ModelProto:
    """A copy of the model with Q and DQ at the places."""
    if not places.products:
        raise ConvertError("nothing in the model can be int8", where=next(iter(places.left.values()), None))
    copy = onnx_model.copy(model)
    _Writer(onnx_graph.views(copy, folder)[0], copy, places, largest).write()
    return copy


def _fused(model: ModelProto, folder: Path, ops: Sequence[type[Op]]) -> dict[str, str]:
    """The nodes that belong to fusions, and that they do."""
    fusions = fuse_model(onnx_model.copy(model), folder, ops).fusions
    return {name: f"it is part of {fusion.op}" for fusion in fusions for name in fusion.replaced}


def _kept(keep: Collection[str], model: ModelProto, prepared: ModelProto) -> dict[str, str]:
    """The nodes of the prepared model that are meant by name or op. ConvertError for what neither it nor the model has."""
    nodes = list(onnx_model.all_nodes(prepared))
    for name in keep:
        known = [*nodes, *onnx_model.all_nodes(model)]
        if not any(wishes.is_meant(name, node) for node in known):
            titles = [*map(wishes.default_name, known), *{node.op_type for node in known}]
            raise wishes.nobody("--keep-fp32", name, titles, "node or op")
    return {n.name: "it is to stay float" for n in nodes if any(wishes.is_meant(name, n) for name in keep)}


def _leave_out(view: GraphView, places: Places, unusable: Mapping[str, str]) -> None:
    """Products and other readers of tensors that have no range stay float, in place."""
    for product in list(places.products):
        node = view.nodes[product.index]
        if product.tensor in unusable:
            places.products.remove(product)
            places.left[node.name] = unusable[product.tensor]
    for name in unusable:
        places.readers.pop(name, None)


class _Writer:
    """Writes Q and DQ into the graph: onnxruntime's quantizer makes them for a graph of the products alone, so that nothing
    else is touched."""

    def __init__(self, view: GraphView, model: ModelProto, places: Places, largest: Mapping[str, float]) -> None:
        read = {product.tensor for product in places.products} | set(places.readers)
        self.view, self.model, self.places = view, model, places
        self.largest = {name: top for name, top in largest.items() if name in read}

    def write(self) -> None:
        """In place."""
        with _quiet():
            made = self._quantized(self._products())
        self._splice(made)

    def _products(self) -> ModelProto:
        """The products, each with a weight of its own."""
        graph = helper.make_graph([], "products", [], [])
        taken = Writing(self.model).tensors
        for product in self.places.products:
            node = NodeProto()
            node.CopyFrom(self.view.nodes[product.index])
            node.input[0] = product.tensor
            node.input[1] = onnx_model.unique(f"{node.name}_weight", taken)
            graph.node.append(node)
            graph.initializer.append(numpy_helper.from_array(product.weight, node.input[1]))
        for name in self.largest:
            dtype = onnx_model.elem_type(self.view.info(name).dtype)
            graph.value_info.append(helper.make_tensor_value_info(name, dtype, None))
        small = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.view.opset)])
        helper.set_model_props(small, {"onnx.infer": "onnxruntime.quant"})  # its types are there: nothing to infer
        return small

    def _quantized(self, small: ModelProto) -> ModelProto:
        whole = [n.input[1] for n, p in zip(small.graph.node, self.places.products, strict=True) if p.axis is None]
        ranges = {name: self._range(name) for name in self.largest}
        quantizer = QDQQuantizer(
            small,
            per_channel=True,
            reduce_range=False,
            weight_qType=QuantType.QInt8,
            activation_qType=QuantType.QInt8,
            tensors_range=TensorsData(CalibrationMethod.MinMax, ranges),
            nodes_to_quantize=[],
            nodes_to_exclude=[],
            op_types_to_quantize=list(int8_places.PRODUCTS),
            extra_options={**_OPTIONS, "TensorQuantOverrides": {name: [{"symmetric": True}] for name in whole}},
        )
        for name in self.places.readers:
            quantizer.quantize_activation_tensor(name)
        return quantizer.quantize_model()  # type: ignore[no-any-return]

    def _range(self, name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        dtype = numpy_dtype(self.view.info(name).dtype)
        top = np.array(self.largest[name], dtype)
        return -top, top

    def _splice(self, made: ModelProto) -> None:
        """The quantizer's nodes in the graph: Q and DQ of a tensor before the first that reads it."""
        products = {node.name: node for node in made.graph.node if node.op_type in int8_places.PRODUCTS}
        makers = {node.output[0]: node for node in made.graph.node if node.op_type.endswith("eLinear")}
        for tensor, readers in self.places.readers.items():
            dequantized = next(n for n in _behind(makers.values(), tensor))
            for index, slot in readers:
                self.view.nodes[index].input[slot] = dequantized
        for product in self.places.products:
            node = self.view.nodes[product.index]
            moved = node.input[0] if node.input[0] != product.tensor else ""
            node.CopyFrom(products[node.name])
            node.input[0] = moved or node.input[0]
        nodes, done = list[NodeProto](), set[str]()
        for node in self.view.nodes:
            for name in node.input:
                nodes += _pending(name, makers, done)
            nodes.append(node)
        kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del self.view.graph.node[:]
        self.view.graph.node.extend(kept)
        self.view.graph.initializer.extend(made.graph.initializer)
        int8_prepare.drop_unread(self.view.graph)


def _behind(makers: Any, tensor: str) -> Iterator[str]:
    """What the DequantizeLinear gives behind the tensor's QuantizeLinear."""
    (q,) = [n.output[0] for n in makers if n.op_type == "QuantizeLinear" and n.input[0] == tensor]
    return (n.output[0] for n in makers if n.op_type == "DequantizeLinear" and n.input[0] == q)


def _pending(name: str, makers: Mapping[str, NodeProto], done: set[str]) -> list[NodeProto]:
    """The Q and DQ nodes that are to come before a reader of the tensor, and have not come yet."""
    if name not in makers or name in done:
        return []
    done.add(name)
    return [*_pending(makers[name].input[0], makers, done), makers[name]]


@contextmanager
def _quiet() -> Iterator[None]:
    """onnxruntime's quantizer logs to the root logger."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
