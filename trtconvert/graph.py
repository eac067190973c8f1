"""A graph with the questions a matcher asks: who makes a tensor, who reads it, is it constant, what is its shape."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TensorShapeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)
from onnx.reference import ReferenceEvaluator

from trtconvert.lowering import contrib
from trtconvert.model import (
    STANDARD_DOMAINS,
    all_graphs,
    attribute_values,
    captured,
    dtype_name,
    opset,
    skeleton,
    subgraphs,
)
from trtconvert.profiles import inference

MAX_FOLDED = 1 << 20  # elements; constants larger than this are weights, nothing that a pattern asks about
_SIZED = ("ConstantOfShape", "Expand")  # whose last input is the shape of the result
_FOLDABLE = frozenset(
    [
        "Identity",
        "Cast",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "Flatten",
        "Sqrt",
        "Reciprocal",
        "Neg",
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Pow",
        "Expand",
        "CastLike",
        "DequantizeLinear",
        "ConstantOfShape",
        "Concat",
        "Slice",
        "Gather",
        "Shape",
        "Size",
    ]
)


Known: TypeAlias = "Mapping[str, Sequence[int | None]]"
"""Dimensions by the name of an input, None for one that stays open."""
NOTHING: Known = {}

Shape: TypeAlias = "tuple[int | str | None, ...]"
"""A dimension each as number or name; None where nothing is known of it."""


@dataclass
class TensorInfo:
    """What is known of a tensor: dtype, and shape; None if the rank is unknown."""

    dtype: str
    shape: Shape | None


def describe(info: ValueInfoProto) -> TensorInfo:
    """TensorInfo of a graph input, output or value_info."""
    kind = info.type.tensor_type
    shape: Shape | None = None
    if kind.HasField("shape"):
        shape = tuple(map(_dim, kind.shape.dim))
    return TensorInfo(dtype_name(kind.elem_type) if kind.elem_type else "", shape)


def clear_unknown_dims(model: ModelProto) -> None:
    """Leave dimensions of the model's inputs empty, in place, that say neither size nor name: TensorRT reads some as 0."""
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if _dim(dim) is None:
                dim.Clear()


def _dim(dim: TensorShapeProto.Dimension) -> int | str | None:
    """Size or name; None for neither, and for what some exporters write instead: -1, "-1", "?"."""
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    name = dim.dim_param
    return None if name in ("", "?", "None") or name.lstrip("-").isdigit() else name


@dataclass
class GraphView:
    """A graph with the questions a matcher asks: who makes a tensor, who reads it, is it constant, what is its shape."""

    graph: GraphProto
    infos: dict[str, TensorInfo]
    opset: int
    folder: Path = Path()
    parent: GraphView | None = None
    path: str = ""  # of the nodes that hold this graph, for messages: "/loop_3/body"
    overridable: bool = False  # IR 4 on: an initializer that is also a graph input is only a default
    _constants: dict[str, NDArray[Any] | None] = field(default_factory=dict)
    _uniform: dict[str, tuple[float, str] | None] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> list[NodeProto]:
        """The graph's nodes."""
        return list(self.graph.node)

    @cached_property
    def producers(self) -> dict[str, int]:
        """Tensor name to the index of the node that makes it."""
        return {name: index for index, node in enumerate(self.nodes) for name in node.output if name}

    @cached_property
    def consumers(self) -> dict[str, list[int]]:
        """Tensor name to the nodes that read it, a node that reads it in a subgraph among them."""
        readers: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for name in {*node.input, *captured(node)}:
                readers.setdefault(name, []).append(index)
        return readers

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Names of the graph's outputs."""
        return frozenset(output.name for output in self.graph.output)

    @cached_property
    def initializers(self) -> dict[str, TensorProto]:
        """The constant initializers by name."""
        inputs = {i.name for i in self.graph.input} if self.overridable else set()
        return {t.name: t for t in self.graph.initializer if t.name not in inputs}

    @cached_property
    def _local_names(self) -> set[str]:
        return {i.name for i in self.graph.input} | {t.name for t in self.graph.initializer} | set(self.producers)

    def makes(self, name: str) -> bool:
        """Whether the tensor is this graph's own, not one of a graph around it."""
        return name in self._local_names

    def producer(self, name: str) -> NodeProto | None:
        """The node of this graph that makes the tensor, if any."""
        index = self.producers.get(name)
        return None if index is None else self.nodes[index]

    def initializer(self, name: str) -> TensorProto | None:
        """The constant initializer of that name in this graph or in one around it."""
        if name in self.initializers or self.parent is None or name in self._local_names:
            return self.initializers.get(name)
        return self.parent.initializer(name)

    def info(self, name: str) -> TensorInfo:
        """Dtype and shape as far as known."""
        if name in self.infos:
            return self.infos[name]
        if name in self.initializers:
            tensor = self.initializers[name]
            return TensorInfo(dtype_name(tensor.data_type), tuple(tensor.dims))
        if self.parent is not None and name not in self._local_names:
            return self.parent.info(name)
        return TensorInfo("", None)

    def rank(self, name: str) -> int | None:
        """Number of dimensions, None if unknown."""
        shape = self.info(name).shape
        return None if shape is None else len(shape)

    def constant(self, name: str) -> NDArray[Any] | None:
        """The tensor's value if it is a constant of reasonable size: initializer, Constant, or computed from them."""
        for each in self.chain(name, _FOLDABLE, self._constants.__contains__):
            self._constants[each] = None  # a cycle is no constant
            self._constants[each] = self._fold(each)
        return self._constants[name]

    def chain(self, name: str, ops: Container[str], known: Callable[[str], bool]) -> list[str]:
        """The tensor and those that nodes of these ops make it from, each behind what it is made from, but for known ones: who
        computes in this order needs no recursion as deep as the graph."""
        order, seen, stack = list[str](), set[str](), [(name, False)]
        while stack:
            current, complete = stack.pop()
            if complete:
                order.append(current)
            elif current not in seen and not known(current):
                seen.add(current)
                stack.append((current, True))
                node = self.producer(current)
                if node is not None and node.op_type in ops:
                    stack += [(each, False) for each in node.input if each]
        return order

    def uniform(self, name: str) -> tuple[float, str] | None:
        """Value and dtype of a constant that is the same number in every element."""
        if name not in self._uniform:
            value = self.constant(name)
            number = None
            if value is not None and value.size and value.dtype.kind in "fiuV" and value.ndim <= 8:
                first = value.reshape(-1)[0]
                number = (float(first), value.dtype.name) if value.size == 1 or (value == first).all() else None
            self._uniform[name] = number
        return self._uniform[name]

    def attributes(self, node: NodeProto) -> dict[str, Any]:
        """The node's attributes, with the schema's defaults; an operator of another domain than ONNX's, or older than ONNX's,
        has those of the newest standard operator of its name."""
        standard = node.domain in STANDARD_DOMAINS
        return _defaults(node.op_type, self.opset if standard else None) | attribute_values(node)

    def _fold(self, name: str) -> NDArray[Any] | None:
        if name in self.initializers:
            tensor = self.initializers[name]
            if np.prod(tensor.dims, dtype=np.int64) > MAX_FOLDED:
                return None
            base = str(self.folder) if tensor.data_location == TensorProto.EXTERNAL else ""
            return np.asarray(numpy_helper.to_array(tensor, base))
        node = self.producer(name)
        if node is None:
            outside = self.parent is not None and name not in self._local_names
            return self.parent.constant(name) if outside and self.parent else None
        if node.domain not in STANDARD_DOMAINS or (node.op_type != "Constant" and node.op_type not in _FOLDABLE):
            return None
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            return np.asarray(numpy_helper.to_array(node.attribute[0].t, str(self.folder)))
        found = [self.constant(i) for i in node.input]
        inputs = [value for value in found if value is not None]
        if len(inputs) < len(found):
            return None
        if node.op_type in _SIZED and np.prod(inputs[-1], dtype=np.float64) > MAX_FOLDED:
            return None
        return self._evaluate(node, inputs)

    def _evaluate(self, node: NodeProto, inputs: list[NDArray[Any]]) -> NDArray[Any] | None:
        names = [f"i{k}" for k in range(len(inputs))]
        alone = NodeProto()
        alone.CopyFrom(node)
        del alone.input[:], alone.output[:]
        alone.input.extend(names)
        alone.output.append("y")
        any_type = [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in [*names, "y"]]
        graph = helper.make_graph([alone], "constant", any_type[:-1], any_type[-1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        try:
            with np.errstate(all="ignore"):
                (value,) = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
        except Exception:  # noqa: BLE001  # the evaluator's own errors are of many types; a value it cannot compute is no constant
            return None
        return value if isinstance(value, np.ndarray) and value.size <= MAX_FOLDED else None


@cache
def _defaults(op_type: str, opset: int | None) -> dict[str, Any]:
    newest = onnx.defs.onnx_opset_version()
    version = min(opset or newest, newest)
    if not onnx.defs.has(op_type, max_inclusive_version=version):
        version = newest  # onnxruntime writes LayerNormalization before ONNX had it
    if not onnx.defs.has(op_type):
        return {}
    schema = onnx.defs.get_schema(op_type, max_inclusive_version=version)
    found = {}
    for name, attribute in schema.attributes.items():
        if attribute.default_value.type != AttributeProto.UNDEFINED:
            value = helper.get_attribute_value(attribute.default_value)
            found[name] = value.decode() if isinstance(value, bytes) else value
    return found


def infer(model: ModelProto, shapes: Known = NOTHING) -> dict[int, dict[str, TensorInfo]]:
    """Dtypes and shapes of every tensor by ONNX shape inference, per graph (keyed by its order in `all_graphs`).

    Stored value_info is only believed where inference finds nothing: exporters and editors leave it stale. shapes: dimensions
    of inputs that the model leaves open.
    """
    stored = [{v.name: describe(v) for v in g.value_info} for g in all_graphs(model.graph)]
    bare = contrib.for_inference(skeleton(model))
    for declared in bare.graph.input:
        dims = declared.type.tensor_type.shape.dim
        for dim, given in zip(dims, shapes.get(declared.name, ()), strict=False):
            if given is not None:
                dim.dim_value = given
    try:
        inferred = inference.infer(bare, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        inferred = bare
    result = {}
    for index, graph in enumerate(all_graphs(inferred.graph)):
        found = {v.name: describe(v) for v in [*graph.value_info, *graph.input, *graph.output]}
        result[index] = stored[index] | {name: info for name, info in found.items() if info.dtype}
    return result


def views(model: ModelProto, folder: Path, shapes: Known = NOTHING) -> list[GraphView]:
    """A GraphView of the main graph and of each subgraph, in the order of `all_graphs`, parents before children. shapes:
    dimensions of inputs that the model leaves open."""
    infos = infer(model, shapes)
    found: list[GraphView] = []

    def visit(graph: GraphProto, parent: GraphView | None, path: str) -> None:
        overridable = parent is None and model.ir_version >= 4
        view = GraphView(graph, infos[len(found)], opset(model), folder, parent, path, overridable)
        found.append(view)
        for node in graph.node:
            for inner in subgraphs(node):
                visit(inner, view, f"{path}{node.name or node.op_type}/{inner.name}/")

    visit(model.graph, None, "")
    return found
