"""Integers of 8 bits inside a model: as int32, which TensorRT computes with. Inputs and outputs keep their type.

TensorRT takes uint8 into a Cast and out of one, nowhere else, and int8 around quantization.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert.graph import GraphView

_TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
# Ops whose results are the same numbers in int32 ...
_SELECT = frozenset(("Clip", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod", "Sign"))
# ... that only move elements: int8 may stay there ...
_MOVE = frozenset(
    (
        "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad", "Reshape",
        "ReduceMax", "ReduceMin", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile",
        "Transpose", "Unsqueeze", "Where",
    )
)  # fmt: skip
# ... that pass the type's limits and go on from its other end ...
_WRAP = frozenset(("Abs", "Add", "Div", "Mul", "Neg", "ReduceProd", "ReduceSum", "Sub", "Sum"))
# ... and that TensorRT has for floats, which hold 8 bits exactly.
_FLOAT = frozenset(("GlobalMaxPool", "MaxPool", "Relu"))


def widen(model: ModelProto, folder: Path) -> int:
    """Compute with uint8 and int8 in int32, in place, in the main graph; returns in how many nodes. folder: of external data."""
    if not any(_is_narrow(node) for node in model.graph.node) and not _TYPES.keys() & set(_declared(model)):
        return 0
    view = onnx_graph.views(model, folder)[0]
    return _Widened(model.graph, view).run()


def _is_narrow(node: NodeProto) -> bool:
    return node.op_type == "Cast" and any(a.name == "to" and a.i in _TYPES.values() for a in node.attribute)


def _declared(model: ModelProto) -> Iterator[str]:
    for value in (*model.graph.input, *model.graph.output):
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
            yield onnx_model.dtype_name(value.type.tensor_type.elem_type)
    for tensor in model.graph.initializer:
        yield onnx_model.dtype_name(tensor.data_type)


class _Widened:
    """One pass over a graph, its nodes in order. wide: tensors of 8 bits to the int32 tensors that stand for them."""

    def __init__(self, graph: GraphProto, view: GraphView) -> None:
        self.graph, self.view = graph, view
        self.dtypes = {name: view.info(name).dtype for node in graph.node for name in (*node.input, *node.output)}
        self.outputs = {o.name for o in graph.output}
        self.inputs = {i.name for i in graph.input}
        self.wide: dict[str, str] = {}
        self.nodes: list[NodeProto] = []
        self.made: set[str] = set()
        self.readers = Counter(name for node in graph.node for name in {*node.input, *onnx_model.captured(node)})

    def run(self) -> int:
        count = 0
        for node in list(self.graph.node):
            if self._goes(node):
                count += 1
                self._write(node)
            else:
                self._narrow_again(node)
                self._keep(node)
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        return count

    def _goes(self, node: NodeProto) -> bool:
        small = {self.dtypes[n] for n in (*node.input, *node.output) if n} & _TYPES.keys()
        if not small or node.domain not in onnx_model.STANDARD_DOMAINS:
            return False
        if node.op_type == "Cast":
            source, target = self.dtypes[node.input[0]], self.dtypes[node.output[0]]
            into = target in _TYPES and (node.output[0] not in self.outputs or bool(self.readers[node.output[0]]))
            out_of = source in _TYPES and (node.input[0] in self.wide or node.input[0] not in self.inputs)
            return "uint8" in small and (into or out_of)
        moves = node.op_type in _MOVE and ("uint8" in small or any(n in self.wide for n in node.input))
        passes = node.op_type == "Identity" and node.input[0] in self.inputs and node.output[0] in self.outputs
        return (node.op_type in _SELECT | _WRAP | _FLOAT or moves) and not passes

    def _keep(self, node: NodeProto) -> None:
        self.nodes.append(node)
        self.made.update(node.output)

    def _add(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self._keep(helper.make_node(op_type, inputs, [output], name=f"{output}_{op_type}", **attributes))
        return output

    def _constant(self, output: str, value: int) -> str:
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.int32), output))
        return output

    def _as_int32(self, name: str) -> str:
        if self.dtypes.get(name) not in _TYPES:
            return name
        if name not in self.wide:
            value = self.view.constant(name)
            self.wide[name] = f"{name}_int32"
            if value is not None:
                self.graph.initializer.append(numpy_helper.from_array(value.astype(np.int32), self.wide[name]))
            else:
                self._add("Cast", [name], self.wide[name], to=TensorProto.INT32)
        return self.wide[name]

    def _narrow_again(self, node: NodeProto) -> None:
        """What a node that stays reads of 8 bits must be there."""
        for name in {*node.input, *onnx_model.captured(node)} & self.wide.keys():
            if name not in self.made and name not in self.inputs and self.view.constant(name) is None:
                self._add("Cast", [self.wide[name]], name, to=_TYPES[self.dtypes[name]])

    def _write(self, node: NodeProto) -> None:
        new = NodeProto()
        new.CopyFrom(node)
        floats = node.op_type in _FLOAT
        new.input[:] = [self._as_int32(name) for name in node.input]
        if floats:
            new.input[:] = [self._add("Cast", [new.input[0]], f"{node.output[0]}_float", to=TensorProto.FLOAT)]
        self._keep(new)
        for index, name in enumerate(node.output):
            dtype = self.dtypes.get(name, "")
            if dtype in _TYPES:
                self.wide[name] = new.output[index] = f"{name}_int32"
                self._finish(node, new, index, dtype)
        if node.op_type == "Cast" and self.dtypes[node.output[0]] in _TYPES:
            next(a for a in new.attribute if a.name == "to").i = TensorProto.INT32
        for name in node.output:
            if name in self.wide and name in self.outputs:
                self._add("Cast", [self.wide[name]], name, to=_TYPES[self.dtypes[name]])

    def _finish(self, node: NodeProto, new: NodeProto, index: int, dtype: str) -> None:
        """Behind an op in floats a Cast; behind one that passes the limits of 8 bits their remainder."""
        name = new.output[index]
        if node.op_type in _FLOAT:
            new.output[index] = f"{name}_float"
            self._add("Cast", [new.output[index]], name, to=TensorProto.INT32)
        elif node.op_type in _WRAP or (node.op_type == "Cast" and self._wraps(node)):
            raw = new.output[index] = f"{name}_raw"
            offset = 128 if dtype == "int8" else 0
            whole, half = self._constant(f"{name}_256", 256), self._constant(f"{name}_128", offset)
            raised = self._add("Add", [raw, half], f"{name}_raised")
            self._add("Sub", [self._add("Mod", [raised, whole], f"{name}_mod"), half], name)

    def _wraps(self, node: NodeProto) -> bool:
        return self.dtypes[node.input[0]] in ("int32", "int64", "int8", "uint8")
