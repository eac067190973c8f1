"""What nodes are as algebra: a product of factors, a sum of terms, a mean over axes, or nothing but a new name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto

from trtconvert.graph import GraphView
from trtconvert.model import STANDARD_DOMAINS, attribute_values

Parts: TypeAlias = tuple[tuple[str, float], ...]
"""Tensors, each with its power in a product or its sign in a sum."""


class Known(NamedTuple):
    """A part that is a number: the tensor, its power or sign, its value and the relative rounding of its dtype."""

    tensor: str
    power: float
    value: float
    rounding: float


class Opened(NamedTuple):
    """A tensor as a product or sum: its node's index, its coefficient, the parts that are no numbers, and the numbers."""

    node: int
    coefficient: float
    parts: Parts
    numbers: tuple[Known, ...]


# Relative: four decimal digits in float32 (0.7071 for the root of 1/2), and the rounding of products in 16-bit types.
EXACT, _ROUNDING = 1e-4, {"float16": 1e-3, "bfloat16": 4e-3}
_MOST_POWER = 16.0
_NUMPY_BROADCAST = 7  # the opset from which on operands are broadcast as numpy does it
MOST_IN_A_ROW = 8  # nodes that hand on or move a tensor; exporters write three at most
FLOATS = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE))
RESHAPES = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze"))
MOVERS = RESHAPES | {"Transpose", "Identity"}
"""Op types that move the elements of their first input and change none."""
PRODUCTS = frozenset(("Mul", "Div", "Reciprocal", "Sqrt", "Neg", "Pow"))
SUMS = frozenset(("Add", "Sub", "Sum"))
PASSES = frozenset(("Identity", "Cast", "Dropout"))
MEANS = frozenset(("ReduceMean", "GlobalAveragePool", "Mul", "Div", "Unsqueeze", "Reshape"))
"""Op types whose result can be a mean."""


@dataclass(frozen=True)
class Averaged:
    """A tensor that is the mean of `x` over `axes` (counted from the front where the rank is known, else as written);
    axes None if they are no constant. fault: why it is no mean after all."""

    x: str
    axes: tuple[int, ...] | None
    nodes: frozenset[int]
    node: NodeProto
    fault: str = ""


class Reading:
    """A graph read as algebra; what was read once is remembered."""

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self._products: dict[str, Opened | None] = {}
        self._totals: dict[str, Opened | None] = {}
        self._means: dict[str, Averaged | None] = {}
        self._chains: dict[str, list[tuple[str, frozenset[int]]]] = {}

    def product(self, tensor: str) -> Opened | None:
        """The tensor as a product of factors, if its node is one."""
        if tensor not in self._products:
            self._products[tensor] = self._open(tensor, _product)
        return self._products[tensor]

    def total(self, tensor: str) -> Opened | None:
        """The tensor as a sum of terms, if its node is one."""
        if tensor not in self._totals:
            self._totals[tensor] = self._open(tensor, _total)
        return self._totals[tensor]

    def mean(self, tensor: str) -> Averaged | None:
        """The tensor as a mean with dimensions kept, if it is one."""
        if tensor not in self._means:
            self._means[tensor] = _mean(self.view, tensor)
        return self._means[tensor]

    def handed_on(self, tensor: str) -> list[tuple[str, frozenset[int]]]:
        """The tensor, and those that nodes without effect made it from; each with these nodes."""
        if tensor not in self._chains:
            chain = [(tensor, frozenset[int]())]
            while (index := self.view.producers.get(chain[-1][0])) is not None and len(chain) < MOST_IN_A_ROW:
                node = self.view.nodes[index]
                if node.op_type not in PASSES or node.domain not in STANDARD_DOMAINS or not passes(self.view, node):
                    break
                chain.append((node.input[0], chain[-1][1] | {index}))
            self._chains[tensor] = chain
        return self._chains[tensor]

    def _open(self, tensor: str, how: Callable[[GraphView, NodeProto], tuple[float, Parts] | None]) -> Opened | None:
        index = self.view.producers.get(tensor)
        node = None if index is None else self.view.nodes[index]
        if node is None or index is None or node.domain not in STANDARD_DOMAINS or self.view.opset < _NUMPY_BROADCAST:
            return None
        opened = how(self.view, node)
        if opened is None:
            return None
        parts, numbers = [], []
        for tensor, power in opened[1]:
            number = self.scalar(tensor)
            if number is None:
                parts.append((tensor, power))
            else:
                numbers.append(Known(tensor, power, *number))
        return Opened(index, opened[0], tuple(parts), tuple(numbers))

    def scalar(self, tensor: str) -> tuple[float, float] | None:
        """Value and relative rounding of a constant that is the same number in every element."""
        value = self.view.uniform(tensor)
        return None if value is None else (value[0], _ROUNDING.get(value[1], EXACT))


def passes(view: GraphView, node: NodeProto) -> bool:
    """Whether the node hands on its first input: Identity, a Dropout at inference, a Cast to a float type."""
    if node.op_type == "Identity":
        return True
    if node.op_type == "Cast":
        return any(a.name == "to" and a.i in FLOATS for a in node.attribute)
    if node.op_type != "Dropout" or any(node.output[1:]):
        return False
    training = node.input[2] if len(node.input) > 2 else ""
    if not training:
        return view.opset >= 7
    value = view.constant(training)
    return value is not None and value.size == 1 and not value.reshape(-1)[0]


def _product(view: GraphView, node: NodeProto) -> tuple[float, Parts] | None:
    """A node as coefficient and factors, if it is a product."""
    kind = node.op_type
    if kind == "Mul":
        return 1.0, ((node.input[0], 1.0), (node.input[1], 1.0))
    if kind == "Div":
        return 1.0, ((node.input[0], 1.0), (node.input[1], -1.0))
    if kind == "Reciprocal":
        return 1.0, ((node.input[0], -1.0),)
    if kind == "Sqrt":
        return 1.0, ((node.input[0], 0.5),)
    if kind == "Neg":
        return -1.0, ((node.input[0], 1.0),)
    if kind == "Pow":
        exponent = view.constant(node.input[1])
        power = float(exponent.reshape(-1)[0]) if exponent is not None and exponent.size == 1 else 0.0
        fits = exponent is not None and _fits(view, exponent, node.input[0])
        return (1.0, ((node.input[0], power),)) if fits and 0 < abs(power) <= _MOST_POWER else None
    return (1.0, ((node.input[0], 1.0),)) if passes(view, node) else None


def _fits(view: GraphView, constant: NDArray[Any], tensor: str) -> bool:
    """Whether a constant of one element has no more dimensions than the tensor it is applied to."""
    rank = view.rank(tensor)
    return constant.ndim <= (1 if rank is None else rank)


def _total(view: GraphView, node: NodeProto) -> tuple[float, Parts] | None:
    """A node as signed terms, if it is a sum."""
    kind = node.op_type
    if kind == "Add" or (kind == "Sum" and len(node.input) == 2):
        return 0.0, ((node.input[0], 1.0), (node.input[1], 1.0))
    if kind == "Sub":
        return 0.0, ((node.input[0], 1.0), (node.input[1], -1.0))
    return (0.0, ((node.input[0], 1.0),)) if passes(view, node) else None


def _mean(view: GraphView, tensor: str) -> Averaged | None:
    """The tensor as a mean with dimensions kept: ReduceMean, a ReduceSum divided by the number of elements, and a
    GlobalAveragePool, which tf2onnx writes for the last axis of a rank-3 tensor."""
    index = view.producers.get(tensor)
    if index is None:
        return None
    node = view.nodes[index]
    if node.domain not in STANDARD_DOMAINS:
        return None
    if node.op_type == "GlobalAveragePool":
        rank = view.rank(node.input[0])
        return Averaged(node.input[0], tuple(range(2, rank)) if rank else None, frozenset((index,)), node)
    if node.op_type == "ReduceMean":
        return _reduced(view, node, frozenset((index,)), view.rank(node.input[0]))
    if node.op_type in ("Unsqueeze", "Reshape"):
        return _kept_again(view, node, index, tensor)
    return _divided_sum(view, tensor) if node.op_type in ("Mul", "Div") else None


def _reduced(view: GraphView, node: NodeProto, nodes: frozenset[int], rank: int | None) -> Averaged:
    values = attribute_values(node)
    axes: Any = values.get("axes")
    if len(node.input) > 1 and node.input[1]:
        constant = view.constant(node.input[1])
        if constant is None:
            return Averaged(node.input[0], None, nodes, node)
        axes = constant.reshape(-1).tolist()
    fault = "" if values.get("keepdims", 1) else f"{node.op_type} {node.name} drops its axes (keepdims is 0)"
    if not axes:
        if values.get("noop_with_empty_axes", 0):
            return Averaged(node.input[0], (), nodes, node, f"{node.op_type} {node.name} has no axes")
        axes = range(rank) if rank else None  # none given: all of them
    if axes is None:
        return Averaged(node.input[0], None, nodes, node, fault)
    return Averaged(node.input[0], tuple(sorted(a % rank if rank else a for a in axes)), nodes, node, fault)


def _kept_again(view: GraphView, node: NodeProto, index: int, tensor: str) -> Averaged | None:
    """A ReduceMean without dimensions whose result gets them back."""
    inner = view.producers.get(node.input[0])
    reduce = None if inner is None else view.nodes[inner]
    if reduce is None or inner is None or reduce.op_type != "ReduceMean" or reduce.domain not in STANDARD_DOMAINS:
        return None
    shape = view.info(reduce.input[0]).shape
    found = _reduced(view, reduce, frozenset((index, inner)), None if shape is None else len(shape))
    if shape is None or found.axes is None:
        return None
    wanted = tuple(1 if axis in found.axes else size for axis, size in enumerate(shape))
    proven = view.info(tensor).shape == wanted and None not in wanted
    return Averaged(found.x, found.axes, found.nodes, reduce) if proven else None


def _divided_sum(view: GraphView, tensor: str) -> Averaged | None:
    """ReduceSum over axes of known sizes, divided by their product; not by one less, as an unbiased variance is."""
    coefficient, rounding, nodes, source = 1.0, 1e-6, set(), tensor
    while True:
        index = view.producers.get(source)
        node = None if index is None else view.nodes[index]
        if node is None or index is None or node.domain not in STANDARD_DOMAINS:
            return None
        nodes.add(index)
        if node.op_type == "ReduceSum":
            break
        opened = _product(view, node)
        if opened is None:
            return None
        coefficient *= opened[0]
        rest = []
        for name, power in opened[1]:
            value = view.constant(name)
            if value is not None and value.size == 1 and value.reshape(-1)[0] and _fits(view, value, tensor):
                coefficient *= float(value.reshape(-1)[0]) ** power
                rounding = max(rounding, _ROUNDING.get(value.dtype.name, 0.0))
            else:
                rest.append((name, power))
        if len(rest) != 1 or rest[0][1] != 1.0:
            return None
        source = rest[0][0]
    shape = view.info(node.input[0]).shape
    found = _reduced(view, node, frozenset(nodes), None if shape is None else len(shape))
    if shape is None or found.axes is None:
        return None
    sizes = [shape[axis] for axis in found.axes]
    count = float(np.prod([s for s in sizes if isinstance(s, int)]))
    near = abs(coefficient * count - 1.0) <= min(rounding, 0.4 / max(count, 1.0))
    if not all(isinstance(s, int) for s in sizes) or not near:
        fault = f"{node.op_type} {node.name} is not divided by the number of elements"
        return Averaged(found.x, found.axes, found.nodes, node, found.fault or fault)
    return found


def axis_of(axes: tuple[int, ...], rank: int | None) -> int | None:
    """Axes as one number: -k for the last k, 0 and above for that one alone; None if they are neither."""
    if rank is None:
        return -len(axes) if sorted(axes) == list(range(-len(axes), 0)) and axes else None
    if list(axes) == list(range(rank - len(axes), rank)) and axes:
        return -len(axes)
    return axes[0] if len(axes) == 1 else None
