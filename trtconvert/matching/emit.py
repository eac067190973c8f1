"""Writes patterns as the ONNX nodes of function bodies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper

from trtconvert.errors import ConvertError
from trtconvert.pattern import (
    ATTRIBUTE_INPUTS,
    Anything,
    Attr,
    Call,
    Either,
    Expr,
    Folded,
    Given,
    Grouped,
    Mean,
    MoveAxis,
    Number,
    PerChannel,
    Product,
    Quantized,
    Rearranged,
    Reshaped,
    Sum,
    Var,
)

_QUANTIZED = 10  # the opset that brought QuantizeLinear


class Emitter:
    """Writes expressions as nodes of one opset; shared subexpressions once.

    dtype: ONNX element type of the numbers. rank: of the data, for transposes and broadcasts. values: of the op's
    attributes; in the nodes they stay references to the function's attributes. names: tensors of the op's inputs.
    """

    def __init__(
        self, opset: int, dtype: int, rank: int | None, values: Mapping[str, Any], names: Mapping[str, str]
    ) -> None:
        self.nodes: list[NodeProto] = []
        self.opset, self.dtype, self.rank, self.values, self.names = opset, dtype, rank, values, names
        self.by_reference = opset >= 12  # Constant takes value_float from opset 12 on
        self._done: dict[Expr, str] = {}

    def emit(self, expr: Expr, output: str = "") -> str:
        """Write nodes that compute `expr`; returns the tensor's name."""
        if expr not in self._done:
            self._done[expr] = self._write(expr, output)
        return self._done[expr]

    def _node(self, op_type: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        output = output or f"t{len(self.nodes)}"
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

    def _constant(self, value: float, count: int | None = None) -> str:
        shape, values = ([], [value]) if count is None else ([count], [value] * count)
        return self._node("Constant", [], value=helper.make_tensor("value", self.dtype, shape, values))

    def _ints(self, values: Sequence[int]) -> str:
        tensor = helper.make_tensor("value", TensorProto.INT64, [len(values)], list(values))
        return self._node("Constant", [], value=tensor)

    def _write(self, expr: Expr, output: str) -> str:
        if isinstance(expr, Var):
            return self.names[expr.name]
        if isinstance(expr, Number):
            return self._constant(expr.value, None if expr.count is None else int(expr.count.value))
        if isinstance(expr, Attr):
            return self._attribute_tensor(expr)
        if isinstance(expr, PerChannel):
            return self._broadcast(expr, output)
        if isinstance(expr, Either):
            return self.emit(next(o for o in expr.options if available(o, self.opset, self.values)), output)
        if isinstance(expr, Given):
            return self.emit(expr.x, output)
        if isinstance(expr, Mean):
            axis = expr.axis.value if isinstance(expr.axis, Attr) else expr.axis
            axes = tuple(range(axis, 0)) if axis < 0 else (axis,)
            return self._call(Call("ReduceMean", (expr.x,), {"axes": axes, "keepdims": 1}), output)
        if isinstance(expr, MoveAxis):
            return self._node("Transpose", [self.emit(expr.x)], output, perm=expr.perm(self._known_rank()))
        if isinstance(expr, Grouped):
            return self._node("Reshape", [self.emit(expr.x), self._ints([0, expr.groups.value, -1])], output)
        if isinstance(expr, Reshaped):
            assert expr.like is not None
            return self._node("Reshape", [self.emit(expr.x), self._node("Shape", [self.emit(expr.like)])], output)
        if isinstance(expr, Product):
            return self._product(expr, output)
        if isinstance(expr, Sum):
            terms = (*expr.terms, (expr.attr, 1.0)) if expr.attr is not None else expr.terms
            return self._chain([(self.emit(t), s) for t, s in terms], expr.offset, ("Add", "Sub"), output)
        if isinstance(expr, Quantized):
            return self._quantized(expr, output)
        assert isinstance(expr, Call)
        return self._call(expr, output)

    def _attribute_tensor(self, attr: Attr) -> str:
        if not self.by_reference or not isinstance(attr.value, float):
            return self._constant(float(attr.value))
        tensor = self._node("Constant", [], value_float=attr)
        return tensor if self.dtype == TensorProto.FLOAT else self._node("Cast", [tensor], to=self.dtype)

    def _broadcast(self, expr: PerChannel, output: str) -> str:
        axis = expr.axis.value if isinstance(expr.axis, Attr) else expr.axis
        if axis < 0 or expr.vector:
            return self.emit(expr.var, output)
        return self._node(
            "Reshape", [self.emit(expr.var), self._ints([-1, *[1] * (self._known_rank() - 1 - axis)])], output
        )

    def _quantized(self, expr: Quantized, output: str) -> str:
        zero = self._node("Constant", [], value=helper.make_tensor("value", TensorProto.INT8, [], [0]))
        return self._node(expr.op_type, [self.emit(expr.x), self._attribute_tensor(expr.scale), zero], output)

    def _known_rank(self) -> int:
        if self.rank is None:
            raise ConvertError("the rank of the tensor is unknown", fix="run ONNX shape inference on the model first")
        return self.rank

    def _product(self, expr: Product, output: str) -> str:
        steps: list[tuple[str, float]] = []
        for factor, power in expr.factors:
            tensor = self.emit(factor)
            if abs(power) == 0.5:
                alone = len(expr.factors) == 1 and power > 0 and expr.coefficient == 1.0
                steps.append((self._node("Sqrt", [tensor], output if alone else ""), power * 2))
            else:
                steps += [(tensor, math.copysign(1.0, power))] * int(abs(power))
        return self._chain(steps, expr.coefficient, ("Mul", "Div"), output)

    def _chain(self, steps: list[tuple[str, float]], number: float, ops: tuple[str, str], output: str) -> str:
        """A left-to-right chain: the number first if it matters, then the parts by Mul or Div, Add or Sub."""
        neutral = 1.0 if ops[0] == "Mul" else 0.0
        ordered = sorted(steps, key=lambda step: step[1] < 0)  # a positive part first; stable
        if number != neutral or ordered[0][1] < 0:
            ordered.insert(0, (self._constant(number), 1.0))
        result = ordered[0][0]
        for i, (tensor, sign) in enumerate(ordered[1:], start=1):
            result = self._node(ops[sign < 0], [result, tensor], output if i == len(ordered) - 1 else "")
        return result

    def _call(self, expr: Call, output: str) -> str:
        inputs = [self.emit(i) for i in expr.inputs]
        attributes = {k: v(self._known_rank()) if callable(v) else v for k, v in expr.attributes.items()}
        position, name = next(((i, a) for (op, i), a in ATTRIBUTE_INPUTS.items() if op == expr.op_type), (0, ""))
        if name in attributes and name not in _schema_attributes(expr.op_type, self.opset):
            inputs.insert(position, self._ints(attributes.pop(name)))
        return self._node(expr.op_type, inputs, output, **attributes)


def _schema_attributes(op_type: str, opset: int) -> set[str]:
    return set(onnx.defs.get_schema(op_type, max_inclusive_version=opset).attributes)


def quantizes(expr: Expr) -> bool:
    """Whether what the expression writes is int8."""
    if isinstance(expr, Either):
        return quantizes(expr.options[0])
    if isinstance(expr, Given):
        return quantizes(expr.x)
    return isinstance(expr, Quantized) and expr.op_type == "QuantizeLinear"


def available(expr: Expr, opset: int, values: Mapping[str, Any]) -> bool:
    """Whether every node of the expression exists in that opset, and whether it means these attribute values."""
    if isinstance(expr, Call):
        axis = expr.attributes.get("axis")
        single = isinstance(axis, Attr) and axis.value >= 0  # for nodes, axis is where the normalised axes begin
        if single or expr.domain or not onnx.defs.has(expr.op_type, max_inclusive_version=opset):
            return False
        return all(available(i, opset, values) for i in expr.inputs)
    if isinstance(expr, Product):
        return all(available(f, opset, values) for f, _ in expr.factors)
    if isinstance(expr, Sum):
        return all(available(t, opset, values) for t, _ in expr.terms)
    if isinstance(expr, Either):
        return any(available(o, opset, values) for o in expr.options)
    if isinstance(expr, Given):
        agrees = all(callable(value) or values[name] == value for name, value in expr.attributes.items())
        return agrees and available(expr.x, opset, values)
    if isinstance(expr, Quantized):
        return opset >= _QUANTIZED and available(expr.x, opset, values)
    if isinstance(expr, Mean | MoveAxis):
        return available(expr.x, opset, values)
    if isinstance(expr, Grouped):
        return expr.rest == 1 and available(expr.x, opset, values)
    if isinstance(expr, Reshaped):
        return expr.shape is None and available(expr.x, opset, values)
    return not isinstance(expr, Folded | Rearranged | Anything)
