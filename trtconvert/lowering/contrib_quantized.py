"""Ops of onnxruntime's quantizer (domain com.microsoft) in terms of standard ONNX ops.

Ops on quantized tensors become DequantizeLinear, the op, QuantizeLinear: of int8 around 0 that is what TensorRT computes in int8.
Products of integers become MatMulInteger. Source: onnxruntime 1.32, docs/ContribOperators.md, and what its CPU kernels compute.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from trtconvert.lowering.writer import Outputs, Writer


def _real(op: Writer, x: str, scale: str, zero_point: str = "") -> str:
    return op.DequantizeLinear(x, scale, *filter(None, [zero_point]))


def _quantized(op: Writer, y: str, scale: str, zero_point: str, like: str) -> Outputs:
    """y in the integer type of `like`, around 0 if no zero point is given."""
    zero = zero_point or op.number(0, like)
    return (op.QuantizeLinear(y, scale, zero),)


def _binary(op_type: str) -> Callable[..., Outputs]:
    def write(
        op: Writer, a: str, a_scale: str, a_zero: str, b: str, b_scale: str, b_zero: str, c_scale: str, c_zero: str = ""
    ) -> Outputs:
        y = op.node_of(op_type, _real(op, a, a_scale, a_zero), _real(op, b, b_scale, b_zero))
        return _quantized(op, y, c_scale, c_zero, a)

    return write


def _unary(write: Callable[[Writer, str], str]) -> Callable[..., Outputs]:
    def written(op: Writer, x: str, x_scale: str, x_zero: str, y_scale: str, y_zero: str = "") -> Outputs:
        return _quantized(op, write(op, _real(op, x, x_scale, x_zero)), y_scale, y_zero, x)

    return written


def _softmax(op: Writer, x: str) -> str:
    """Before opset 13 over all axes from `axis` on, as one."""
    axis, opset, rank = op.attributes.get("axis", -1), op.attributes.get("opset", 0), op.rank("x0")
    if opset < 13 and rank != 1 and axis not in (-1, (rank or 0) - 1):
        raise op.refuse(f"is a Softmax of opset {opset} over several axes", "export it to opset 13")
    return op.Softmax(x, axis=axis)


def _pool(op_type: str) -> Callable[[Writer, str], str]:
    def write(op: Writer, x: str) -> str:
        if op.attributes.get("channels_last", 0):
            raise op.refuse("has its channels last", "give the model from before onnxruntime's optimizer")
        kept = {name: value for name, value in op.attributes.items() if name != "channels_last"}
        return op.node_of(op_type, x, **kept)

    return write


def _concat(op: Writer, y_scale: str, y_zero: str, *parts: str) -> Outputs:
    real = [_real(op, *parts[i : i + 3]) for i in range(0, len(parts), 3)]
    return _quantized(op, op.Concat(*real, axis=op.attributes["axis"]), y_scale, y_zero, parts[0])


def _where(
    op: Writer,
    condition: str,
    x: str,
    x_scale: str,
    x_zero: str,
    y: str,
    y_scale: str,
    y_zero: str,
    z_scale: str,
    z_zero: str,
) -> Outputs:
    z = op.Where(condition, _real(op, x, x_scale, x_zero), _real(op, y, y_scale, y_zero))
    return _quantized(op, z, z_scale, z_zero, x)


def _gemm(
    op: Writer,
    a: str,
    a_scale: str,
    a_zero: str,
    b: str,
    b_scale: str,
    b_zero: str,
    c: str = "",
    y_scale: str = "",
    y_zero: str = "",
) -> Outputs:
    """alpha (A' B' + C a_scale b_scale), C of int32; without y_scale as float32. b_scale may be one for each column."""
    columns = {"axis": 0 if op.attributes.get("transB", 0) else 1} if op.rank(b_scale) else {}
    weights = op.DequantizeLinear(b, b_scale, b_zero, **columns)
    given = {name: value for name, value in op.attributes.items() if name in ("alpha", "transA", "transB")}
    y = op.Gemm(_real(op, a, a_scale, a_zero), weights, **given)
    if c:
        alpha = op.tensor(op.attributes.get("alpha", 1.0), np.float32)
        y = op.Add(y, op.Mul(op.Cast(c, to=TensorProto.FLOAT), op.Mul(alpha, op.Mul(a_scale, b_scale))))
    return _quantized(op, y, y_scale, y_zero, a) if y_scale else (y,)


def _product(op: Writer, a: str, b: str, a_zero: str, b_zero: str) -> str:
    zeros = [a_zero, b_zero] if b_zero else [a_zero] if a_zero else []
    return op.Cast(op.MatMulInteger(a, b, *zeros), to=TensorProto.FLOAT)


def _matmul_to_float(
    op: Writer, a: str, b: str, a_scale: str, b_scale: str, a_zero: str = "", b_zero: str = "", bias: str = ""
) -> Outputs:
    y = op.Mul(_product(op, a, b, a_zero, b_zero), op.Mul(a_scale, b_scale))
    return (op.total(y, bias),)


def _dynamic_matmul(op: Writer, a: str, b: str, b_scale: str, b_zero: str = "", bias: str = "") -> Outputs:
    """A is quantized to uint8 by its own range."""
    a_quantized = op.DynamicQuantizeLinear(a)
    made = op.nodes[-1].output
    made.extend([f"{a_quantized}_scale", f"{a_quantized}_zero"])
    y = op.Mul(_product(op, a_quantized, b, made[2], b_zero), op.Mul(made[1], b_scale))
    return (op.total(y, bias),)


WRITERS: dict[str, Callable[..., Outputs]] = {
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "MatMulIntegerToFloat": _matmul_to_float,
    "QGemm": _gemm,
    "QLinearAdd": _binary("Add"),
    "QLinearAveragePool": _unary(_pool("AveragePool")),
    "QLinearConcat": _concat,
    "QLinearGlobalAveragePool": _unary(_pool("GlobalAveragePool")),
    "QLinearLeakyRelu": _unary(lambda op, x: op.LeakyRelu(x, alpha=op.attributes.get("alpha", 0.01))),
    "QLinearMul": _binary("Mul"),
    "QLinearSigmoid": _unary(lambda op, x: op.Sigmoid(x)),
    "QLinearSoftmax": _unary(_softmax),
    "QLinearWhere": _where,
}
