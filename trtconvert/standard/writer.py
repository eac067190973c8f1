"""Writes nodes in the place of a standard node, knowing what is known of its inputs before the engine is built."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import FunctionProto, NodeProto

from trtconvert.graph import GraphView
from trtconvert.lowering import branches, functions
from trtconvert.lowering.writer import Outputs, Writer
from trtconvert.model import numpy_dtype

MAX_TABLE = 1 << 24  # elements of a constant that a writer makes
Written: TypeAlias = "Outputs | FunctionProto | None"


class Standard(Writer):
    """Writes nodes for one standard node; knows what is known of its inputs."""

    def __init__(self, node: NodeProto, view: GraphView, values: branches.Values, native: bool) -> None:
        super().__init__(node, view.opset, lambda name: (view.info(name).dtype, view.rank(name)))
        self.view, self.values, self.native = view, values, native

    def value(self, x: str) -> NDArray[Any] | None:
        """The input's value, if it is known before the engine is built."""
        return branches.value(self.view, self.names[x], self.values) if x else None

    def number_of(self, x: str, default: Any = None) -> Any:
        """The input's only element, if it is known; default if there is no such input."""
        found = self.value(x) if x else np.asarray(default)
        return found.item() if found is not None and found.size == 1 else None

    def sizes(self, x: str) -> list[int | None] | None:
        """The input's dimensions, None for those that are not known; None if not even their number is."""
        shape = self.view.info(self.names[x]).shape
        return None if shape is None else [d if isinstance(d, int) else None for d in shape]

    def function(self) -> FunctionProto | None:
        """The op as ONNX defines it by others."""
        return functions.body(self.node, self.opset, self.view)

    def ints(self, *values: int) -> str:
        """A constant vector."""
        return self.tensor(values, np.int64)

    def like(self, value: Any, x: str) -> str:
        """A constant tensor of an input's dtype."""
        dtype = self.dtype(x)
        return self.tensor(value, numpy_dtype(dtype)) if dtype else self.CastLike(self.tensor(value, np.float32), x)

    def check_table(self, *sizes: int) -> None:
        """ConvertError if a constant of these sizes would be too large to put into a model."""
        if math.prod(sizes) > MAX_TABLE:
            shape = " x ".join(map(str, sizes))
            raise self.refuse(f"would take a table of {shape} elements", "use smaller sizes, or give a plugin for it")

    def known_sizes(self, x: str) -> list[int]:
        """The input's dimensions; ConvertError if one is open."""
        sizes = self.sizes(x)
        if sizes is None or None in sizes:
            raise self.refuse("needs known sizes in this form", "fix the dimensions of its input, with --shape for one")
        return [s for s in sizes if s is not None]

    def moved(self, x: str, rank: int, axis: int, to: int) -> str:
        """x with one axis moved."""
        order = [a for a in range(rank) if a != axis % rank]
        order.insert(to % rank, axis % rank)
        return x if order == list(range(rank)) else self.Transpose(x, perm=order)

    def several(self, op_type: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """A node of that type with so many outputs; their names."""
        self.node_of(op_type, *inputs, **attributes)
        first = self.nodes[-1].output[0]
        self.nodes[-1].output.extend(f"{first}_{i}" for i in range(1, count))
        return list(self.nodes[-1].output)

    def unsqueezed(self, x: str, axis: int) -> str:
        """x with one more axis, of size 1; from opset 13 on axes are an input."""
        return self.Unsqueeze(x, self.ints(axis)) if self.opset >= 13 else self.Unsqueeze(x, axes=[axis])
