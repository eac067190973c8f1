"""ONNX's shape inference, kept from what ends the process: a Slice of a tensor of negative size aborts it (onnx 1.23).

Negative sizes come from declarations, and from ops such as Conv with a kernel larger than its input. So Slices behind such ops
are kept out at first; where no size is negative without them they are let in, up to the next such op, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from trtconvert.diagnosis.structure import graphs, inside

_STANDARD = ("", "ai.onnx")
_STAGES = 64  # after which the Slices that are left stay out
_UNKNOWN = "trtconvert.unknown"
_ENDS = ("Shape", "Size")  # ops whose output's size does not hang on the sizes of the input
_WINDOWS = frozenset(
    (
        *("Conv", "ConvInteger", "QLinearConv", "ConvTranspose", "DeformConv", "Col2Im", "STFT"),
        *("MaxPool", "AveragePool", "LpPool", "MaxUnpool"),
    )
)
_SIZED = frozenset(  # by a number that an input gives
    (
        "Pad",
        "Expand",
        "Tile",
        "ConstantOfShape",
        "Resize",
        "Upsample",
        "Split",
        "TopK",
        "OneHot",
        "CenterCropPad",
        "DFT",
    )
)
_SIZES = ("pads", "shape", "split", "repeats", "scales", "output_shape", "sizes")  # attributes
_FEW = 64  # elements; more are no sizes


def infer(model: ModelProto, **options: Any) -> ModelProto:
    """onnx.shape_inference.infer_shapes. Where a size is negative its Slices have no shape, and with strict_mode InferenceError
    says where; other errors are ONNX's. Negative sizes that are declared say nothing, as exporters mean it who write -1.

    options: of infer_shapes.
    """
    ops = {node.op_type for node in _all_nodes(model)}.union(*({n.op_type for n in _nodes(f)} for f in model.functions))
    if "Slice" not in ops:
        return onnx.shape_inference.infer_shapes(model, **options)
    if next(_negative(model), None) is not None:
        model = _cleared(model)
        if (left := next(_negative(model), None)) is not None:
            return _refused(model, left, options)
    kinds = _Kinds(model)
    unsafe = kinds.slices(kinds.behind(kinds.makes))
    for _ in range(_STAGES):
        if not unsafe:
            return onnx.shape_inference.infer_shapes(model, **options)
        inferred = _without(unsafe, model, {**options, "strict_mode": False})
        found = next(_negative(inferred), None)
        if found is not None:
            return _refused(inferred, found, options)
        hidden = kinds.behind(lambda node, kept_out=unsafe: node.output[0] in kept_out)  # type: ignore[misc]
        rest = kinds.slices(kinds.behind(lambda node, on=hidden: kinds.makes(node) and not on.isdisjoint(node.input)))  # type: ignore[misc]
        if rest == unsafe:
            break
        unsafe = rest
    return _without(unsafe, model, options)


def _cleared(model: ModelProto) -> ModelProto:
    """A copy without negative sizes of what is declared."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for graph in graphs(copy.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_value < 0:
                    dim.Clear()
    return copy


def _refused(model: ModelProto, found: tuple[str, list[int]], options: dict[str, Any]) -> ModelProto:
    if not options.get("strict_mode"):
        return model
    name, sizes = found
    maker = next((n for n in _all_nodes(model) if name in n.output), None)
    place = f"(op_type:{maker.op_type}, node name: {maker.name}): " if maker else ""
    raise onnx.shape_inference.InferenceError(
        f"[ShapeInferenceError] {place}tensor {name} would have the negative size {sizes}"
    )


def _negative(model: ModelProto) -> Iterator[tuple[str, list[int]]]:
    """Tensors of negative size, by what is declared or was inferred."""
    for graph in graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            sizes = [d.dim_value for d in value.type.tensor_type.shape.dim]
            if any(size < 0 for size in sizes):
                yield value.name, sizes
        for tensor in graph.initializer:
            if any(size < 0 for size in tensor.dims):
                yield tensor.name, list(tensor.dims)


def _all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    return (node for graph in graphs(model.graph) for node in graph.node)


class _Kinds:
    """Which nodes of a model may make a negative size and which must not meet one, functions called included."""

    def __init__(self, model: ModelProto) -> None:
        self.graph = model.graph
        self.constants = {t.name: t for g in graphs(model.graph) for t in g.initializer}
        for node in _all_nodes(model):
            if node.op_type == "Constant":
                self.constants |= {name: a.t for name in node.output for a in node.attribute if a.name == "value"}
        self.functions = {(f.domain, f.name): f for f in model.functions}
        self._held: dict[tuple[str, str], set[str]] = {}

    def makes(self, node: NodeProto) -> bool:
        return "maker" in self._kinds(node)

    def slices(self, names: set[str]) -> set[str]:
        """First outputs of the nodes that slice one of these tensors."""
        found = set()
        for graph in graphs(self.graph):
            for node in graph.node:
                kinds = self._kinds(node)
                if node.output and "slice" in kinds and ("maker" in kinds or not names.isdisjoint(node.input)):
                    found.add(node.output[0])
        return found

    def behind(self, is_source: Callable[[NodeProto], bool]) -> set[str]:
        """Tensors whose sizes may hang on what the sources make."""
        names: set[str] = set()
        before = -1
        while len(names) > before:  # again, where a loop carries one
            before = len(names)
            _spread(self.graph, names, is_source)
            if not any(True for node in self.graph.node for _ in inside(node)):
                break
        return names

    def _kinds(self, node: NodeProto) -> set[str]:
        if node.domain in _STANDARD:
            return {"slice"} if node.op_type == "Slice" else {"maker"} if self._may_make(node) else set()
        key = (node.domain, node.op_type)
        if key not in self.functions:
            return set()
        if key not in self._held:
            self._held[key] = set()  # a function that calls itself
            self._held[key] = set().union(*(self._kinds(n) for n in _nodes(self.functions[key])))
        return self._held[key]

    def _may_make(self, node: NodeProto) -> bool:
        """A window that may be larger than what it runs over, or a negative number where a size is given."""
        if node.op_type in _WINDOWS:
            return True
        given = [a for a in node.attribute if a.name in _SIZES]
        if any(number < 0 for a in given for number in (*a.ints, *a.floats)):
            return True
        return node.op_type in _SIZED and any(self._is_negative(name) for name in node.input)

    def _is_negative(self, name: str) -> bool:
        tensor = self.constants.get(name)
        few = tensor is not None and prod(tensor.dims) <= _FEW and tensor.data_location != TensorProto.EXTERNAL
        if (
            tensor is None
            or not few
            or tensor.data_type not in (TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT)
        ):
            return False
        try:
            return bool((numpy_helper.to_array(tensor) < 0).any())
        except (ValueError, TypeError):
            return True


def _nodes(function: FunctionProto) -> Iterator[NodeProto]:
    for node in function.node:
        yield node
        for graph in inside(node):
            for inner in graphs(graph):
                yield from inner.node


def _spread(graph: GraphProto, names: set[str], is_source: Callable[[NodeProto], bool]) -> None:
    for node in graph.node:
        if node.op_type in _ENDS and node.domain in _STANDARD:
            continue
        touched = (bool(node.output) and is_source(node)) or not names.isdisjoint(node.input)
        for inner in inside(node):
            if touched:
                names.update(value.name for value in inner.input)
            _spread(inner, names, is_source)
            touched = touched or any(value.name in names for value in inner.output)
        if touched:
            names.update(filter(None, node.output))


def _without(unsafe: set[str], model: ModelProto, options: dict[str, Any]) -> ModelProto:
    """What is inferred where the nodes with these outputs are of an op that nobody knows."""
    probe = ModelProto()
    probe.CopyFrom(model)
    probe.opset_import.append(helper.make_opsetid(_UNKNOWN, 1))
    kept_out = []
    for node in _all_nodes(probe):
        if node.output and node.output[0] in unsafe:
            kept_out.append((node.domain, node.op_type))
            node.domain, node.op_type = _UNKNOWN, "Unknown"
    inferred = onnx.shape_inference.infer_shapes(probe, **options)
    for node in _all_nodes(inferred):
        if node.domain == _UNKNOWN:
            node.domain, node.op_type = kept_out.pop(0)
    del inferred.opset_import[-1]
    return inferred
