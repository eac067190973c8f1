"""How large and how small the values of a model's float32 tensors are: an onnxruntime run of the model, which then tells the
extent of every tensor, those of subgraphs too, and no more than that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from trtconvert import model as onnx_model
from trtconvert import reference
from trtconvert.bodies import add_bodies, raise_ir
from trtconvert.errors import ConvertError
from trtconvert.graph import GraphView
from trtconvert.precision import prepare

_DOMAIN, _OP = "trtconvert.measure", "Extent"
_FIRST_OPSET = 9  # that has Where


@dataclass(frozen=True)
class Extent:
    """Of a tensor's finite values: lowest, highest, and the least absolute value but for zero; infinite where there is none."""

    low: float
    high: float
    least: float

    @property
    def largest(self) -> float:
        """The largest absolute value, 0 where there is none."""
        return max(-self.low, self.high, 0.0)

    def join(self, other: Extent) -> Extent:
        """Of both tensors together."""
        return Extent(min(self.low, other.low), max(self.high, other.high), min(self.least, other.least))


def measure(model: ModelProto, folder: Path, feeds: Iterable[Mapping[str, NDArray[Any]]]) -> dict[str, Extent]:
    """Extents by tensor, after the path of its graph. model: float32, with bodies of ours, of which it gets those it lacks.

    ConvertError where onnxruntime does not run it.
    """
    if onnx_model.opset(model) < _FIRST_OPSET:
        raise ConvertError(
            f"in opset {onnx_model.opset(model)} values are not measured, from {_FIRST_OPSET} on they are"
        )
    probed, names = _probed(model, folder)
    found: dict[str, Extent] = {}
    try:
        session = reference.session(probed, folder)
        for feed in feeds:
            (vector,) = session.run([_OP], dict(feed))
            for name, (low, high, least) in zip(names, np.asarray(vector).reshape(-1, 3).tolist(), strict=True):
                extent = Extent(-low, high, -least)
                found[name] = found[name].join(extent) if name in found else extent
    except Exception as error:  # onnxruntime's exceptions have no common base of their own
        raise ConvertError(f"onnxruntime cannot run it: {next(iter(str(error).splitlines()), '')}") from error
    return found


def of_array(array: NDArray[Any]) -> Extent:
    """The extent of a constant."""
    values = array[np.isfinite(array)].astype(np.float64)
    parts = np.abs(values[values != 0])
    return Extent(values.min(initial=np.inf), values.max(initial=-np.inf), parts.min(initial=np.inf))


# --- the model that tells ------------------------------------------------------------------------------------------


def _probed(model: ModelProto, folder: Path) -> tuple[ModelProto, list[str]]:
    """A copy whose output `Extent` holds -low, high and -least of each tensor, and the tensors' names: of joined vectors the
    largest numbers are the extent again."""
    copy = onnx_model.copy(model)
    add_bodies(copy)
    views = iter(prepare.views(copy, folder))
    names: list[str] = []
    vector = _Probe(onnx_model.opset(copy), views, names).graph()
    copy.graph.output.append(helper.make_tensor_value_info(vector, TensorProto.FLOAT, None))
    raise_ir(copy)
    copy.functions.append(_function(onnx_model.opset(copy)))
    copy.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return copy, names


class _Probe:
    """Adds to graphs, in place, what tells their extents. names: grows in the order of the vector's elements."""

    def __init__(self, opset: int, views: Iterator[GraphView], names: list[str]) -> None:
        self.opset, self.views, self.names, self.count = opset, views, names, 0

    def graph(self) -> str:
        """The tensor that has the extents of the next graph and of those inside it."""
        view = next(self.views)
        made: list[NodeProto] = []
        parts: list[str] = []
        for value in view.graph.input:
            self._extent(view, value.name, made, parts)
        for node in view.nodes:
            held = [self._held(graph) for graph in onnx_model.subgraphs(node)]
            made.append(node)
            if any(size for _, size, _ in held):
                parts.append(self._export(node, held, made))
            for name in node.output:
                self._extent(view, name, made, parts)
        result = _OP if view.parent is None else self._name("all")
        made.append(helper.make_node("Concat", [*parts, self._constant(made, 0)], [result], axis=0))
        copies = [NodeProto.FromString(node.SerializeToString()) for node in made]
        del view.graph.node[:]
        view.graph.node.extend(copies)
        return result

    def _held(self, graph: GraphProto) -> tuple[GraphProto, int, str]:
        """A subgraph, the elements of its vector, and the vector."""
        before = len(self.names)
        vector = self.graph()
        return graph, 3 * (len(self.names) - before), vector

    def _extent(self, view: GraphView, name: str, made: list[NodeProto], parts: list[str]) -> None:
        if not name or view.info(name).dtype != "float32" or name in view.initializers:
            return
        parts.append(self._name("part"))
        made.append(helper.make_node(_OP, [name], [parts[-1]], domain=_DOMAIN))
        self.names.append(view.path + name)

    def _export(self, node: NodeProto, held: list[tuple[GraphProto, int, str]], made: list[NodeProto]) -> str:
        """A further output of the node: what its graphs say. A graph that did not run says that there were no values."""
        total = sum(size for _, size, _ in held)
        done = 0
        for graph, size, vector in held:
            inner: list[NodeProto] = []
            parts = [self._constant(inner, done), vector, self._constant(inner, total - done - size)]
            done += size
            name = self._name("whole")
            inner.append(helper.make_node("Concat", parts, [name], axis=0))
            graph.node.extend(inner)
            outputs = len(graph.output)
            graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [total]))
        loops = node.op_type != "If"
        outputs -= node.op_type == "Loop"  # of the body's outputs the first is the condition
        node.output.extend([""] * (outputs - len(node.output)))
        told = self._name("told")
        node.output.append(told)
        for attribute in node.attribute:
            if attribute.name in ("scan_output_axes", "scan_output_directions"):
                attribute.ints.append(0)
        if not loops:
            return told
        return self._joined(told, total, made)

    def _joined(self, told: str, total: int, made: list[NodeProto]) -> str:
        """The largest of each column; of no rows too."""
        none = self._name("none")
        empty = numpy_helper.from_array(np.full((1, total), -np.inf, np.float32))
        rows, result = self._name("rows"), self._name("joined")
        made.append(helper.make_node("Constant", [], [none], value=empty))
        made.append(helper.make_node("Concat", [told, none], [rows], axis=0))
        if self.opset < 18:
            made.append(helper.make_node("ReduceMax", [rows], [result], axes=[0], keepdims=0))
            return result
        axes = self._name("axes")
        made.append(helper.make_node("Constant", [], [axes], value=numpy_helper.from_array(np.array([0], np.int64))))
        made.append(helper.make_node("ReduceMax", [rows, axes], [result], keepdims=0))
        return result

    def _constant(self, made: list[NodeProto], size: int) -> str:
        name = self._name("none")
        value = numpy_helper.from_array(np.full(size, -np.inf, np.float32))
        made.append(helper.make_node("Constant", [], [name], value=value))
        return name

    def _name(self, what: str) -> str:
        self.count += 1
        return f"{_DOMAIN}/{what}_{self.count}"


def _function(opset: int) -> FunctionProto:
    """[-low, high, -least] of a tensor's finite values; -inf for each where it has none."""

    def node(op_type: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
        return helper.make_node(op_type, inputs, [output], **attributes)

    def constant(name: str, value: NDArray[Any]) -> NodeProto:
        return node("Constant", [], name, value=numpy_helper.from_array(value))

    nodes = [
        constant("inf", np.array(np.inf, np.float32)),
        constant("none", np.array(-np.inf, np.float32)),
        constant("zero", np.array(0, np.float32)),
        constant("one", np.array([1], np.int64)),
        node("Abs", ["x"], "size"),
        node("Less", ["size", "inf"], "finite"),
        node("Greater", ["size", "zero"], "some"),
        node("And", ["finite", "some"], "counts"),
        node("Neg", ["x"], "negative"),
        node("Neg", ["size"], "small"),
        node("Where", ["finite", "negative", "none"], "a"),
        node("Where", ["finite", "x", "none"], "b"),
        node("Where", ["counts", "small", "none"], "c"),
    ]
    for name in "abc":
        nodes.append(node("ReduceMax", [name], f"{name}_max", keepdims=0))
        nodes.append(node("Reshape", [f"{name}_max", "one"], f"{name}_row"))
    nodes.append(node("Concat", ["a_row", "b_row", "c_row"], "extent", axis=0))
    return helper.make_function(_DOMAIN, _OP, ["x"], ["extent"], nodes, [helper.make_opsetid("", opset)])
