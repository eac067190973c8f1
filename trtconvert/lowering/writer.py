"""Writes standard nodes in the place of one node, with the inputs and outputs that the node has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from onnx import FunctionProto, NodeProto, TensorProto, helper, numpy_helper

from trtconvert import model as onnx_model
from trtconvert.errors import ConvertError

Known = Callable[[str], "tuple[str, int | None]"]  # dtype ("" if unknown) and rank of a tensor
Outputs = tuple[str, ...]  # names, "" for one that is not there


class Writer:
    """Writes standard nodes for one node: `op.Mul(a, b)` is a node, its value the name of what it makes.

    The op's inputs are named x0, x1, ...; dtype is that of its data, "" if unknown.
    """

    def __init__(self, node: NodeProto, opset: int, known: Known) -> None:
        self.node, self.opset = node, opset
        self.nodes: list[NodeProto] = []
        self.attributes = onnx_model.attribute_values(node)
        self.names = {f"x{i}": name for i, name in enumerate(node.input) if name}
        self.known = cache(known)

    def __getattr__(self, op_type: str) -> Callable[..., str]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)
        return partial(self.node_of, op_type)

    def node_of(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """A node of that type; the name of what it makes."""
        output = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], **attributes))
        return output

    def inputs(self) -> list[str]:
        """The names by which its inputs go, "" for one that is not there."""
        return [name and f"x{i}" for i, name in enumerate(self.node.input)]

    def body(self, outputs: Outputs) -> FunctionProto:
        """What was written, as a body for `calls.Calls`."""
        made = [made for made, name in zip(outputs, self.node.output, strict=False) if name]
        inputs = list(filter(None, self.inputs()))
        return helper.make_function("", "", inputs, made, self.nodes, [helper.make_opsetid("", self.opset)])

    def refuse(self, why: str, fix: str | None = None) -> ConvertError:
        name = self.node.name or next(iter(self.node.output), "")
        return ConvertError(f"{self.node.op_type} {why}", where=f"node {name}", fix=fix)

    def wants(self, *outputs: int) -> bool:
        """Whether any of these outputs of the op is there."""
        return any(self.node.output[i] for i in outputs if i < len(self.node.output))

    def _of(self, name: str) -> tuple[str, int | None]:
        """Dtype and rank of the input that goes by that name."""
        if name not in self.names:
            raise self.refuse("lacks an input that it needs", "export it again")
        return self.known(self.names[name])

    def dtype(self, name: str) -> str:
        return self._of(name)[0]

    def rank(self, name: str) -> int | None:
        return self._of(name)[1]

    def axes_from(self, axis: int, x: str) -> list[int]:
        """The axes from `axis` to the last, counted from the end."""
        rank = self.rank(x)
        if axis >= 0 and rank is None:
            raise self.refuse(f"has axis {axis} of a tensor of unknown rank", "export it with axis -1, or with shapes")
        return list(range(axis if axis < 0 else axis - (rank or 0), 0))

    def tensor(self, value: Any, dtype: Any) -> str:
        """A constant."""
        return self.Constant(value=numpy_helper.from_array(np.asarray(value, dtype)))

    def number(self, value: float, like: str) -> str:
        """A constant of an input's dtype."""
        if self.dtype(like):
            return self.tensor(value, onnx_model.numpy_dtype(self.dtype(like)))
        return self.CastLike(self.tensor(value, np.float32), like)

    def wide(self, x: str, like: str = "") -> str:
        """x as float32; like: the input whose dtype it has, itself unless given."""
        return x if self.dtype(like or x) == "float32" else self.Cast(x, to=TensorProto.FLOAT)

    def narrow(self, x: str, like: str) -> str:
        """A float32 tensor in an input's dtype."""
        dtype = self.dtype(like)
        if dtype == "float32":
            return x
        return self.Cast(x, to=onnx_model.elem_type(dtype)) if dtype else self.CastLike(x, like)

    def reduce(self, op_type: str, x: str, axes: Sequence[int], since: int, keepdims: int = 1) -> str:
        """A reduction; from opset `since` on its axes are an input."""
        if self.opset >= since:
            return self.node_of(op_type, x, self.tensor(axes, np.int64), keepdims=keepdims)
        return self.node_of(op_type, x, axes=axes, keepdims=keepdims)

    def mean(self, x: str, axes: Sequence[int]) -> str:
        return self.reduce("ReduceMean", x, axes, since=18)

    def total(self, *terms: str) -> str:
        """The sum of the terms that are there."""
        present = [t for t in terms if t]
        result = present[0]
        for term in present[1:]:
            result = self.Add(result, term)
        return result
