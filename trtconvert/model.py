"""ONNX files and graphs: load, check, index, save. Protobuf is edited in place, so what is not touched stays as it was."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from google.protobuf.message import DecodeError, EncodeError
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_tensor
from onnx.reference import ReferenceEvaluator

from trtconvert.errors import ConvertError
from trtconvert.files import write_file

STANDARD_DOMAINS = ("", "ai.onnx")
MAX_FOLDED = 1 << 20  # elements; constants larger than this are weights, nothing that a pattern asks about
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
    ]
)


# --- files ---------------------------------------------------------------------------------------------------------


def load(path: Path) -> ModelProto:
    """Read an ONNX model, external tensors left on disk but checked to be there. ConvertError says what is wrong."""
    if not path.is_file():
        hint = "give the path of an .onnx file" if path.exists() else "check the path"
        raise ConvertError("model file not found" if not path.exists() else "not a file", where=str(path), fix=hint)
    if path.stat().st_size == 0:
        raise ConvertError("the model file is empty (0 bytes)", where=str(path), fix="export or copy the model again")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, ValueError) as error:
        raise _not_onnx(path) from error
    except OSError as error:
        raise ConvertError(f"cannot read the model: {error.strerror}", where=str(path)) from error
    if not model.graph.node and not model.graph.output:
        raise _not_onnx(path)
    _check_external_data(model, path.parent)
    return model


def _not_onnx(path: Path) -> ConvertError:
    return ConvertError(
        "the file is not an ONNX model, or it is cut short (the protobuf does not parse)",
        where=f"{path} ({path.stat().st_size} bytes)",
        fix="check that the download or copy is complete and that the file came from an ONNX exporter",
    )


def _check_external_data(model: ModelProto, folder: Path) -> None:
    """Every external tensor must lie inside the model's folder, exist and be long enough."""
    root = folder.resolve()
    for tensor in all_tensors(model.graph):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        info = ExternalDataInfo(tensor)
        file = (root / info.location).resolve()
        if not file.is_relative_to(root) or Path(info.location).is_absolute():
            raise ConvertError(
                f"tensor {tensor.name!r} keeps its data in {info.location!r}, outside the model's folder",
                where=str(folder),
                fix="move the data file beside the model and export with a relative location",
            )
        if not file.is_file():
            raise ConvertError(
                f"tensor {tensor.name!r} keeps its data in {info.location!r}, which is missing",
                where=str(folder),
                fix="copy the data file to that place: it belongs beside the .onnx file",
            )
        end = (info.offset or 0) + (info.length or _bytes(tensor))
        if file.stat().st_size < end:
            raise ConvertError(
                f"the data file {info.location!r} is cut short: tensor {tensor.name!r} needs {end} bytes, "
                f"the file has {file.stat().st_size}",
                where=str(folder),
                fix="copy the data file again",
            )


def _bytes(tensor: TensorProto) -> int:
    with suppress(KeyError, TypeError):
        return int(np.prod(tensor.dims, dtype=np.int64)) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return 0


def save(model: ModelProto, path: Path, source: Path) -> None:
    """Write the model whole or not at all. External tensors, found beside `source`, move into `<name>.data` when the
    model changes folder; in the same folder they stay where they are."""
    external = [t for t in all_tensors(model.graph) if t.data_location == TensorProto.EXTERNAL]
    if external and path.parent.resolve() != source.parent.resolve():
        model = _copy(model)
        for tensor in all_tensors(model.graph):
            if tensor.data_location == TensorProto.EXTERNAL:
                load_external_data_for_tensor(tensor, str(source.parent))
        data = path.with_name(path.name + ".data")
        write_file(data, b"".join(_externalize(model, data.name)))
    write_file(path, serialize(model))


def _externalize(model: ModelProto, location: str) -> Iterator[bytes]:
    """Move large tensors out of the model, yielding the bytes that make the data file."""
    offset = 0
    for tensor in all_tensors(model.graph):
        raw = tensor.raw_data
        if len(raw) < 1024:
            tensor.ClearField("external_data")
            tensor.data_location = TensorProto.DEFAULT
            continue
        padding = -offset % 4096
        onnx.external_data_helper.set_external_data(tensor, location, offset + padding, len(raw))
        tensor.ClearField("raw_data")
        offset += padding + len(raw)
        yield b"\0" * padding + raw


def serialize(model: ModelProto) -> bytes:
    """The model as bytes, the same for the same model."""
    try:
        return bytes(model.SerializeToString(deterministic=True))
    except (EncodeError, ValueError) as error:
        raise ConvertError(
            "the model is larger than 2 GB, protobuf's limit", fix="export it with external data"
        ) from error


def sha256(model: ModelProto, folder: Path) -> str:
    """Digest of the model and of the external data it names."""
    digest = hashlib.sha256(serialize(model))
    names = {ExternalDataInfo(t).location for t in all_tensors(model.graph) if t.data_location == TensorProto.EXTERNAL}
    for name in sorted(names):
        with (folder / name).open("rb") as file:
            digest.update(
                hashlib.file_digest(file, "sha256").digest() if hasattr(hashlib, "file_digest") else file.read()
            )
    return digest.hexdigest()


def check(model: ModelProto, path: Path | None = None) -> None:
    """onnx.checker with full_check; ConvertError names the first fault."""
    try:
        if any(t.data_location == TensorProto.EXTERNAL for t in all_tensors(model.graph)) and path is not None:
            onnx.checker.check_model(str(path), full_check=True)
        else:
            onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "unknown fault")
        if "Field 'shape' of 'type' is required" in first:
            return  # an input or output of unknown rank: the checker minds, ONNX and its tools do not
        raise ConvertError(f"the model is not valid ONNX: {first}", where=str(path) if path else None) from error


# --- walking -------------------------------------------------------------------------------------------------------


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs that a node (If, Loop, Scan) holds."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def all_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and every graph inside its nodes."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from all_graphs(inner)


def all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Every node of the main graph and its subgraphs."""
    for graph in all_graphs(model.graph):
        yield from graph.node


def all_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Every initializer and tensor attribute, subgraphs included."""
    for inner in all_graphs(graph):
        yield from inner.initializer
        for node in inner.node:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR:
                    yield attribute.t


def captured(node: NodeProto) -> set[str]:
    """Names that the node's subgraphs read from the graphs around them."""
    names: set[str] = set()
    for graph in subgraphs(node):
        made = {i.name for i in graph.input} | {t.name for t in graph.initializer}
        used = {o.name for o in graph.output}
        for inner in graph.node:
            used |= set(inner.input) | captured(inner)
            made |= set(inner.output)
        names |= used - made
    return names


def opset(model: ModelProto) -> int:
    """Version of the standard operator set that the model imports."""
    return next((entry.version for entry in model.opset_import if entry.domain in STANDARD_DOMAINS), 1)


def attribute_values(node: NodeProto) -> dict[str, Any]:
    """The node's attributes as Python values, text decoded."""
    values = {a.name: helper.get_attribute_value(a) for a in node.attribute if not a.ref_attr_name}
    return {
        name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in values.items()
    }


def dtype_name(elem_type: int) -> str:
    """numpy's (ml_dtypes') name of an ONNX element type."""
    return str(np.dtype(helper.tensor_dtype_to_np_dtype(elem_type)).name)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of that name; bfloat16 is ml_dtypes'."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def elem_type(dtype: str) -> int:
    """ONNX element type of a dtype name."""
    return int(helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype)))


# --- index ---------------------------------------------------------------------------------------------------------


@dataclass
class TensorInfo:
    """What is known of a tensor: dtype, and a dimension each as int, name or None; shape None if the rank is unknown."""

    dtype: str
    shape: tuple[int | str | None, ...] | None


def describe(info: ValueInfoProto) -> TensorInfo:
    """TensorInfo of a graph input, output or value_info."""
    kind = info.type.tensor_type
    shape: tuple[int | str | None, ...] | None = None
    if kind.HasField("shape"):
        shape = tuple(
            d.dim_value if d.HasField("dim_value") else (d.dim_param or None if d.HasField("dim_param") else None)
            for d in kind.shape.dim
        )
    return TensorInfo(dtype_name(kind.elem_type) if kind.elem_type else "", shape)


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

    @cached_property
    def producers(self) -> dict[str, int]:
        """Tensor name to the index of the node that makes it."""
        return {name: index for index, node in enumerate(self.graph.node) for name in node.output if name}

    @cached_property
    def consumers(self) -> dict[str, list[int]]:
        """Tensor name to the nodes that read it, a node that reads it in a subgraph among them."""
        readers: dict[str, list[int]] = {}
        for index, node in enumerate(self.graph.node):
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

    def producer(self, name: str) -> NodeProto | None:
        """The node of this graph that makes the tensor, if any."""
        index = self.producers.get(name)
        return None if index is None else self.graph.node[index]

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
        if name not in self._constants:
            self._constants[name] = None  # a cycle is no constant
            self._constants[name] = self._fold(name)
        return self._constants[name]

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
        inputs = [self.constant(i) for i in node.input]
        if any(value is None for value in inputs):
            return None
        return self._evaluate(node, [value for value in inputs if value is not None])

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
        except Exception:  # the evaluator's own errors are of many types; a value it cannot compute is no constant
            return None
        return value if isinstance(value, np.ndarray) and value.size <= MAX_FOLDED else None


def infer(model: ModelProto, folder: Path) -> dict[int, dict[str, TensorInfo]]:
    """Dtypes and shapes of every tensor by ONNX shape inference, per graph (keyed by its order in `all_graphs`).

    Stored value_info is only believed where inference finds nothing: exporters and editors leave it stale.
    """
    bare = _copy(model, with_weights=False)
    stored = [[describe(v) for v in g.value_info] for g in all_graphs(bare.graph)]
    names = [[v.name for v in g.value_info] for g in all_graphs(bare.graph)]
    for graph in all_graphs(bare.graph):
        del graph.value_info[:]
    try:
        inferred = onnx.shape_inference.infer_shapes(bare, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        inferred = bare
    result = {}
    for index, graph in enumerate(all_graphs(inferred.graph)):
        infos = dict(zip(names[index], stored[index], strict=True))
        found = {v.name: describe(v) for v in [*graph.value_info, *graph.input, *graph.output]}
        result[index] = infos | {name: info for name, info in found.items() if info.dtype}
    return result


def views(model: ModelProto, folder: Path) -> list[GraphView]:
    """A GraphView of the main graph and of each subgraph, in the order of `all_graphs`, parents before children."""
    infos = infer(model, folder)
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


def _copy(model: ModelProto, with_weights: bool = True) -> ModelProto:
    """A deep copy; without weights, tensors above 1 kB keep their dims and type only."""
    copy = ModelProto()
    if with_weights:
        copy.CopyFrom(model)
        return copy
    kept = [(t, t.raw_data) for t in all_tensors(model.graph) if len(t.raw_data) > 1024]
    try:
        for tensor, _ in kept:
            tensor.ClearField("raw_data")
        copy.CopyFrom(model)
    finally:
        for tensor, raw in kept:
            tensor.raw_data = raw
    return copy
