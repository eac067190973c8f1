"""Names and other text in an ONNX file, which has to be UTF-8: protobuf hands on as bytes what is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto

from trtconvert.errors import ConvertError


def check(model: ModelProto, path: Path) -> None:
    """ConvertError for text that is not UTF-8, which happens to damaged files."""
    for what, text in _texts(model):
        if isinstance(text, bytes):
            raise ConvertError(
                f"the {what} {text[:40]!r} is not UTF-8 text: the file is damaged",
                where=str(path),
                fix="export or copy the model again",
            )


def _texts(model: ModelProto) -> Iterator[tuple[str, Any]]:
    yield "producer's name", model.producer_name
    yield "producer's version", model.producer_version
    yield "model's domain", model.domain
    for entry in model.metadata_props:
        yield from (("metadata's key", entry.key), ("metadata", entry.value))
    yield from (("domain", entry.domain) for entry in model.opset_import)
    yield from _graph(model.graph)
    for function in model.functions:
        yield from (("function's name", function.name), ("function's domain", function.domain))
        yield from (("tensor's name", name) for name in (*function.input, *function.output))
        yield from _nodes(function.node)


def _graph(graph: GraphProto) -> Iterator[tuple[str, Any]]:
    yield "graph's name", graph.name
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield "tensor's name", value.name
        if value.type.HasField("tensor_type"):
            yield from (("dimension's name", d.dim_param) for d in value.type.tensor_type.shape.dim)
    for tensor in graph.initializer:
        yield "tensor's name", tensor.name
        yield from (("external data", text) for entry in tensor.external_data for text in (entry.key, entry.value))
    yield from _nodes(graph.node)


def _nodes(nodes: Any) -> Iterator[tuple[str, Any]]:
    node: NodeProto
    for node in nodes:
        yield from (("node's name", node.name), ("op type", node.op_type), ("domain", node.domain))
        yield from (("tensor's name", name) for name in (*node.input, *node.output))
        for attribute in node.attribute:
            yield "attribute's name", attribute.name
            yield from _graph(attribute.g) if attribute.HasField("g") else ()
            for inner in attribute.graphs:
                yield from _graph(inner)
