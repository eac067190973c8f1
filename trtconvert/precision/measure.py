"""How large and how small the values of a model's float32 tensors are: an onnxruntime run of the model, which then tells the
extent of every tensor, those of subgraphs too, and no more than that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from trtconvert import model as onnx_model
from trtconvert import reference
from trtconvert.bodies import add_bodies
from trtconvert.errors import ConvertError
from trtconvert.graph import GraphView
from trtconvert.precision import prepare
from trtconvert.precision.uses import Uses

_RESULT = "trtconvert.extents"
_EVALUATED = 1 << 22  # bytes of a model that ONNX's reference evaluator, which is slow, may run
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

    The least value is measured where something is divided by it. ConvertError where onnxruntime does not run the model.
    """
    if onnx_model.opset(model) < _FIRST_OPSET:
        raise ConvertError(
            f"in opset {onnx_model.opset(model)} values are not measured, from {_FIRST_OPSET} on they are"
        )
    found: dict[str, Extent] = {}
    fault = "there are no inputs to run it on"
    try:
        probes = _Probes(model, folder)
    except Exception as error:  # onnxruntime's exceptions have no common base of their own
        raise _not_run(_first_line(error)) from error
    runs = 0
    for feed in feeds:
        try:
            told = list(probes.run(feed))
        except Exception as error:  # noqa: BLE001  the same; sizes at min or max need not go together
            fault = _first_line(error)
            continue
        runs += 1
        for name, extent in told:
            found[name] = found[name].join(extent) if name in found else extent
    if not runs:
        raise _not_run(fault)
    return found


def _not_run(why: str) -> ConvertError:
    return ConvertError(f"onnxruntime cannot run it: {why}")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


class _Probes:
    """Models that tell extents: of all tensors, and of those with Inf or NaN, which takes longer."""

    def __init__(self, model: ModelProto, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.finite, self.names = self._session(None)
        self.careful: dict[frozenset[str], tuple[Any, list[str]]] = {}

    def _session(self, only: frozenset[str] | None) -> tuple[Any, list[str]]:
        probed, names = _probed(self.model, self.folder, only)
        try:
            return reference.session(probed, self.folder, in_order=True), names
        except Exception as error:
            if "NOT_IMPLEMENTED" not in str(error) or self.model.ByteSize() > _EVALUATED:
                raise
            return reference.evaluator(probed), names

    def run(self, feed: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, Extent]]:
        """The extent of each tensor."""
        odd = set()
        for name, extent in self._told(self.finite, self.names, feed):
            if (extent.low <= extent.high and not np.isfinite([extent.low, extent.high]).all()) or np.isnan(extent.low):
                odd.add(name)
            else:
                yield name, extent
        if odd:
            key = frozenset(odd)
            if key not in self.careful:
                self.careful[key] = self._session(key)
            yield from self._told(*self.careful[key], feed)

    @staticmethod
    def _told(session: Any, names: list[str], feed: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, Extent]]:
        (vector,) = session.run([_RESULT], dict(feed))
        for name, (low, high, least) in zip(names, np.asarray(vector).reshape(-1, 3).tolist(), strict=True):
            yield name, Extent(-low, high, -least)


def of_array(array: NDArray[Any]) -> Extent:
    """The extent of a constant."""
    values = array[np.isfinite(array)].astype(np.float64)
    parts = np.abs(values[values != 0])
    return Extent(values.min(initial=np.inf), values.max(initial=-np.inf), parts.min(initial=np.inf))


# --- the model that tells ------------------------------------------------------------------------------------------


def _probed(model: ModelProto, folder: Path, only: frozenset[str] | None) -> tuple[ModelProto, list[str]]:
    """A copy whose output _RESULT holds -low, high and -least of each tensor, or of these only, then without their Inf and NaN;
    and the tensors' names. Of joined vectors the largest numbers are the extent again."""
    copy = onnx_model.copy(model)
    add_bodies(copy)
    views = iter(prepare.views(copy, folder))
    names: list[str] = []
    vector = _Probe(onnx_model.opset(copy), views, names, only).graph()
    copy.graph.output.append(helper.make_tensor_value_info(vector, TensorProto.FLOAT, None))
    return copy, names


class _Probe:
    """Adds to graphs, in place, what tells their extents. names: grows in the order of the vector's elements."""

    def __init__(self, opset: int, views: Iterator[GraphView], names: list[str], only: frozenset[str] | None) -> None:
        self.opset, self.views, self.names, self.only, self.count = opset, views, names, only, 0
        self.uses = Uses()

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
        result = _RESULT if view.parent is None else self._name("all")
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
        if self.only is not None and view.path + name not in self.only:
            return
        self.names.append(view.path + name)
        finite = self.only is None
        low, high = (name, name) if finite else self._finite(name, made)
        rows = [self._reduced("ReduceMin", low, made), self._reduced("ReduceMax", high, made)]
        rows[0] = self._node("Neg", [rows[0]], made)
        if self.uses.is_divisor(view, name):
            rows.append(self._reduced("ReduceMax", self._small(name, made), made))
        else:
            rows.append(self._constant(made, 1))
        parts += rows

    def _finite(self, name: str, made: list[NodeProto]) -> tuple[str, str]:
        """The tensor with what is not finite far above the rest, and far below it."""
        size = self._node("Abs", [name], made)
        finite = self._node("Less", [size, self._number(made, np.inf)], made)
        low = self._node("Where", [finite, name, self._number(made, np.inf)], made)
        return low, self._node("Where", [finite, name, self._number(made, -np.inf)], made)

    def _small(self, name: str, made: list[NodeProto]) -> str:
        """The negative absolute values, of zeros and what is not finite -inf."""
        size = self._node("Abs", [name], made)
        finite = self._node("Less", [size, self._number(made, np.inf)], made)
        some = self._node("Greater", [size, self._number(made, 0)], made)
        counts = self._node("And", [finite, some], made)
        negative = self._node("Neg", [size], made)
        return self._node("Where", [counts, negative, self._number(made, -np.inf)], made)

    def _reduced(self, op_type: str, name: str, made: list[NodeProto]) -> str:
        """One element, as a vector."""
        scalar = self._node(op_type, [name], made, keepdims=0)
        return self._node("Reshape", [scalar, self._number(made, np.array([1], np.int64))], made)

    def _node(self, op_type: str, inputs: list[str], made: list[NodeProto], **attributes: Any) -> str:
        output = self._name(op_type)
        made.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def _number(self, made: list[NodeProto], value: Any) -> str:
        array = value if isinstance(value, np.ndarray) else np.array(value, np.float32)
        return self._node("Constant", [], made, value=numpy_helper.from_array(array))

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
        return self._number(made, np.full(size, -np.inf, np.float32))

    def _name(self, what: str) -> str:
        self.count += 1
        return f"{_RESULT}/{what}_{self.count}"
