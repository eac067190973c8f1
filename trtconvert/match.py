"""Finds patterns in a graph: backtracking over spellings, operand orders and the trees of sums and products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import onnx
from onnx import AttributeProto, NodeProto, helper

from trtconvert.graph import GraphView
from trtconvert.model import STANDARD_DOMAINS, attribute_values
from trtconvert.pattern import (
    ATTRIBUTE_INPUTS,
    Any_,
    Attr,
    Call,
    Either,
    Expr,
    MoveAxis,
    Number,
    Parts,
    PerChannel,
    Product,
    Sum,
    Var,
    times,
)


@dataclass(frozen=True)
class Match:
    """Nodes (indices) that a pattern covers, tensors bound to its inputs, attribute values and other captures."""

    nodes: frozenset[int] = frozenset()
    bound: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    captures: dict[str, Any] = field(default_factory=dict)
    channel_axis: dict[str, int] = field(default_factory=dict)


_COMMUTATIVE = frozenset(("Max", "Min", "And", "Or", "Xor"))
_MAX_OPENED = 8  # nodes of one product or sum; real spellings need at most 6
Frontier: TypeAlias = tuple[tuple[str, int], ...]


class Matcher:
    """Matches expressions at tensors of one graph by backtracking; remembers how far the best failure came."""

    def __init__(self, graph: GraphView) -> None:
        self.graph = graph
        self.furthest: tuple[frozenset[int], str] = (frozenset(), "")

    def find(self, expr: Expr, tensor: str) -> Iterator[Match]:
        """Every way in which `expr` computes `tensor`."""
        return self._match(expr, tensor, Match())

    def _fail(self, state: Match, reason: str) -> None:
        if len(state.nodes) > len(self.furthest[0]):
            self.furthest = (state.nodes, reason)

    def _match(self, expr: Expr, tensor: str, state: Match) -> Iterator[Match]:
        if isinstance(expr, Var):
            if state.bound.get(expr.name, tensor) == tensor:
                yield replace(state, bound=state.bound | {expr.name: tensor})
            else:
                self._fail(state, f"{tensor} stands where {state.bound[expr.name]} is expected")
        elif isinstance(expr, PerChannel):
            axes = state.channel_axis | {expr.var.name: expr.axis}
            yield from self._match(expr.var, tensor, replace(state, channel_axis=axes))
        elif isinstance(expr, Either):
            for option in expr.options:
                yield from self._match(option, tensor, state)
        elif isinstance(expr, Number | Attr):
            yield from self._match_number(expr, tensor, state)
        elif isinstance(expr, Product):
            seen = self._open(tensor, state, _open_product)
            if seen is None:
                self._fail(state, f"{self._made_by(tensor)}, not by a product")
            else:
                coefficient, parts, state = seen
                yield from self._product(expr.factors, expr.coefficient, parts, coefficient, 0.0, state, _MAX_OPENED)
        elif isinstance(expr, Sum):
            seen = self._open(tensor, state, _open_sum)
            if seen is None:
                self._fail(state, f"{self._made_by(tensor)}, not by a sum")
            else:
                _, parts, state = seen
                yield from self._sum(expr, expr.terms, parts, [], state, _MAX_OPENED)
        else:
            yield from self._match_node(expr, tensor, state)

    def _made_by(self, tensor: str) -> str:
        node = self.graph.producer(tensor)
        return f"{tensor} is made by {node.op_type}" if node else f"{tensor} is an input or a constant"

    def _match_number(self, expr: Number | Attr, tensor: str, state: Match) -> Iterator[Match]:
        value, tolerance = self._scalar(tensor)
        if value is None:
            self._fail(state, f"{tensor} is not a constant")
        elif isinstance(expr, Number):
            if _close(value, expr.value, tolerance):
                yield state
            else:
                self._fail(state, f"{tensor} is {value:g}, not {expr.value:g}")
        else:
            yield from self._bind_attribute(expr.name, value, state)

    def _bind_attribute(self, name: str, value: Any, state: Match) -> Iterator[Match]:
        if isinstance(value, float) and not math.isfinite(value):
            self._fail(state, f"{name} is {value}")
        elif state.attributes.get(name, value) == value:
            yield replace(state, attributes=state.attributes | {name: value})

    def _scalar(self, tensor: str) -> tuple[float | None, float]:
        """The value if the tensor is one number (in every element of a tensor that broadcasts no further), and the
        relative tolerance of its dtype."""
        value = self.graph.constant(tensor)
        if value is None or value.size != 1 or value.dtype.kind not in "fiuV" or (value.ndim > 4):
            return None, 0.0
        return float(value.reshape(-1)[0]), 4e-3 if value.dtype.name == "bfloat16" else 1e-3

    def _open(self, tensor: str, state: Match, how: Opener) -> tuple[float, Frontier, Match] | None:
        index = self.graph.producers.get(tensor)
        if index is None or self.graph.graph.node[index].domain not in STANDARD_DOMAINS:
            return None
        opened = how(self.graph, self.graph.graph.node[index])
        return None if opened is None else (*opened, replace(state, nodes=state.nodes | {index}))

    def _product(
        self, factors: Parts, want: float, frontier: Frontier, got: float, tolerance: float, state: Match, left: int
    ) -> Iterator[Match]:
        """Match factors against the graph's factors (tensor, power): each is one of the pattern's, a number, or opens."""
        if not frontier:
            if factors:
                return
            if _close(got, want, max(tolerance, 1e-3)):
                yield state
            else:
                self._fail(state, f"the constant factors multiply to {got:g}, not {want:g}")
            return
        (tensor, power), rest = frontier[0], frontier[1:]
        for i, (factor, e) in enumerate(factors):
            if e == power and factor not in [f for f, _ in factors[:i]]:
                for found in self._match(factor, tensor, state):
                    yield from self._product((*factors[:i], *factors[i + 1 :]), want, rest, got, tolerance, found, left)
        value, rounding = self._scalar(tensor)
        if value is not None and (value or power > 0):
            yield from self._product(factors, want, rest, got * value**power, max(tolerance, rounding), state, left)
        elif left and (seen := self._open(tensor, state, _open_product)):
            coefficient, parts, opened = seen
            inner = tuple((t, e * power) for t, e in parts)
            got *= coefficient**power
            yield from self._product(factors, want, (*inner, *rest), got, tolerance, opened, left - 1)

    def _sum(
        self, expr: Sum, terms: Parts, frontier: Frontier, numbers: list[float], state: Match, left: int
    ) -> Iterator[Match]:
        """Match terms against the graph's terms (tensor, sign), as `_product` does with factors."""
        if not frontier:
            if not terms:
                yield from self._finish_sum(expr, numbers, state)
            return
        (tensor, sign), rest = frontier[0], frontier[1:]
        for i, (term, s) in enumerate(terms):
            wanted = term if s == sign else times(Number(-1.0), term, 1)
            for found in self._match(wanted, tensor, state):
                yield from self._sum(expr, (*terms[:i], *terms[i + 1 :]), rest, numbers, found, left)
        value, _ = self._scalar(tensor)
        if value is not None:
            yield from self._sum(expr, terms, rest, [*numbers, sign * value], state, left)
        elif left and (seen := self._open(tensor, state, _open_sum)):
            _, parts, opened = seen
            inner = tuple((t, s * sign) for t, s in parts)
            yield from self._sum(expr, terms, (*inner, *rest), numbers, opened, left - 1)

    def _finish_sum(self, expr: Sum, numbers: list[float], state: Match) -> Iterator[Match]:
        if expr.attr is None:
            if _close(sum(numbers), expr.offset, 1e-3):
                yield state
            else:
                self._fail(state, f"the constant terms add up to {sum(numbers):g}, not {expr.offset:g}")
        elif numbers:
            yield from self._bind_attribute(expr.attr.name, sum(numbers) - expr.offset, state)
        else:
            self._fail(state, f"{expr.attr.name} is missing or not a constant")

    def _match_node(self, expr: Expr, tensor: str, state: Match) -> Iterator[Match]:
        op_type = "Transpose" if isinstance(expr, MoveAxis) else expr.op_type if isinstance(expr, Call) else ""
        index = self.graph.producers.get(tensor)
        node = None if index is None else self.graph.graph.node[index]
        if node is None or index is None or node.op_type != op_type or node.domain not in STANDARD_DOMAINS:
            self._fail(state, f"{self._made_by(tensor)}, not by {op_type}")
            return
        if node.output[0] != tensor:
            self._fail(state, f"{tensor} is not the first output of {op_type}")
            return
        state = replace(state, nodes=state.nodes | {index})
        values, inputs = self._node_attributes(node)
        if isinstance(expr, MoveAxis):
            perm = values.get("perm") or list(range(self.graph.rank(inputs[0]) or 0))[::-1]
            if list(perm) != expr.perm(len(perm)):
                self._fail(state, f"Transpose {node.name} has perm {list(perm)}, not {expr.perm(len(perm))}")
                return
            yield from self._match(expr.x, inputs[0], state)
            return
        assert isinstance(expr, Call)
        for bound in self._match_attributes(expr, node, values, inputs, state):
            if len(inputs) != len(expr.inputs):
                self._fail(bound, f"{op_type} {node.name} has {len(inputs)} inputs, not {len(expr.inputs)}")
                continue
            orders = itertools.permutations(inputs) if op_type in _COMMUTATIVE else [tuple(inputs)]
            for order in orders:
                yield from self._match_inputs(expr.inputs, order, bound)

    def _match_inputs(self, exprs: Sequence[Expr], tensors: Sequence[str], state: Match) -> Iterator[Match]:
        if not exprs:
            yield state
            return
        for found in self._match(exprs[0], tensors[0], state):
            yield from self._match_inputs(exprs[1:], tensors[1:], found)

    def _node_attributes(self, node: NodeProto) -> tuple[dict[str, Any], list[str]]:
        """Attributes with the schema's defaults, constant attribute-like inputs among them; and the other inputs."""
        values = _defaults(node.op_type, self.graph.opset) | attribute_values(node)
        inputs = []
        for i, name in enumerate(node.input):
            attribute = ATTRIBUTE_INPUTS.get((node.op_type, i))
            if attribute is None:
                inputs.append(name)
            elif name:
                constant = self.graph.constant(name)
                values[attribute] = None if constant is None else constant.reshape(-1).tolist()
        while inputs and not inputs[-1]:
            inputs.pop()
        return values, inputs

    def _match_attributes(
        self, expr: Call, node: NodeProto, values: dict[str, Any], inputs: list[str], state: Match
    ) -> Iterator[Match]:
        rank = self.graph.rank(inputs[0]) if inputs else None
        for name, wanted in expr.attributes.items():
            got = values.get(name)
            if isinstance(wanted, Any_):
                state = replace(state, captures=state.captures | {wanted.name: got})
            elif isinstance(wanted, Attr):
                value = next(self._bind_attribute(wanted.name, got, state), None)
                if value is None:
                    return
                state = value
            elif name == "rank":
                if rank != wanted:
                    self._fail(state, f"{node.op_type} {node.name}: the rank of its input is {rank}, not {wanted}")
                    return
            elif _axes(got, rank, name) != _axes(wanted, rank, name):
                shown = "not a constant" if got is None else got
                self._fail(state, f"{node.op_type} {node.name}: {name} is {shown}, not {wanted}")
                return
        yield state


def _axes(value: Any, rank: int | None, name: str) -> Any:
    """axis and axes counted from the front when the rank is known; other values as they are."""
    if isinstance(value, tuple | list):
        value = list(value)
    if rank and name == "axes" and isinstance(value, list):
        return sorted(axis % rank for axis in value)
    if rank and name == "axis" and isinstance(value, int):
        return value % rank
    return value


def _defaults(op_type: str, opset: int) -> dict[str, Any]:
    try:
        schema = onnx.defs.get_schema(op_type, max_inclusive_version=opset)
    except onnx.defs.SchemaError:
        return {}
    found = {}
    for name, attribute in schema.attributes.items():
        if attribute.default_value.type != AttributeProto.UNDEFINED:
            value = helper.get_attribute_value(attribute.default_value)
            found[name] = value.decode() if isinstance(value, bytes) else value
    return found


def _close(got: float, want: float, tolerance: float) -> bool:
    return math.isclose(got, want, rel_tol=tolerance, abs_tol=1e-12)


Opener: TypeAlias = Callable[[GraphView, NodeProto], "tuple[float, Frontier] | None"]


def _open_product(graph: GraphView, node: NodeProto) -> tuple[float, Frontier] | None:
    """A node as coefficient and factors, if it is a product."""
    a, b = (*node.input, "", "")[:2]
    if node.op_type == "Mul":
        return 1.0, ((a, 1), (b, 1))
    if node.op_type == "Div":
        return 1.0, ((a, 1), (b, -1))
    if node.op_type == "Reciprocal":
        return 1.0, ((a, -1),)
    if node.op_type == "Neg":
        return -1.0, ((a, 1),)
    if node.op_type == "Pow":
        exponent = graph.constant(b)
        if exponent is not None and exponent.size == 1 and float(exponent.reshape(-1)[0]) in (2.0, 3.0):
            return 1.0, ((a, 1),) * int(exponent.reshape(-1)[0])
    return None


def _open_sum(_graph: GraphView, node: NodeProto) -> tuple[float, Frontier] | None:
    """A node as signed terms, if it is a sum."""
    if node.op_type == "Add":
        return 0.0, ((node.input[0], 1), (node.input[1], 1))
    if node.op_type == "Sub":
        return 0.0, ((node.input[0], 1), (node.input[1], -1))
    return None


def roots(expr: Expr) -> frozenset[str]:
    """Op types that the node making the expression can have: where to look for it."""
    if isinstance(expr, Either):
        return frozenset().union(*map(roots, expr.options))
    if isinstance(expr, Product):
        return frozenset(("Mul", "Div", "Reciprocal", "Neg", "Pow"))
    if isinstance(expr, Sum):
        return frozenset(("Add", "Sub"))
    if isinstance(expr, MoveAxis):
        return frozenset(("Transpose",))
    return frozenset((expr.op_type,)) if isinstance(expr, Call) else frozenset()
