"""The pattern language: a pattern is written like the maths; match.py finds it in a graph, emit.py writes it as nodes.

    d = x - op.mean(x, axis)
    y = d / op.Sqrt(op.mean(d * d, axis) + epsilon) * scale + bias

`+ - * /` and Sqrt stand for sums and products, not for node lists: a product matches whatever tree of Mul, Div, Reciprocal,
Neg, Pow and Sqrt the exporter wrote for it, with operands in any order and its numbers multiplied together; a sum likewise.
Numbers match by value, within the rounding of the dtype they are stored in. Identity, Dropout at inference and Casts between
floats are looked through.
"""

from __future__ import annotations

from collections.abc import Callable
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
class Attr(Expr):
    """An attribute of the op: captured while matching (value None), known while emitting. As a tensor, a number."""

    name: str
    value: Any = None


@dataclass(frozen=True, eq=False)
class Number(Expr):
    """A constant, the same in every element. count: how many of them a node wants, if it does not broadcast one."""

    value: float
    count: Attr | None = None


@dataclass(frozen=True, eq=False)
class Var(Expr):
    """An input of the op."""

    name: str


@dataclass(frozen=True, eq=False)
class PerChannel(Expr):
    """An input of the op that has the shape of the normalised axes (see Mean), in any shape that broadcasts so. A number
    below 0 counts the axes of the data as it stands there, moved or not.

    vector: the graph holds it as [C] for that axis, as GroupNormalization takes it. groups: or as one value for each group
    of so many equal ones, as GroupNormalization took it before opset 21.
    """

    var: Var
    axis: Attr | int
    vector: bool = False
    groups: Attr | None = None


@dataclass(frozen=True, eq=False)
class Folded(Expr):
    """A constant that is not an input of the op: it is multiplied into inputs, or added to one, when the op is fused.

    kind "factor": scale and bias are multiplied by it; kind "shift": it is added to bias.
    """

    kind: str
    scale: str
    bias: str


@dataclass(frozen=True, eq=False)
class Mean(Expr):
    """Mean of x over `axis`, dimensions kept: -k stands for the last k axes, 0 and above for that axis alone."""

    x: Expr
    axis: Attr | int


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
class Rearranged(Expr):
    """x behind one or more nodes that only move elements (Transpose, Reshape, ...): they are done to the op's output
    instead. Only for patterns that are elementwise from x on."""

    x: Expr


@dataclass(frozen=True, eq=False)
class Reshaped(Expr):
    """A Reshape of x. shape: what it makes of x's shape, all sizes known. like: an input of the op whose shape it gives back."""

    x: Expr
    shape: Callable[[tuple[int, ...]], tuple[int, ...]] | None = None
    like: Expr | None = None


@dataclass(frozen=True, eq=False)
class Grouped(Expr):
    """The Reshape of x [N, C, ...] to [N, groups, ...] with `rest` axes behind, whose sizes do not matter."""

    x: Expr
    groups: Attr
    rest: int


@dataclass(frozen=True, eq=False)
class Quantized(Expr):
    """A QuantizeLinear or DequantizeLinear node to or from int8, symmetric, with one scale for the tensor."""

    op_type: str
    x: Expr
    scale: Attr


@dataclass(frozen=True, eq=False)
class Anything(Expr):
    """An input of a node that does not matter."""


@dataclass(frozen=True, eq=False)
class Given(Expr):
    """A spelling that fixes attributes of the op: by value, or by a function of the rank."""

    x: Expr
    attributes: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Call(Expr):
    """A node, of the standard domain unless said."""

    op_type: str
    inputs: tuple[Expr, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    domain: str = ""


@dataclass(frozen=True, eq=False)
class Product(Expr):
    """coefficient times the factors, each to a power: a whole number, or 0.5 and -0.5 for a square root."""

    coefficient: float
    factors: Parts


@dataclass(frozen=True, eq=False)
class Sum(Expr):
    """offset plus an attribute (epsilon) plus the terms, each with sign 1 or -1."""

    offset: float
    attr: Attr | None
    terms: Parts


@dataclass(frozen=True, eq=False)
class Either(Expr):
    """Spellings of one thing, of which a graph can hold one: those after the first that matches are not tried. `emit` writes
    the first that the opset has and whose given attributes agree."""

    options: tuple[Expr, ...]
    name: str = ""


Operand: TypeAlias = "Expr | float | int"
Parts: TypeAlias = "tuple[tuple[Expr, float], ...]"

# Inputs that are attributes in older opsets: compared by value, under the attribute's name.
ATTRIBUTE_INPUTS = {
    ("ReduceMean", 1): "axes",
    ("ReduceSum", 1): "axes",
    ("ReduceSumSquare", 1): "axes",
    ("ReduceL2", 1): "axes",
    ("Unsqueeze", 1): "axes",
    ("Squeeze", 1): "axes",
}


def wrap(operand: Operand) -> Expr:
    """The operand as an expression."""
    return operand if isinstance(operand, Expr) else Number(float(operand))


def times(left: Expr, right: Operand, power: float) -> Expr:
    """left * right**power, products inside opened up, numbers and equal factors gathered."""
    coefficient = 1.0
    factors: dict[Expr, float] = {}
    for expr, e in ((left, 1.0), (wrap(right), power)):
        if isinstance(expr, Number):
            coefficient *= expr.value**e
            continue
        whole = isinstance(expr, Product) and e == int(e)
        inner = (expr.coefficient, expr.factors) if isinstance(expr, Product) and whole else (1.0, ((expr, 1.0),))
        coefficient *= inner[0] ** e
        for factor, fe in inner[1]:
            factors[factor] = factors.get(factor, 0.0) + fe * e
    return Product(coefficient, tuple((factor, e) for factor, e in factors.items() if e))


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
            terms.append((expr, float(s)))
    return Sum(offset, attr, tuple(terms))


class Builder:
    """`op` in a pattern: `op.Erf(x)` is a node of that type; the methods below are the rest of the vocabulary.

    An attribute of a node is a value, a symbol of the op's attributes, or a function of the rank."""

    def __getattr__(self, op_type: str) -> Callable[..., Expr]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)
        return lambda *inputs, **attributes: Call(op_type, tuple(map(wrap, inputs)), attributes)

    def Sqrt(self, x: Expr) -> Expr:  # named as ONNX names it
        """Square root, part of the products around it."""
        return Product(1.0, ((x, 0.5),))

    def contrib(self, op_type: str, *inputs: Expr, **attributes: Any) -> Expr:
        """A node of onnxruntime's own operators (domain com.microsoft)."""
        return Call(op_type, inputs, attributes, "com.microsoft")

    def mean(self, x: Expr, axis: Attr | int) -> Expr:
        """Mean with dimensions kept: axis -k stands for the last k axes, 0 and above for that axis alone."""
        return Mean(x, axis)

    def either(self, *options: Expr, name: str = "") -> Expr:
        """The first of these spellings that is there, written as the first that the opset has. name: for messages.

        Where two could stand for one subgraph and one be refused, let `patterns` yield two patterns."""
        return Either(options, name)

    def reshaped(self, x: Expr, shape: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Expr:
        """x with its elements in the shape that a function makes of its shape."""
        return Reshaped(x, shape)

    def reshaped_like(self, x: Expr, like: Expr) -> Expr:
        """x with its elements in the shape of an input of the op."""
        return Reshaped(x, like=like)

    def grouped(self, x: Expr, groups: Attr | int, rest: int = 1) -> Expr:
        """x [N, C, ...] as [N, groups, ...], with so many axes behind."""
        assert isinstance(groups, Attr)
        return Grouped(x, groups, rest)

    def filled(self, value: float, count: Attr | int) -> Expr:
        """A vector of equal numbers."""
        assert isinstance(count, Attr)
        return Number(value, count)

    def given(self, x: Expr, **attributes: Any) -> Expr:
        """A spelling that means these values of the op's attributes; a function gets the rank."""
        return Given(x, attributes)

    def per_channel(self, var: Expr, axis: Attr | int) -> Expr:
        """The op's input broadcast along the normalised axes."""
        assert isinstance(var, Var)
        return PerChannel(var, axis)

    def vector(self, var: Expr, axis: int, groups: Attr | int | None = None) -> Expr:
        """The op's input as [C] for one axis, or as one value for each group of equal ones."""
        assert isinstance(var, Var)
        assert not isinstance(groups, int)
        return PerChannel(var, axis, vector=True, groups=groups)

    def folded(self, scale: Expr, bias: Expr) -> tuple[Expr, Expr]:
        """A constant factor and a constant shift that go into the op's scale and bias."""
        assert isinstance(scale, Var)
        assert isinstance(bias, Var)
        return Folded("factor", scale.name, bias.name), Folded("shift", scale.name, bias.name)

    def move_axis(self, x: Expr, source: int, target: int) -> Expr:
        """Transpose that moves one axis."""
        return MoveAxis(x, source, target)

    def quantize(self, x: Expr, scale: Attr) -> Expr:
        """x / scale as int8, rounded to nearest even, within -128 and 127. scale: an attribute of the op."""
        return Quantized("QuantizeLinear", x, scale)

    def dequantize(self, x: Expr, scale: Attr) -> Expr:
        """x * scale of an int8 x. scale: an attribute of the op."""
        return Quantized("DequantizeLinear", x, scale)

    def rearranged(self, x: Expr) -> Expr:
        """x behind nodes that only move elements; they move behind the op."""
        return Rearranged(x)
