"""ONNX files: load, check, walk, save. Protobuf is edited in place, so what is not touched stays as it was."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    helper,
)
from onnx.external_data_helper import ExternalDataInfo

from trtconvert import weights
from trtconvert.diagnosis import complaints, leniency, structure, text
from trtconvert.errors import ConvertError
from trtconvert.files import write_files

_PROTOBUF_LIMIT = 2**31 - 1
STANDARD_DOMAINS = ("", "ai.onnx")
ORT_DOMAIN = "com.microsoft"  # onnxruntime's own ops


# --- files ---------------------------------------------------------------------------------------------------------


def load(path: Path) -> ModelProto:
    """Read an ONNX model, external tensors left on disk but checked to be there. ConvertError says what is wrong."""
    if not path.is_file():
        hint = "give the path of an .onnx file" if path.exists() else "check the path"
        raise ConvertError("model file not found" if not path.exists() else "not a file", where=str(path), fix=hint)
    if path.stat().st_size == 0:
        raise ConvertError("the model file is empty (0 bytes)", where=str(path), fix="export or copy the model again")
    if _is_surrogate(str(path.resolve())):
        raise ConvertError(
            "the model's path is not UTF-8, as TensorRT wants it", where=str(path), fix="rename the file or its folder"
        )
    try:
        model = onnx.load(str(path), format="protobuf", load_external_data=False)
    except (DecodeError, ValueError) as error:
        raise _not_onnx(path) from error
    except OSError as error:
        raise ConvertError(f"cannot read the model: {error.strerror}", where=str(path)) from error
    if not model.graph.node and not model.graph.output:
        raise _not_onnx(path)
    text.check(model, path)
    structure.settle(model, str(path))
    external = external_tensors(model)
    weights.check(external, path.parent)
    plain = {id(tensor) for tensor in model.graph.initializer}
    weights.take_in([t for t in external if id(t) not in plain], path.parent)
    return model


def _is_surrogate(text: str) -> bool:
    """Whether it stands for bytes that are not UTF-8, as Python reads names of files."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def _not_onnx(path: Path) -> ConvertError:
    return ConvertError(
        "the file is not an ONNX model, or it is cut short (the protobuf does not parse)",
        where=f"{path} ({path.stat().st_size} bytes)",
        fix="check that the download or copy is complete and that the file came from an ONNX exporter",
    )


def data_files(model: ModelProto, folder: Path) -> set[Path]:
    """The external data files that the model reads."""
    return {folder / ExternalDataInfo(tensor).location for tensor in external_tensors(model)}


def save(model: ModelProto, path: Path, source: Path) -> None:
    """Write the model's files whole or not at all."""
    write_files(files(model, path, source))


def files(model: ModelProto, path: Path, source: Path) -> dict[Path, bytes | Iterable[bytes]]:
    """What `save` writes: the files, and what is in each.

    External tensors, found beside `source`, stay where they are if the model stays in their folder. Otherwise they are
    copied, piece by piece, into `<name>.data`. What makes the model larger than protobuf's 2 GB goes there as well.
    """
    moves = path.parent.resolve() != source.parent.resolve()
    moved = external_tensors(model) if moves else []
    total = model.ByteSize()
    if total >= _PROTOBUF_LIMIT:
        moved += [t for t in all_tensors(model) if len(t.raw_data) >= 1024]
    if not moved:
        return {path: serialize(model)}
    data = path.with_name(path.name + ".data")
    if data.resolve() in {file.resolve() for file in data_files(model, source.parent)}:
        data = path.with_name(path.name + ".weights")
    pieces, restore = weights.relocate(moved, data.name, source.parent)
    try:
        return {data: pieces, path: serialize(model)}
    finally:
        for tensor, before in restore:
            tensor.CopyFrom(before)


def serialize(model: ModelProto) -> bytes:
    """The model as bytes, the same for the same model."""
    try:
        return bytes(model.SerializeToString(deterministic=True))
    except (EncodeError, ValueError) as error:
        raise ConvertError(
            "the model is larger than 2 GB, protobuf's limit", fix="export it with external data"
        ) from error


def sha256(data: bytes, model: ModelProto, folder: Path) -> str:
    """Digest of a model's bytes, followed by those of its external data files; without such files that of the file."""
    digest = hashlib.sha256(data)
    for path in sorted(data_files(model, folder)):
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def check(model: ModelProto, path: Path | None = None) -> None:
    """onnx.checker with full_check; ConvertError names the first fault. path is for the message.

    Stored value_info is left out, since a stale one is no fault of the model, and so is the data of large and external
    tensors: they count as inputs.
    """
    bare = skeleton(model)
    adopt_ort_ops(bare)
    leniency.allow_ops(bare, [node for node in all_nodes(bare) if node.domain in STANDARD_DOMAINS])
    for node in all_nodes(bare):
        node.name = node.name or f"{node.op_type}_{next(filter(None, node.output), '')}"
    leniency.allow_ranks(bare)
    for tensor in filter(_heavy, model.graph.initializer):
        size = len(tensor.raw_data)
        if size and weights.size(tensor) not in (0, size):
            raise ConvertError(
                f"the model is not valid ONNX: tensor {tensor.name!r} has {size} bytes of data, its type and shape "
                f"{dtype_name(tensor.data_type)} {list(tensor.dims)} take {weights.size(tensor)}",
                where=str(path) if path else None,
            )
    try:
        leniency.check(bare)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise complaints.explain(str(error), bare, str(path) if path else None) from error
    except ValueError as error:
        raise ConvertError(f"the model cannot be checked: {error}", where=str(path) if path else None) from error


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


def function_graphs(function: FunctionProto) -> Iterator[Sequence[NodeProto]]:
    """The nodes of a function, then those of every graph inside them."""
    yield function.node
    for node in function.node:
        for inner in subgraphs(node):
            yield from (graph.node for graph in all_graphs(inner))


def all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Every node of the main graph and its subgraphs."""
    for graph in all_graphs(model.graph):
        yield from graph.node


def all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor with data: initializers, sparse ones too, and attributes, those of subgraphs and functions included."""
    for graph in all_graphs(model.graph):
        yield from _tensors(graph)
    for function in model.functions:
        for nodes in function_graphs(function):
            yield from _attribute_tensors(nodes)
        for node in function.node:
            for inner in subgraphs(node):
                for graph in all_graphs(inner):
                    yield from (*graph.initializer, *_sparse(graph.sparse_initializer))


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    yield from _sparse(graph.sparse_initializer)
    yield from _attribute_tensors(graph.node)


def _attribute_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("sparse_tensor"):
                yield from _sparse([attribute.sparse_tensor])
            yield from _sparse(attribute.sparse_tensors)


def _sparse(tensors: Iterable[SparseTensorProto]) -> Iterator[TensorProto]:
    for tensor in tensors:
        yield tensor.values
        yield tensor.indices


def external_tensors(model: ModelProto) -> list[TensorProto]:
    """The tensors whose data lies in a file beside the model."""
    return [t for t in all_tensors(model) if t.data_location == TensorProto.EXTERNAL]


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


def adopt_ort_ops(model: ModelProto) -> None:
    """Move to com.microsoft, in place, what onnxruntime's optimizer writes into the default domain although ONNX has no
    such op there: SimplifiedLayerNormalization, and LayerNormalization before opset 17."""
    strange = ("SimplifiedLayerNormalization", *(["LayerNormalization"] if opset(model) < 17 else []))
    nodes = [n for n in all_nodes(model) if n.domain in STANDARD_DOMAINS and n.op_type in strange]
    for node in nodes:
        node.domain = ORT_DOMAIN
    if nodes:
        leniency.import_domain(model, ORT_DOMAIN)


def attribute_values(node: NodeProto) -> dict[str, Any]:
    """The node's attributes as Python values, text decoded."""
    values = {a.name: helper.get_attribute_value(a) for a in node.attribute if not a.ref_attr_name}
    return {
        name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in values.items()
    }


@cache
def dtype_name(elem_type: int) -> str:
    """numpy's (ml_dtypes') name of an ONNX element type."""
    try:
        return str(np.dtype(helper.tensor_dtype_to_np_dtype(elem_type)).name)
    except KeyError as error:
        raise ConvertError(
            f"element type {elem_type} of a tensor is none that onnx {onnx.__version__} knows",
            fix="pip install -U onnx",
        ) from error


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of that name; bfloat16 is ml_dtypes'."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def elem_type(dtype: str) -> int:
    """ONNX element type of a dtype name."""
    return int(helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype)))


def _heavy(tensor: TensorProto) -> bool:
    return int(tensor.ByteSize()) > 2048


def unique(name: str, taken: set[str]) -> str:
    """The name, with a number behind it where it is taken; it is taken then."""
    candidate, count = name, 1
    while candidate in taken:
        candidate, count = f"{name}_{count}", count + 1
    taken.add(candidate)
    return candidate


def copy(model: ModelProto) -> ModelProto:
    """A deep copy."""
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def skeleton(model: ModelProto) -> ModelProto:
    """A copy to check or infer with, without stored value_info; large and external initializers of the main graph are inputs
    in it, so that no weight is copied."""
    bare = ModelProto()
    _copy_fields(model, bare, but="graph")
    _copy_fields(model.graph, bare.graph, but="initializer")
    for graph in all_graphs(bare.graph):
        del graph.value_info[:]
    named = {i.name for i in bare.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name in named and model.ir_version >= 4:
            continue  # only a default
        if not _heavy(tensor) and tensor.data_location != TensorProto.EXTERNAL:
            bare.graph.initializer.append(tensor)
        elif tensor.name not in named:
            bare.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return bare


def _copy_fields(source: Any, target: Any, but: str) -> None:
    for field, value in source.ListFields():
        if field.name in (but, "doc_string"):  # which need not be UTF-8, and then can be read but not set
            continue
        if isinstance(value, int | float | str | bytes):
            setattr(target, field.name, value)
        else:
            getattr(target, field.name).MergeFrom(value)
