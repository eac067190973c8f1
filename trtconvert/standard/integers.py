"""Quantized and integer ops in forms that TensorRT lacks: exact integers in floats, and integers of 8 bits as ones of 32.

TensorRT's own QuantizeLinear and DequantizeLinear are those of int8 (and of float8 and 4 bits) around 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from trtconvert import model as onnx_model
from trtconvert.standard.writer import Standard, Written

_LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}
_EXACT = 1 << 24  # whole numbers up to this are exact in float32


# --- QuantizeLinear and DequantizeLinear -----------------------------------------------------------------------------


def _along(op: Standard, parameter: str, x: str, axis: int) -> str:
    """A scale or zero point as float32, so that it broadcasts against x: along one axis, or in blocks of it."""
    rank, size = op.rank(x), op.sizes(parameter)
    block = op.attributes.get("block_size", 0)
    if size is None or rank is None:
        raise op.refuse("needs a scale of known shape", "export the model with shapes")
    y = op.wide(parameter)
    if block:
        sizes, at = op.known_sizes(x), axis % rank
        spread = op.ints(*(block if a == at + 1 else 1 for a in range(rank + 1)))
        blocks = op.Tile(op.unsqueezed(y, at + 1), spread)
        whole = op.Reshape(blocks, op.ints(*(size[a] or 0 if a != at else -1 for a in range(rank))))
        return op.Slice(whole, op.ints(0), op.ints(sizes[at]), op.ints(at))
    if len(size) != 1 or rank <= 1:
        return y
    if size == [1]:
        return op.Reshape(y, op.ints(*[1] * rank))
    return op.Reshape(y, op.ints(*(-1 if a == axis % rank else 1 for a in range(rank))))


def _paired(op: Standard) -> bool:
    """Whether the node is one half of a pair around an op, as quantizers write it: there TensorRT's int8 is meant, and writing
    the pair as floats would be slow without a word."""
    if op.node.op_type == "DequantizeLinear":
        made = op.view.producer(op.node.input[0])
        return made is not None and made.op_type == "QuantizeLinear"
    readers = op.view.consumers.get(op.node.output[0], [])
    return any(op.view.nodes[i].op_type == "DequantizeLinear" for i in readers)


def _symmetric(op: Standard, zero_point: str) -> bool:
    zero = op.value(zero_point) if zero_point else np.zeros(1)
    return zero is not None and not zero.astype(np.float32).any()


def _quantize(op: Standard, x: str, scale: str, zero_point: str = "") -> Written:
    """saturate(round(x / scale) + zero_point), of uint8, or of int8 around another number than 0."""
    declared = op.attributes.get("output_dtype", 0)
    dtype = op.dtype(zero_point) if zero_point else {0: "uint8", 2: "uint8", 3: "int8"}.get(declared, "")
    if dtype not in _LIMITS or (dtype == "int8" and _symmetric(op, zero_point)) or _paired(op):
        return None
    axis = op.attributes.get("axis", 1)
    y = _rounded(op, op.Div(op.wide(x), _along(op, scale, x, axis)))
    if zero_point:
        y = op.Add(y, _along(op, zero_point, x, axis))
    low, high = _LIMITS[dtype]
    y = op.Min(op.Max(y, op.tensor(low, np.float32)), op.tensor(high, np.float32))
    return (op.Cast(y, to=TensorProto.UINT8 if dtype == "uint8" else TensorProto.INT8),)


def _rounded(op: Standard, x: str) -> str:
    """x rounded to nearest, to even between two; Round came with opset 11."""
    if op.opset >= 11:
        return op.Round(x)
    half, one = op.tensor(0.5, np.float32), op.tensor(1.0, np.float32)
    y = op.Floor(op.Add(x, half))
    differs = [op.Sub(op.Sub(y, x), half), op.Sub(op.Floor(op.Mul(y, half)), op.Mul(y, half))]  # between two; odd
    between, even = (op.Not(op.Cast(d, to=TensorProto.BOOL)) for d in differs)
    return op.Where(op.And(between, op.Not(even)), op.Sub(y, one), y)


def _dequantize(op: Standard, x: str, scale: str, zero_point: str = "") -> Written:
    """(x - zero_point) scale, of uint8, of int8 around another number than 0, or of int32."""
    dtype = op.dtype(x)
    wide = dtype == "int32" and op.value(x) is None  # constants are made floats elsewhere
    if not (dtype in _LIMITS or wide) or (dtype == "int8" and _symmetric(op, zero_point)) or _paired(op):
        return None
    axis = op.attributes.get("axis", 1)
    y = op.Cast(x, to=TensorProto.FLOAT)
    if zero_point and not _symmetric(op, zero_point):
        y = op.Sub(y, _along(op, zero_point, x, axis))
    return (op.narrow(op.Mul(y, _along(op, scale, x, axis)), scale),)


# --- products of integers --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Side:
    """A factor of a product of integers: the tensor, its zero point ("" for 0), and the axis that this one has."""

    x: str
    zero_point: str
    axis: int


def _centred(op: Standard, side: _Side) -> str:
    """x - zero_point as float32: whole numbers of 9 bits."""
    y = op.Cast(side.x, to=TensorProto.FLOAT)
    if not side.zero_point or _symmetric(op, side.zero_point):
        return y
    return op.Sub(y, _along(op, side.zero_point, side.x, side.axis))


def _exact_product(op: Standard, a: _Side, b: str, terms: int, product: Callable[[str, str], str]) -> str:
    """The product as int32, exact: where sums of `terms` products pass 24 bits, a goes in digits of fewer bits each.

    b: centred, as float32.
    """
    bits = next((bits for bits in (9, 4, 2, 1) if terms * 255 * (2 ** min(bits, 8) - 1) < _EXACT), None)
    if bits is None:
        raise op.refuse(f"sums {terms} products, more than are exact", "use fewer channels")
    rest = _centred(op, a)
    if bits == 9:
        return op.Cast(product(rest, b), to=TensorProto.INT32)
    sums = []
    for shift in range(0, 8, bits):
        high = op.Floor(op.Mul(rest, op.tensor(2.0**-bits, np.float32)))
        digit = op.Sub(rest, op.Mul(high, op.tensor(2.0**bits, np.float32)))
        last = shift + bits >= 8
        partial = op.Cast(product(rest if last else digit, b), to=TensorProto.INT32)
        sums.append(op.Mul(partial, op.tensor(1 << shift, np.int32)))
        rest = high
    return op.total(*sums)


def _matmul_integer(op: Standard, a: str, b: str, a_zero: str = "", b_zero: str = "") -> Written:
    left, right = _Side(a, a_zero, -2), _Side(b, b_zero, -1)
    inner = (op.sizes(a) or [None])[-1]
    if inner is None:
        raise op.refuse("needs to know how long its rows are", "fix that dimension, with --shape for one")
    return (_exact_product(op, left, _centred(op, right), inner, lambda p, q: op.MatMul(p, q)),)


def _conv_integer(op: Standard, x: str, w: str, x_zero: str = "", w_zero: str = "") -> Written:
    terms = int(np.prod(op.known_sizes(w)[1:]))
    weights = _centred(op, _Side(w, w_zero, 0))
    data = _Side(x, x_zero, 1)
    return (_exact_product(op, data, weights, terms, lambda p, q: op.Conv(p, q, **op.attributes)),)


def _q_linear_matmul(
    op: Standard, a: str, a_scale: str, a_zero: str, b: str, b_scale: str, b_zero: str, y_scale: str, y_zero: str
) -> Written:
    """Of int8 around 0 between the nodes that TensorRT has for these; else of the integers, as floats."""
    if all(op.dtype(x) == "int8" and _symmetric(op, z) for x, z in ((a, a_zero), (b, b_zero))):
        y = op.MatMul(*(op.DequantizeLinear(x, s, z) for x, s, z in ((a, a_scale, a_zero), (b, b_scale, b_zero))))
        return (op.QuantizeLinear(y, y_scale, y_zero),)
    y = op.MatMul(_centred(op, _Side(a, a_zero, -2)), _centred(op, _Side(b, b_zero, -1)))
    y = op.Mul(op.Mul(y, _along(op, a_scale, a, -2)), _along(op, b_scale, b, -1))
    return (op.QuantizeLinear(op.narrow(y, y_scale), y_scale, y_zero),)


def _q_linear_conv(
    op: Standard,
    x: str,
    x_scale: str,
    x_zero: str,
    w: str,
    w_scale: str,
    w_zero: str,
    y_scale: str,
    y_zero: str,
    b: str = "",
) -> Written:
    """As QLinearMatMul; the weights' scale and zero point may be one for each output channel, the bias is int32."""
    rank = op.rank(x)
    if rank is None:
        return None
    column = op.ints(1, -1, *[1] * (rank - 2))
    scale = op.Mul(x_scale, w_scale)
    bias = op.Mul(op.Cast(b, to=TensorProto.FLOAT), scale) if b else ""
    scales = {} if op.sizes(w_scale) in ([], [1]) else {"axis": 0}  # which came with opset 13
    symmetric = all(op.dtype(t) == "int8" and _symmetric(op, z) for t, z in ((x, x_zero), (w, w_zero)))
    if symmetric and (op.opset >= 13 or not scales):
        weights = op.DequantizeLinear(w, w_scale, w_zero, **scales)
        y = op.Conv(op.DequantizeLinear(x, x_scale, x_zero), weights, *filter(None, [bias]), **op.attributes)
        return (op.QuantizeLinear(y, y_scale, y_zero),)
    y = op.Conv(_centred(op, _Side(x, x_zero, 1)), _centred(op, _Side(w, w_zero, 0)), **op.attributes)
    y = op.total(op.Mul(y, op.Reshape(scale, column)), op.Reshape(bias, column) if bias else "")
    return (op.QuantizeLinear(y, y_scale, y_zero),)


# --- float8 and 4 bits -----------------------------------------------------------------------------------------------


def _cast(op: Standard, x: str) -> Written:
    """From float8, int4 or constants of int8, which TensorRT dequantizes only: by 1."""
    to = op.attributes["to"]
    if op.dtype(x) == "int8" and op.opset >= 10 and op.value(x) is not None:
        y = op.DequantizeLinear(x, op.tensor(1, np.float32))
        return (y if to == TensorProto.FLOAT else op.Cast(y, to=to),)
    target = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}.get(to)
    if op.dtype(x) not in ("float8_e4m3fn", "int4") or target is None or op.opset < 21:
        return None
    return (op.DequantizeLinear(x, op.tensor(1, target)),)


# --- bits --------------------------------------------------------------------------------------------------------


def _bit_shift(op: Standard, x: str, shift: str) -> Written:
    """A product with, or a floor division by, a power of two, of integers twice as wide."""
    bits = {"int8": 8, "uint8": 8, "int32": 32}.get(op.dtype(x))
    if bits is None:
        return None
    wide, number = (TensorProto.INT64, np.int64) if bits == 32 else (TensorProto.INT32, np.int32)
    inside = op.And(
        op.Not(op.Less(op.Cast(shift, to=wide), op.tensor(0, number))),
        op.Less(op.Cast(shift, to=wide), op.tensor(bits, number)),
    )
    places = op.Where(inside, op.Cast(shift, to=wide), op.tensor(bits, number))
    power = op.Gather(op.tensor([1 << i for i in range(bits)] + [1 << bits], number), places)
    value = op.Cast(x, to=wide)
    if op.attributes["direction"] == "LEFT":
        moved = _wrapped(op, op.Mul(value, power), bits, op.dtype(x).startswith("u"), number)
    else:  # floor division: TensorRT's rounds towards 0
        moved = op.Div(op.Sub(value, op.Mod(value, power)), power)
    return (op.Cast(moved, to=onnx_model.elem_type(op.dtype(x))),)


def _wrapped(op: Standard, y: str, bits: int, unsigned: bool, number: type[np.integer]) -> str:
    """y modulo 2**bits, within the range of the dtype."""
    whole, half = op.tensor(1 << bits, number), op.tensor(0 if unsigned else 1 << (bits - 1), number)
    return op.Mod(y, whole) if unsigned else op.Sub(op.Mod(op.Add(y, half), whole), half)


WRITERS: dict[str, Callable[..., Written]] = {
    "BitShift": _bit_shift,
    "Cast": _cast,
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize,
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _q_linear_conv,
    "QLinearMatMul": _q_linear_matmul,
    "QuantizeLinear": _quantize,
}
