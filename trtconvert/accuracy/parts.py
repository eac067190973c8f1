"""Parts of a model, cut out between any of its tensors and run in onnxruntime."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert import reference
from trtconvert.model import numpy_dtype

Arrays = Mapping[str, NDArray[Any]]
NOTHING: Arrays = {}
NO_DTYPES: Mapping[str, str] = {}
_AGAIN = "__again"  # behind the name of an output that is given, where its node must run for another of its outputs


def needed(graph: GraphProto, outputs: Iterable[str], given: Collection[str] = ()) -> tuple[list[int], set[str]]:
    """The nodes of the graph that make `outputs` from `given`, by index and in order, and all names that these read and
    do not make: of given tensors, inputs and initializers."""
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    seen, indices, outside = set[str](), set[int](), set[str]()
    todo = list(outputs)
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        index = None if name in given else makers.get(name)
        if index is None:
            outside.add(name)
        elif index not in indices:
            indices.add(index)
            node = graph.node[index]
            todo += [each for each in (*node.input, *onnx_model.captured(node)) if each]
    return sorted(indices), outside


def cut_out(
    model: ModelProto,
    outputs: Iterable[str],
    given: Arrays = NOTHING,
    dtypes: Mapping[str, str] = NO_DTYPES,
) -> ModelProto:
    """The part of a model that makes these outputs.

    given: tensors that become inputs, of these shapes. Of them and of the model's inputs those stay that the part reads.
    dtypes: of outputs that the model does not declare; onnxruntime needs none, TensorRT's parser does.
    """
    graph, wanted = model.graph, list(outputs)
    indices, outside = needed(graph, wanted, given)
    part = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    part.graph.name = graph.name
    for index in indices:
        node = part.graph.node.add()
        node.CopyFrom(graph.node[index])
        node.output[:] = [f"{name}{_AGAIN}" if name in given else name for name in node.output]
    part.graph.input.extend(value for value in graph.input if value.name in outside and value.name not in given)
    for name in sorted(outside.intersection(given)):
        dtype, shape = onnx_model.elem_type(given[name].dtype.name), given[name].shape
        part.graph.input.append(helper.make_tensor_value_info(name, dtype, shape))
    part.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in outside)
    part.graph.sparse_initializer.extend(t for t in graph.sparse_initializer if t.values.name in outside)
    declared = {value.name: value for value in graph.output}
    part.graph.output.extend(declared.get(name) or _output(name, dtypes.get(name, "")) for name in wanted)
    return part


def _output(name: str, dtype: str) -> ValueInfoProto:
    if not dtype:
        return ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, onnx_model.elem_type(dtype), None)


@dataclass(frozen=True)
class Parts:
    """A model of which any part can be run. folder: of its external data."""

    model: ModelProto
    folder: Path

    @cached_property
    def dtypes(self) -> dict[str, str]:
        """Of the main graph's tensors, as far as known."""
        return {name: info.dtype for name, info in onnx_graph.infer(self.model)[0].items() if info.dtype}

    @cached_property
    def made(self) -> frozenset[str]:
        """Tensors that nodes of the main graph make."""
        return frozenset(name for node in self.model.graph.node for name in node.output if name)

    def nodes(self, outputs: Iterable[str], given: Collection[str]) -> list[NodeProto]:
        """The nodes that make these tensors from the given ones."""
        return [self.model.graph.node[index] for index in needed(self.model.graph, outputs, given)[0]]

    def run(self, outputs: Iterable[str], feeds: Arrays, given: Arrays = NOTHING) -> dict[str, NDArray[Any]]:
        """These tensors, computed from the model's inputs and from given tensors, all brought to the model's dtypes.
        ConvertError where nothing runs the part."""
        wanted = list(dict.fromkeys(outputs))
        cast = {name: self._as_declared(name, value) for name, value in given.items()}
        asked = [name for name in wanted if name not in cast]
        found: dict[str, NDArray[Any]] = {}
        if asked:
            part = cut_out(self.model, asked, cast)
            known = {**{name: self._as_declared(name, value) for name, value in feeds.items()}, **cast}
            fed = {value.name: known[value.name] for value in part.graph.input if value.name in known}
            found = reference.run(part, self.folder, fed)
        return {name: found[name] if name in found else cast[name] for name in wanted}

    def _as_declared(self, name: str, value: NDArray[Any]) -> NDArray[Any]:
        dtype = self.dtypes.get(name, "")
        return np.asarray(value).astype(numpy_dtype(dtype)) if dtype else np.asarray(value)
