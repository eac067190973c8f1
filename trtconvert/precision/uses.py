"""What a tensor is for, where that decides how exact it must be: masks, sizes, counts, angles, divisors. By what makes it and
what reads it, in its own graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

from onnx import NodeProto

from trtconvert.graph import GraphView
from trtconvert.model import STANDARD_DOMAINS, captured

_MOVES = frozenset(
    (
        *("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Expand", "Slice", "Flatten", "Tile", "Gather"),
        *("Concat", "Cast", "Split"),
    )
)
_ELEMENTWISE = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Floor", "Ceil", "Round", "Mod", "Min", "Max", "Clip", "Pow"),
        *("Sin", "Cos", "CumSum", "Where", "Sqrt", "ReduceProd"),
    )
)
_MASKING = frozenset(
    (*_MOVES, "Add", "Where", "Mul", "Div", "Max", "Min", "Trilu")
)  # what is far below zero stays there
_SCALE = 1 / 64  # a factor that leaves a mask's numbers far enough below zero
_DIVIDED = {"Div": 1, "Reciprocal": 0, "Log": 0, "Sqrt": 0, "ReduceLogSum": 0}  # op to the input that must not become 0
_SQUARING = frozenset(("Mul", "Pow", "Div", "ReduceMean", "ReduceSum", "GlobalAveragePool"))
_ANGULAR = ("Sin", "Cos", "Tan")
_DEPTH = 12

_Question: TypeAlias = "Callable[[Uses, GraphView, str, int], bool]"


def _once(question: _Question) -> Callable[..., bool]:
    """The question, asked once for each tensor, and not deeper than _DEPTH nodes: then the answer is no."""

    @wraps(question)
    def ask(self: Uses, view: GraphView, name: str, depth: int = _DEPTH) -> bool:
        key = (question.__name__, id(view), name)
        if key not in self.answers:
            if not depth or not name:
                return False
            self.answers[key] = False  # a ring
            self.answers[key] = question(self, view, name, depth - 1)
        return self.answers[key]

    return ask


class Uses:
    """Answers on the tensors of one model, as long as it is not changed."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, int, str], bool] = {}

    @_once
    def is_mask(self, view: GraphView, name: str, depth: int) -> bool:
        """Whether all that the tensor's large negative values do is to vanish in a Softmax."""
        readers = _readers(view, name)
        return bool(readers) and name not in view.outputs and all(self._masks(view, n, name, depth) for n in readers)

    def _masks(self, view: GraphView, node: NodeProto, name: str, depth: int) -> bool:
        if node.domain not in STANDARD_DOMAINS or name in captured(node):
            return False
        if node.op_type == "Softmax":
            return True
        if node.op_type not in _MASKING or (node.op_type in ("Where", "Gather") and name in _choosing(node)):
            return False
        if node.op_type in ("Mul", "Div"):
            factors = [abs(found[0]) for i in node.input if i != name and (found := view.uniform(i)) is not None]
            if any((f if node.op_type == "Mul" else 1 / (f or 1)) < _SCALE for f in factors):
                return False
        return all(self.is_mask(view, made, depth) for made in node.output if made)

    @_once
    def is_size(self, view: GraphView, name: str, depth: int) -> bool:
        """Whether it is computed from the sizes of tensors, and constants, alone."""
        node = view.producer(name)
        if node is None or node.domain not in STANDARD_DOMAINS:
            return False
        if node.op_type in ("Shape", "Size"):
            return True
        made = _made(view, node)
        known = node.op_type in (*_ELEMENTWISE, *_MOVES, "Range")
        return known and bool(made) and all(self.is_size(view, each, depth) for each in made)

    @_once
    def is_count(self, view: GraphView, name: str, depth: int) -> bool:
        """Whether its numbers come from integers: positions, ids, lengths."""
        node = view.producer(name)
        if node is None or node.domain not in STANDARD_DOMAINS:
            return False
        if node.op_type == "Range" or (node.op_type == "Cast" and "int" in view.info(node.input[0]).dtype):
            return True
        floats = [i for i in _made(view, node) if view.info(i).dtype == "float32"]
        return node.op_type in (*_ELEMENTWISE, *_MOVES) and any(self.is_count(view, each, depth) for each in floats)

    @_once
    def is_angle(self, view: GraphView, name: str, depth: int) -> bool:
        """Whether a sine or the like is taken of it, scaled or moved."""
        for node in _readers(view, name):
            if node.domain not in STANDARD_DOMAINS:
                continue
            if node.op_type in _ANGULAR:
                return True
            moved = node.op_type in (*_MOVES, "Mul", "Add", "MatMul", "Einsum")
            if moved and any(self.is_angle(view, each, depth) for each in node.output):
                return True
        return False

    @_once
    def is_divisor(self, view: GraphView, name: str, depth: int) -> bool:
        """Whether something is divided by it, or its root or logarithm is taken."""
        for node in _readers(view, name):
            place = _DIVIDED.get(node.op_type)
            if place is not None and len(node.input) > place and node.input[place] == name:
                return True
            if node.op_type == "Pow" and node.input[0] == name and (view.uniform(node.input[1]) or (1.0,))[0] < 1:
                return True
        return False

    @_once
    def leads_to_divisor(self, view: GraphView, name: str, depth: int) -> bool:
        """Whether it is a divisor or the like, or becomes one moved, or with a number added."""
        if self.is_divisor(view, name):
            return True
        steps = [node for node in _readers(view, name) if node.op_type in (*_MOVES, "Add", "Max", "Clip")]
        return any(self.leads_to_divisor(view, made, depth) for node in steps for made in node.output)

    def is_variance(self, view: GraphView, node: NodeProto) -> bool:
        """Whether the node takes a square from something, and the rest divides: E[x^2] - E[x]^2, whose parts cancel."""
        if node.op_type != "Sub" or node.domain not in STANDARD_DOMAINS:
            return False
        square = view.producer(node.input[1])
        while square is not None and square.op_type in _MOVES:
            square = view.producer(square.input[0])
        squares = square is not None and (
            (square.op_type == "Mul" and square.input[0] == square.input[1])
            or (square.op_type == "Pow" and view.uniform(square.input[1]) is not None)
        )
        return squares and self.leads_to_divisor(view, node.output[0])

    @_once
    def is_part_of_variance(self, view: GraphView, name: str, depth: int) -> bool:
        """Whether such a difference is taken of it, squared, summed or moved."""
        for node in _readers(view, name):
            if self.is_variance(view, node):
                return True
            on = node.op_type in (*_MOVES, *_SQUARING)
            if on and any(self.is_part_of_variance(view, made, depth) for made in node.output):
                return True
        return False

    def makes_part_of_variance(self, view: GraphView, node: NodeProto) -> bool:
        """Whether the node makes such a part, and not only the data that it is of."""
        if not any(self.is_part_of_variance(view, made) for made in node.output if made):
            return False
        if node.op_type in _MOVES:
            before = view.producer(node.input[0])
            return before is not None and self.makes_part_of_variance(view, before)
        return node.op_type in _SQUARING


def epsilon(view: GraphView, name: str, depth: int = 3) -> float:
    """The number that keeps the tensor from zero, since it was added to it or to what it is the root of; infinite if none was."""
    node = view.producer(name)
    if node is None or not depth:
        return math.inf
    if node.op_type in ("Sqrt", "Identity", "Cast") and node.input:
        inner = epsilon(view, node.input[0], depth - 1)
        return math.sqrt(inner) if node.op_type == "Sqrt" else inner
    if node.op_type in ("Add", "Max", "Clip"):
        added = [found[0] for i in node.input if i and (found := view.uniform(i)) is not None]
        return min((value for value in added if value > 0), default=math.inf)
    return math.inf


def _readers(view: GraphView, name: str) -> list[NodeProto]:
    return [view.nodes[index] for index in view.consumers.get(name, ())]


def _choosing(node: NodeProto) -> list[str]:
    """The inputs that say which elements are taken."""
    return [node.input[0]] if node.op_type == "Where" else list(node.input[1:])


def _made(view: GraphView, node: NodeProto) -> list[Any]:
    """The inputs that are no constants."""
    return [i for i in node.input if i and view.initializer(i) is None and not _is_constant(view, i)]


def _is_constant(view: GraphView, name: str) -> bool:
    node = view.producer(name)
    return node is not None and node.op_type == "Constant"
