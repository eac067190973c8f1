"""Models of any length out of small blocks, and faults planted in one node of them, as a wrong engine would have them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

ROWS, WIDTH, WIDE = 4, 32, 4096
Change = Callable[[ModelProto, NodeProto], None]


class Chain:
    """A model in the making: blocks one behind the other, each reading what the last one made. nodes: by kind of block."""

    def __init__(self, seed: int, width: int = WIDTH) -> None:
        self.random, self.width = np.random.default_rng(seed), width
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.last, self.kinds = "x", dict[str, list[str]]()

    def weight(self, value: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(value, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def node(self, kind: str, op_type: str, *inputs: str, **attributes: object) -> str:
        """Its output; the node is a site for faults of that kind, if it has one."""
        name = f"n{len(self.nodes)}"
        output = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], name=name, **attributes))
        if kind:
            self.kinds.setdefault(kind, []).append(name)
        return output

    def floats(self, *shape: int) -> str:
        """Factors and terms that leave numbers their size."""
        return self.weight(1 + self._normal(*shape) / 4)

    def _normal(self, *shape: int) -> np.ndarray:
        return self.random.standard_normal(shape, dtype=np.float32)

    def block(self, kind: str) -> None:
        """x + f(x), so that what goes wrong is not lost again; norms and scales, which lose nothing, as they are."""
        x, d = self.last, self.width
        if kind == "norm":
            self.last = self._norm(x)
        elif kind == "scale":
            self.last = self.node(kind, "Mul", x, self.floats(d))
        else:
            self.last = self.node("", "Add", x, self._branch(kind, x))

    def _norm(self, x: str) -> str:
        return self.node(
            "norm", "LayerNormalization", x, self.floats(self.width), self.floats(self.width), epsilon=1e-5
        )

    def _branch(self, kind: str, x: str) -> str:
        d = self.width
        if kind == "matmul":
            return self.node(kind, "MatMul", x, self.weight(self._normal(d, d) / np.float32(np.sqrt(d))))
        if kind == "gelu":
            return self.node(kind, "Gelu", self._norm(x))
        if kind == "gather":
            return self.node(kind, "Gather", x, self.weight(self.random.permutation(d).astype(np.int64)), axis=-1)
        scale, zero = self.weight(np.array(0.05, np.float32)), self.weight(np.array(128, np.uint8))
        return self.node("", "DequantizeLinear", self.node(kind, "QuantizeLinear", x, scale, zero), scale, zero)

    def plain(self, kind: str) -> None:
        """LayerNorm, GELU or a product with a bias, without x."""
        x, d = self.last, self.width
        if kind == "norm":
            self.last = self._norm(x)
        elif kind == "gelu":
            self.last = self.node("gelu", "Gelu", x)
        else:
            weight = self.weight(self._normal(d, d) / np.float32(np.sqrt(d)))
            self.last = self.node("", "Add", self.node("matmul", "MatMul", x, weight), self.floats(d))

    def model(self) -> ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "chain",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, self.width])],
            [helper.make_tensor_value_info(self.last, TensorProto.FLOAT, [ROWS, self.width])],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@dataclass(frozen=True)
class Fault:
    """What is done to a node of that kind of block."""

    kind: str
    change: Change


def _replace(model: ModelProto, node: NodeProto, position: int, value: np.ndarray) -> None:
    """Give the node a constant of its own there."""
    name = f"{node.name}_{position}_wrong"
    node.input[position] = name
    model.graph.initializer.append(numpy_helper.from_array(value, name))


def _constant(model: ModelProto, node: NodeProto, position: int) -> np.ndarray:
    tensor = next(t for t in model.graph.initializer if t.name == node.input[position])
    return numpy_helper.to_array(tensor)


def _epsilon(_: ModelProto, node: NodeProto) -> None:
    next(a for a in node.attribute if a.name == "epsilon").f = 0.02


def _transposed(model: ModelProto, node: NodeProto) -> None:
    _replace(model, node, 1, np.ascontiguousarray(_constant(model, node, 1).T))


def _tanh(_: ModelProto, node: NodeProto) -> None:
    node.attribute.append(helper.make_attribute("approximate", "tanh"))


def _clamped(model: ModelProto, node: NodeProto) -> None:
    _replace(model, node, 1, np.minimum(_constant(model, node, 1), WIDTH - 4))


def _zero_point(model: ModelProto, node: NodeProto) -> None:
    _replace(model, node, 2, np.array(0, np.uint8))


def _channel(model: ModelProto, node: NodeProto) -> None:
    scale = _constant(model, node, 1).copy()
    scale[1234 % scale.size] += 1
    _replace(model, node, 1, scale)


def _nan_tail(model: ModelProto, node: NodeProto) -> None:
    scale = _constant(model, node, 1).copy()
    scale[-1] = np.nan
    _replace(model, node, 1, scale)


FAULTS = {
    "epsilon off": Fault("norm", _epsilon),
    "transposed weights": Fault("matmul", _transposed),
    "tanh for erf": Fault("gelu", _tanh),
    "clamped ids": Fault("gather", _clamped),
    "uint8 zero point": Fault("quantize", _zero_point),
    "one wrong channel": Fault("scale", _channel),
    "NaN at the tail": Fault("scale", _nan_tail),
}


def planted(model: ModelProto, node: str, change: Change) -> ModelProto:
    """A copy in which the node of that name, if it has it, is wrong."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for found in copy.graph.node:
        if found.name == node:
            change(copy, found)
    return copy


def relative(got: NDArray[Any], want: NDArray[Any], rounded: NDArray[Any] | None, floor: float = 2e-3) -> float:
    """Relative L2 of got - want, or a tenth of the largest error relative to the largest element, over 2 x that L2 of
    rounded - want plus `floor`; infinite where NaN, Inf, a shape or an integer differs."""
    if got.shape != want.shape:
        return math.inf
    a, b = got.astype(np.float64), want.astype(np.float64)
    if want.dtype.kind in "iub" or got.dtype.kind in "iub":
        return math.inf if (a != b).any() else 0.0
    finite = np.isfinite(b)
    same = np.where(finite, np.isfinite(a), np.isnan(a) & np.isnan(b) | (a == b))
    if not same.all():
        return math.inf
    a, b = a[finite], b[finite]
    size = _size(b) or 1.0
    twin = rounded.astype(np.float64)[finite] if rounded is not None and rounded.shape == want.shape else b
    peak = float(np.abs(a - b).max(initial=0.0)) / (float(np.abs(b).max(initial=0.0)) or 1.0)
    return max(_size(a - b) / size, peak / 10) / (2 * _size(twin - b) / size + floor)


def _size(values: NDArray[Any]) -> float:
    return math.sqrt(float(np.square(values).sum()))
