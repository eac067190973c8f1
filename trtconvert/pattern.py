"""The pattern language: a pattern is written like the maths; `find` matches it in a graph, `emit` writes it as nodes.

    d = x - op.ReduceMean(x, axes=(-1,))
    y = d / op.Sqrt(op.ReduceMean(d * d, axes=(-1,)) + self.epsilon) * scale + bias

`+ - * /` stand for sums and products, not for node lists: a product matches whatever tree of Mul, Div, Reciprocal, Neg
and Pow the exporter wrote for it, with operands in any order and its numbers multiplied together; a sum likewise. Numbers
match by value, within the rounding of the dtype they are stored in.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper

from trtconvert.errors import ConvertError
from trtconvert.model import STANDARD_DOMAINS, GraphView, attribute_values

# --- expressions ---------------------------------------------------------------------------------------------------


class Expr:
    """A tensor in a pattern."""

    def __add__(self, other: Operand) -> Expr:
        return _sum(self, other, 1)

    def __radd__(self, other: Operand) -> Expr:
        return _sum(wrap(other), self, 1)

    def __sub__(self, other: Operand) -> Expr:
        return _sum(self, other, -1)

    def __rsub__(self, other: Operand) -> Expr:
        return _sum(wrap(other), self, -1)

    def __mul__(self, other: Operand) -> Expr:
        return _product(self, other, 1)

    def __rmul__(self, other: Operand) -> Expr:
        return _product(wrap(other), self, 1)

    def __truediv__(self, other: Operand) -> Expr:
        return _product(self, other, -1)

    def __rtruediv__(self, other: Operand) -> Expr:
        return _product(wrap(other), self, -1)

    def __neg__(self) -> Expr:
        return _product(Number(-1.0), self, 1)


@dataclass(frozen=True, eq=False)
class Number(Expr):
    """A constant, the same in every element."""

    value: float


@dataclass(frozen=True, eq=False)
class Attr(Expr):
    """An attribute of the op: captured while matching (value None), known while emitting. As a tensor, a number."""

    name: str
    value: Any = None


@dataclass(frozen=True, eq=False)
class Var(Expr):
    """An input of the op."""

    name: str


@dataclass(frozen=True, eq=False)
class PerChannel(Expr):
    """An input [C] of the op, seen in the graph broadcast along `axis` of the data."""

    var: Var
    axis: int


@dataclass(frozen=True, eq=False)
class MoveAxis(Expr):
    """The Transpose that moves axis `source` to `target` and keeps the others in order."""

    x: Expr
    source: int
    target: int

    def perm(self, rank: int) -> list[int]:
        """The Transpose's perm for a tensor of that rank."""
        order = [axis for axis in range(rank) if axis != self.source % rank]
        order.insert(self.target % rank, self.source % rank)
        return order


@dataclass(frozen=True, eq=False)
class Any_(Expr):
    """An attribute value of any kind, captured under a name (for `Pattern.after`)."""

    name: str


@dataclass(frozen=True, eq=False)
class Call(Expr):
    """A node of the standard domain; the attribute `rank` stands for the rank of its first input."""

    op_type: str
    inputs: tuple[Expr, ...]
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Product(Expr):
    """coefficient times the factors, each to the power 1 or -1."""

    coefficient: float
    factors: tuple[tuple[Expr, int], ...]


@dataclass(frozen=True, eq=False)
class Sum(Expr):
    """offset plus an attribute (epsilon) plus the terms, each with sign 1 or -1."""

    offset: float
    attr: Attr | None
    terms: tuple[tuple[Expr, int], ...]


@dataclass(frozen=True, eq=False)
class Either(Expr):
    """Spellings of one thing. `emit` writes the first that the opset has."""

    options: tuple[Expr, ...]


@dataclass(frozen=True)
class Pattern:
    """One spelling of an op: the expression it replaces and what that fixes.

    attributes: values that this spelling implies. after: what remains to be done to the op's output, given the captured
    values (a Transpose that the op jumps over, say); such a spelling is matched, never emitted as a body.
    """

    expr: Expr
    attributes: dict[str, Any] = field(default_factory=dict)
    after: Callable[[Builder, Expr, Mapping[str, Any]], Expr] | None = None


Operand: TypeAlias = "Expr | float | int"


def wrap(operand: Operand) -> Expr:
    """The operand as an expression."""
    return operand if isinstance(operand, Expr) else Number(float(operand))


def _product(left: Expr, right: Operand, power: int) -> Expr:
    coefficient, factors = 1.0, []
    for expr, e in ((left, 1), (wrap(right), power)):
        if isinstance(expr, Number):
            coefficient *= expr.value**e
        elif isinstance(expr, Product):
            coefficient *= expr.coefficient**e
            factors += [(f, fe * e) for f, fe in expr.factors]
        else:
            factors.append((expr, e))
    return Product(coefficient, tuple(factors))


def _sum(left: Expr, right: Operand, sign: int) -> Expr:
    offset, attr, terms = 0.0, None, []
    for expr, s in ((left, 1), (wrap(right), sign)):
        if isinstance(expr, Number):
            offset += s * expr.value
        elif isinstance(expr, Attr):
            attr = expr
        elif isinstance(expr, Sum):
            offset, attr = offset + s * expr.offset, expr.attr or attr
            terms += [(t, ts * s) for t, ts in expr.terms]
        else:
            terms.append((expr, s))
    return Sum(offset, attr, tuple(terms))


class Builder:
    """`op` in a pattern: `op.Erf(x)` is a node of that type; the methods below are the rest of the vocabulary."""

    def __getattr__(self, op_type: str) -> Callable[..., Expr]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)
        return lambda *inputs, **attributes: Call(op_type, tuple(map(wrap, inputs)), attributes)

    def either(self, *options: Expr) -> Expr:
        """Any of these spellings; the first that the opset has is the one written."""
        return Either(options)

    def per_channel(self, var: Expr, axis: int) -> Expr:
        """The op's input [C], broadcast along `axis` of the data."""
        assert isinstance(var, Var)
        return PerChannel(var, axis)

    def move_axis(self, x: Expr, source: int, target: int) -> Expr:
        """Transpose that moves one axis."""
        return MoveAxis(x, source, target)

    def any(self, name: str) -> Any_:
        """Any attribute value, captured as `name`."""
        return Any_(name)

    def pattern(
        self,
        expr: Expr,
        after: Callable[[Builder, Expr, Mapping[str, Any]], Expr] | None = None,
        **attributes: Any,
    ) -> Pattern:
        """A spelling that fixes attributes of the op."""
        return Pattern(expr, attributes, after)


# --- matching ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Match:
    """Nodes (indices) that a pattern covers, tensors bound to its inputs, attribute values and other captures."""

    nodes: frozenset[int] = frozenset()
    bound: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    captures: dict[str, Any] = field(default_factory=dict)
    channel_axis: dict[str, int] = field(default_factory=dict)


_COMMUTATIVE = frozenset(("Max", "Min", "And", "Or", "Xor"))
# Inputs that are attributes in older opsets: compared by value, under the attribute's name.
_ATTRIBUTE_INPUTS = {
    ("ReduceMean", 1): "axes",
    ("ReduceSum", 1): "axes",
    ("Unsqueeze", 1): "axes",
    ("Squeeze", 1): "axes",
}
_MAX_OPENED = 8  # nodes of one product or sum; real spellings need at most 6
Frontier: TypeAlias = tuple[tuple[str, int], ...]
Parts: TypeAlias = tuple[tuple[Expr, int], ...]


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
            wanted = term if s == sign else _product(Number(-1.0), term, 1)
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
            attribute = _ATTRIBUTE_INPUTS.get((node.op_type, i))
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


def _open_sum(graph: GraphView, node: NodeProto) -> tuple[float, Frontier] | None:
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


# --- emitting ------------------------------------------------------------------------------------------------------


class Emitter:
    """Writes expressions as nodes of one opset; shared subexpressions once.

    dtype: ONNX element type of the numbers. rank: of the data, for transposes and broadcasts. by_reference: attributes
    of the op stay references (a function body), else they are written as values.
    """

    def __init__(self, opset: int, dtype: int, rank: int | None, prefix: str = "", by_reference: bool = False) -> None:
        self.nodes: list[NodeProto] = []
        self.opset, self.dtype, self.rank, self.prefix = opset, dtype, rank, prefix
        self.by_reference = by_reference and opset >= 12  # Constant takes value_float from opset 12 on
        self._done: dict[int, str] = {}
        self._kept: list[Expr] = []  # ids stay valid while the expressions live

    def emit(self, expr: Expr, output: str = "") -> str:
        """Write nodes that compute `expr`; returns the tensor's name."""
        if id(expr) not in self._done:
            self._kept.append(expr)
            self._done[id(expr)] = self._write(expr, output)
        return self._done[id(expr)]

    def _node(self, op_type: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        output = output or f"{self.prefix}t{len(self.nodes)}"
        references = {k: v for k, v in attributes.items() if isinstance(v, Attr)}
        plain = {k: v for k, v in attributes.items() if k not in references}
        node = helper.make_node(op_type, list(inputs), [output], name=f"{output}_{op_type}", **plain)
        for name, attr in sorted(references.items()):
            node.attribute.append(self._reference(name, attr))
        self.nodes.append(node)
        return output

    def _reference(self, name: str, attr: Attr) -> AttributeProto:
        proto = helper.make_attribute(name, attr.value)
        if not self.by_reference:
            return proto
        reference = AttributeProto(name=name, type=proto.type)
        reference.ref_attr_name = attr.name
        return reference

    def _constant(self, value: float) -> str:
        return self._node("Constant", [], value=helper.make_tensor("value", self.dtype, [], [value]))

    def _ints(self, values: Sequence[int]) -> str:
        tensor = helper.make_tensor("value", TensorProto.INT64, [len(values)], list(values))
        return self._node("Constant", [], value=tensor)

    def _write(self, expr: Expr, output: str) -> str:
        if isinstance(expr, Var):
            return expr.name
        if isinstance(expr, Number):
            return self._constant(expr.value)
        if isinstance(expr, Attr):
            return self._attribute_tensor(expr)
        if isinstance(expr, PerChannel):
            return self._broadcast(expr, output)
        if isinstance(expr, Either):
            return self.emit(next(o for o in expr.options if available(o, self.opset)), output)
        if isinstance(expr, MoveAxis):
            return self._node("Transpose", [self.emit(expr.x)], output, perm=expr.perm(self._known_rank()))
        if isinstance(expr, Product):
            return self._chain(expr.factors, expr.coefficient, ("Mul", "Div"), output)
        if isinstance(expr, Sum):
            terms = (*expr.terms, (expr.attr, 1)) if expr.attr is not None else expr.terms
            return self._chain(terms, expr.offset, ("Add", "Sub"), output)
        assert isinstance(expr, Call)
        return self._call(expr, output)

    def _attribute_tensor(self, attr: Attr) -> str:
        if not self.by_reference or not isinstance(attr.value, float):
            return self._constant(float(attr.value))
        tensor = self._node("Constant", [], value_float=attr)
        return tensor if self.dtype == TensorProto.FLOAT else self._node("Cast", [tensor], to=self.dtype)

    def _broadcast(self, expr: PerChannel, output: str) -> str:
        if expr.axis == -1:
            return self.emit(expr.var, output)
        trailing = self._known_rank() - 1 - expr.axis
        return self._node("Reshape", [self.emit(expr.var), self._ints([-1, *[1] * trailing])], output)

    def _known_rank(self) -> int:
        if self.rank is None:
            raise ConvertError("the rank of the tensor is unknown", fix="run ONNX shape inference on the model first")
        return self.rank

    def _chain(self, parts: Parts, number: float, ops: tuple[str, str], output: str) -> str:
        """A left-to-right chain: the number first if it matters, then the parts by Mul or Div, Add or Sub."""
        neutral = 1.0 if ops[0] == "Mul" else 0.0
        ordered = sorted(parts, key=lambda part: part[1] < 0)  # a positive part first; stable
        steps = [(self.emit(part), sign) for part, sign in ordered]
        if number != neutral or steps[0][1] < 0:
            steps.insert(0, (self._constant(number), 1))
        result = steps[0][0]
        for i, (tensor, sign) in enumerate(steps[1:], start=1):
            result = self._node(ops[sign < 0], [result, tensor], output if i == len(steps) - 1 else "")
        return result

    def _call(self, expr: Call, output: str) -> str:
        inputs = [self.emit(i) for i in expr.inputs]
        attributes = {name: value for name, value in expr.attributes.items() if name != "rank"}
        position, name = next(((i, a) for (op, i), a in _ATTRIBUTE_INPUTS.items() if op == expr.op_type), (0, ""))
        if name in attributes and name not in _schema_attributes(expr.op_type, self.opset):
            inputs.insert(position, self._ints(attributes.pop(name)))
        return self._node(expr.op_type, inputs, output, **attributes)


def _schema_attributes(op_type: str, opset: int) -> set[str]:
    return set(onnx.defs.get_schema(op_type, max_inclusive_version=opset).attributes)


def available(expr: Expr, opset: int) -> bool:
    """Whether every node of the expression exists in that opset."""
    if isinstance(expr, Call):
        try:
            onnx.defs.get_schema(expr.op_type, max_inclusive_version=opset)
        except onnx.defs.SchemaError:
            return False
        return all(available(i, opset) for i in expr.inputs)
    if isinstance(expr, Product):
        return all(available(f, opset) for f, _ in expr.factors)
    if isinstance(expr, Sum):
        return all(available(t, opset) for t, _ in expr.terms)
    if isinstance(expr, Either):
        return any(available(o, opset) for o in expr.options)
    return available(expr.x, opset) if isinstance(expr, MoveAxis) else True
