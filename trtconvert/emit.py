"""Writes patterns as ONNX nodes: function bodies, and what stays behind when an op jumps over a Transpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper

from trtconvert.errors import ConvertError
from trtconvert.pattern import (
    ATTRIBUTE_INPUTS,
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
)


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
        position, name = next(((i, a) for (op, i), a in ATTRIBUTE_INPUTS.items() if op == expr.op_type), (0, ""))
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
