"""The pattern language: a pattern is written like the maths; match.py finds it in a graph, emit.py writes it as nodes.

    d = x - op.ReduceMean(x, axes=(-1,))
    y = d / op.Sqrt(op.ReduceMean(d * d, axes=(-1,)) + self.epsilon) * scale + bias

`+ - * /` stand for sums and products, not for node lists: a product matches whatever tree of Mul, Div, Reciprocal, Neg
and Pow the exporter wrote for it, with operands in any order and its numbers multiplied together; a sum likewise. Numbers
match by value, within the rounding of the dtype they are stored in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


class Expr:
    """A tensor in a pattern."""

    def __add__(self, other: Operand) -> Expr:
        return plus(self, other, 1)

    def __radd__(self, other: Operand) -> Expr:
        return plus(wrap(other), self, 1)

    def __sub__(self, other: Operand) -> Expr:
        return plus(self, other, -1)

    def __rsub__(self, other: Operand) -> Expr:
        return plus(wrap(other), self, -1)

    def __mul__(self, other: Operand) -> Expr:
        return times(self, other, 1)

    def __rmul__(self, other: Operand) -> Expr:
        return times(wrap(other), self, 1)

    def __truediv__(self, other: Operand) -> Expr:
        return times(self, other, -1)

    def __rtruediv__(self, other: Operand) -> Expr:
        return times(wrap(other), self, -1)

    def __neg__(self) -> Expr:
        return times(Number(-1.0), self, 1)


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
Parts: TypeAlias = tuple[tuple[Expr, int], ...]

# Inputs that are attributes in older opsets: compared by value, under the attribute's name.
ATTRIBUTE_INPUTS = {
    ("ReduceMean", 1): "axes",
    ("ReduceSum", 1): "axes",
    ("Unsqueeze", 1): "axes",
    ("Squeeze", 1): "axes",
}


def wrap(operand: Operand) -> Expr:
    """The operand as an expression."""
    return operand if isinstance(operand, Expr) else Number(float(operand))


def times(left: Expr, right: Operand, power: int) -> Expr:
    """left * right**power, products inside opened up and numbers gathered."""
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


def plus(left: Expr, right: Operand, sign: int) -> Expr:
    """left + sign * right, sums inside opened up and numbers gathered."""
    offset, attr, terms = 0.0, None, []
    for expr, s in ((left, 1), (wrap(right), sign)):
        if isinstance(expr, Number):
            offset += s * expr.value
        elif isinstance(expr, Attr):
            if s < 0 or attr is not None:
                raise TypeError(f"a pattern can add one attribute to a sum: {expr.name}")
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
