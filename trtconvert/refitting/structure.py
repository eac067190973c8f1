"""What an engine keeps of its model for good, and the weights that it can be given anew; compared when it is.

It is taken of the lowered model, after fusing: what fusing and lowering fold, rename or compute from weights is the same
whenever the structure is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, numpy_helper

from trtconvert import model as onnx_model
from trtconvert.model import dtype_name

_FLOATS = ("float32", "float16", "bfloat16", "float64")
_LONG = 200  # characters of an attribute that are kept as they are


@dataclass(frozen=True)
class Structure:
    """nodes: by name, what each is, its attributes apart. attributes: of a node, by name. weights: float constants by name,
    with dtype, shape and digest. constants: digests of the others, which TensorRT builds into the engine."""

    nodes: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, dict[str, str]] = field(default_factory=dict)
    weights: dict[str, tuple[str, tuple[int, ...], str]] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)

    @classmethod
    def told(cls, kept: Mapping[str, Any]) -> Structure:
        """As a manifest has it."""
        weights = {name: (dtype, tuple(shape), digest) for name, (dtype, shape, digest) in kept["weights"].items()}
        return cls(kept["nodes"], kept["attributes"], weights, kept["constants"])


def of(model: ModelProto, folder: Path) -> Structure:
    """Of a lowered model, whose external data lies in `folder`."""
    found = Structure()
    for graph in onnx_model.all_graphs(model.graph):
        for tensor in graph.initializer:
            _add_constant(found, tensor.name, tensor, folder)
        for node in graph.node:
            _add_node(found, node, folder)
    return found


def constants(model: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """Initializers, and the values of Constant nodes under the names of their outputs; those of subgraphs too."""
    for graph in onnx_model.all_graphs(model.graph):
        yield from ((tensor.name, tensor) for tensor in graph.initializer)
        for node in graph.node:
            for attribute in node.attribute if node.op_type == "Constant" else ():
                if attribute.name == "value":
                    yield node.output[0], attribute.t


def _add_constant(found: Structure, name: str, tensor: TensorProto, folder: Path) -> None:
    dtype, digest = dtype_name(tensor.data_type), _digest(tensor, folder)
    if dtype in _FLOATS:
        found.weights[name] = dtype, tuple(tensor.dims), digest
    else:
        found.constants[name] = f"{dtype} {list(tensor.dims)} {digest}"


def _digest(tensor: TensorProto, folder: Path) -> str:
    base = str(folder) if tensor.data_location == TensorProto.EXTERNAL else ""
    return hashlib.sha256(numpy_helper.to_array(tensor, base).tobytes()).hexdigest()[:16]


def _add_node(found: Structure, node: NodeProto, folder: Path) -> None:
    found.nodes[node.name] = f"{node.op_type} of {', '.join(node.input) or 'nothing'}"
    values: dict[str, str] = {}
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            _add_constant(found, node.output[0], attribute.t, folder)
        elif not list(onnx_model.subgraphs(NodeProto(attribute=[attribute]))):  # their nodes are there themselves
            text = str(onnx_model.attribute_values(NodeProto(attribute=[attribute])).get(attribute.name))
            values[attribute.name] = text if len(text) <= _LONG else hashlib.sha256(text.encode()).hexdigest()[:16]
    if values:
        found.attributes[node.name] = values


def differences(built: Structure, new: Structure) -> list[str]:
    """What keeps a model from giving its weights to an engine that was built from another, in words."""
    return [*_nodes(built, new), *_weights(built, new), *_constants(built, new)]


def _nodes(built: Structure, new: Structure) -> Iterator[str]:
    for name, what in built.nodes.items():
        if name not in new.nodes:
            yield f"node {name} ({what.split(' ', 1)[0]}) is missing"
        elif new.nodes[name] != what:
            yield f"node {name} is {new.nodes[name]}, it was {what}"
        else:
            yield from _attributes(name, built.attributes.get(name, {}), new.attributes.get(name, {}))
    for name, what in new.nodes.items():
        if name not in built.nodes:
            yield f"node {name} ({what.split(' ', 1)[0]}) is new"


def _attributes(node: str, built: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*built, *new}):
        if built.get(name) != new.get(name):
            yield f"node {node} has {name} {new.get(name, 'left out')}, it was {built.get(name, 'left out')}"


def _weights(built: Structure, new: Structure) -> Iterator[str]:
    for name, (dtype, shape, _) in built.weights.items():
        if name not in new.weights:
            yield f"weight {name} is missing"
        elif new.weights[name][:2] != (dtype, shape):
            other, sizes, _ = new.weights[name]
            yield f"weight {name} is {other} {list(sizes)}, the plan takes {dtype} {list(shape)}"
    yield from (f"weight {name} is not in the plan" for name in new.weights if name not in built.weights)


def _constants(built: Structure, new: Structure) -> Iterator[str]:
    for name in sorted({*built.constants, *new.constants}):
        if built.constants.get(name) != new.constants.get(name):
            yield f"constant {name}, which TensorRT builds into the engine, is another"
