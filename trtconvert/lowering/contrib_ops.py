"""Each of onnxruntime's own ops (domain com.microsoft) in terms of standard ONNX ops, for any opset.

Source: onnxruntime 1.32, docs/ContribOperators.md, and what its CPU kernels compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from trtconvert.lowering.writer import Outputs, Writer

# --- the ops: inputs and outputs are names of tensors, "" for an input that is not there -------------------------------


def _gelu(op: Writer, x: str) -> Outputs:
    return (_erf_gelu(op, x),)


def _bias_gelu(op: Writer, a: str, b: str) -> Outputs:
    return (_erf_gelu(op, op.Add(a, b)),)


def _erf_gelu(op: Writer, x: str) -> str:
    """0.5 x (1 + erf(x / sqrt(2)))"""
    if op.opset >= 20:
        return op.Gelu(x)
    phi = op.Add(op.Erf(op.Mul(x, op.number(math.sqrt(0.5), "x0"))), op.number(1.0, "x0"))
    return op.Mul(op.Mul(x, op.number(0.5, "x0")), phi)


def _fast_gelu(op: Writer, x: str, bias: str = "") -> Outputs:
    """0.5 x (1 + tanh(x sqrt(2 / pi) (1 + 0.044715 x^2)))"""
    x = op.total(x, bias)
    if op.opset >= 20:
        return (op.Gelu(x, approximate="tanh"),)
    root = math.sqrt(2 / math.pi)
    factor = op.Add(op.Mul(op.Mul(x, x), op.number(0.044715 * root, "x0")), op.number(root, "x0"))
    phi = op.Add(op.Tanh(op.Mul(x, factor)), op.number(1.0, "x0"))
    return (op.Mul(op.Mul(x, op.number(0.5, "x0")), phi),)


def _quick_gelu(op: Writer, x: str) -> Outputs:
    """x sigmoid(alpha x)"""
    return (op.Mul(x, op.Sigmoid(op.Mul(x, op.number(op.attributes.get("alpha", 1.702), "x0")))),)


def _layer_norm(op: Writer, x: str, scale: str, b: str = "") -> Outputs:
    return normalize(op, x, "x0", scale, b, epsilon=1e-5)


def _simplified_layer_norm(op: Writer, x: str, scale: str) -> Outputs:
    y, _, inv_std_var = normalize(op, x, "x0", scale, None, epsilon=1e-5, statistics=op.wants(1))
    return y, inv_std_var


def _skip_layer_norm(op: Writer, x: str, skip: str, gamma: str, beta: str = "", bias: str = "") -> Outputs:
    x = op.total(x, skip, bias)
    return (*normalize(op, x, "x0", gamma, beta, epsilon=1e-12), x)


def _skip_simplified_layer_norm(op: Writer, x: str, skip: str, gamma: str, bias: str = "") -> Outputs:
    x = op.total(x, skip, bias)
    return (*normalize(op, x, "x0", gamma, None, epsilon=1e-12), x)


def normalize(
    op: Writer, x: str, like: str, scale: str, bias: str | None, epsilon: float, statistics: bool | None = None
) -> Outputs:
    """(x - mean) / sqrt(var + epsilon) * scale + bias, mean and 1 / sqrt(var + epsilon); bias None: without the mean.

    like: an input of x's dtype; y has that of scale. Arithmetic in float32. epsilon: the op's default.
    """
    epsilon = op.attributes.get("epsilon", epsilon)
    axis = op.attributes.get("axis", -1)
    if not (op.wants(1, 2) if statistics is None else statistics):  # TensorRT refuses those outputs of the standard op
        if bias is None and op.opset >= 23:
            return op.RMSNormalization(x, scale, axis=axis, epsilon=epsilon), "", ""
        if bias is not None and op.opset >= 17 and op.dtype(like) == op.dtype(scale):
            return op.LayerNormalization(x, scale, *filter(None, [bias]), axis=axis, epsilon=epsilon), "", ""
    axes = op.axes_from(axis, like)
    x = op.wide(x, like)
    mean = "" if bias is None else op.mean(x, axes)
    d = op.Sub(x, mean) if mean else x
    inv = op.Reciprocal(op.Sqrt(op.Add(op.mean(op.Mul(d, d), axes), op.tensor(epsilon, np.float32))))
    y = op.Mul(op.Mul(d, inv), op.wide(scale))
    return op.narrow(op.total(y, op.wide(bias) if bias else ""), scale), mean, inv


def _embed_layer_norm(
    op: Writer,
    ids: str,
    segment_ids: str,
    words: str,
    positions: str,
    segments: str,
    gamma: str,
    beta: str,
    mask: str = "",
    position_ids: str = "",
) -> Outputs:
    """Up to three embeddings, summed and normalised; mask_index is the number of ones in a row of the mask."""
    first = op.tensor([0], np.int64)
    if position_ids:
        position = op.Gather(positions, position_ids)
    else:
        length = op.Gather(op.Shape(ids), op.tensor([1], np.int64))
        position = op.Slice(positions, first, length, first)
    x = op.total(op.Gather(words, ids), position, op.Gather(segments, segment_ids) if segment_ids else "")
    y, _, _ = normalize(op, x, words, gamma, beta, epsilon=1e-12, statistics=False)
    count = ""
    if op.wants(1) and mask:
        ones = op.Cast(op.Equal(mask, op.tensor(1, np.int32)), to=TensorProto.INT32)
        count = op.reduce("ReduceSum", ones, [1], since=13, keepdims=0)
    elif op.wants(1):
        count = op.Expand(op.tensor(0, np.int32), op.Gather(op.Shape(ids), first))
    return y, count, x


def _fused_matmul(op: Writer, a: str, b: str) -> Outputs:
    """alpha A' B', A' and B' transposed: trans swaps the last two axes, transBatch moves the first one behind the batch."""
    y = op.MatMul(_transposed(op, a, "A"), _transposed(op, b, "B"))
    alpha = op.attributes.get("alpha", 1.0)
    return (y if alpha == 1.0 else op.Mul(y, op.number(alpha, "x0")),)


def _transposed(op: Writer, x: str, side: str) -> str:
    swap, batch = op.attributes.get(f"trans{side}", 0), op.attributes.get(f"transBatch{side}", 0)
    rank = op.rank(x)
    if not (swap or batch) or rank == 1:
        return x
    if rank is None:  # as in inference
        return op.Einsum(x, equation=f"{'m...k' if batch else '...mk'}->{'...km' if swap else '...mk'}")
    perm = [*range(1, rank - 1), 0, rank - 1] if batch else list(range(rank))
    if swap:
        perm[-2:] = perm[:-3:-1]
    return op.Transpose(x, perm=perm)


_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_ACTIVATIONS = {  # and their attributes
    "": (),
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}


def _fused_conv(op: Writer, x: str, w: str, b: str = "", z: str = "") -> Outputs:
    """activation(Conv(x, w, b) + z)"""
    attributes = {name: value for name, value in op.attributes.items() if name in _CONV}
    y = op.total(op.Conv(x, w, *filter(None, [b]), **attributes), z)
    activation, values = op.attributes.get("activation", ""), op.attributes.get("activation_params", [])
    names = _ACTIVATIONS.get(activation)
    if names is None or len(values) < len(names):
        known = ", ".join(f"{a}({', '.join(p)})" for a, p in _ACTIVATIONS.items() if a)
        raise op.refuse(f"has activation {activation!r} with parameters {values}", f"onnxruntime defines {known}")
    if activation == "Clip":
        return (op.Clip(y, *(op.number(v, "x0") for v in values[:2])),)
    return (op.node_of(activation, y, **dict(zip(names, values, strict=False))) if activation else y,)


_GEMM = ("alpha", "beta", "transA", "transB")


def _fused_gemm(op: Writer, a: str, b: str, c: str = "") -> Outputs:
    """activation(Gemm(a, b, c)); the activation's attributes are prefixed with its name's kind."""
    gemm = {name: value for name, value in op.attributes.items() if name in _GEMM}
    y = op.Gemm(a, b, *filter(None, [c]), **gemm)
    prefix = "activation_"
    attributes = {k.removeprefix(prefix): v for k, v in op.attributes.items() if k.startswith(prefix)}
    activation = op.attributes.get("activation", "")
    return (op.node_of(activation, y, **attributes) if activation else y,)


def _quantization(op: Writer, x: str, scale: str, zero_point: str = "") -> Outputs:
    """QuantizeLinear and DequantizeLinear, which onnxruntime takes as its own for integers that ONNX had not yet."""
    dtype = op.dtype(zero_point) if zero_point else ""
    if op.opset < 21 and dtype not in ("", "int8", "uint8", "int32"):
        raise op.refuse(f"is of {dtype}, which ONNX has from opset 21 on", "quantize to 8 bits, or export to opset 21")
    axis = {name: value for name, value in op.attributes.items() if name == "axis" and op.opset >= 13}
    return (op.node_of(op.node.op_type, x, scale, *filter(None, [zero_point]), **axis),)


WRITERS: dict[str, Callable[..., Outputs]] = {
    "BiasGelu": _bias_gelu,
    "DequantizeLinear": _quantization,
    "EmbedLayerNormalization": _embed_layer_norm,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu,
    "LayerNormalization": _layer_norm,
    "QuantizeLinear": _quantization,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _simplified_layer_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_simplified_layer_norm,
}
