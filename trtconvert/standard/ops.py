"""Forms of standard ops that TensorRT lacks, each in terms of standard ops that it has, for any opset.

A writer returns None where TensorRT takes the node as it is. Source: ONNX' operator schemas and reference evaluator;
what TensorRT lacks was seen with TensorRT-RTX 1.7.1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from trtconvert.lowering import branches
from trtconvert.lowering.contrib_ops import normalize
from trtconvert.lowering.writer import Outputs
from trtconvert.standard.writer import Standard, Written

# --- normalisations and attention ------------------------------------------------------------------------------------


def _layer_norm(op: Standard, x: str, scale: str, b: str = "") -> Written:
    """TensorRT makes y, not the statistics."""
    return normalize(op, x, "x0", scale, b, epsilon=1e-5, statistics=True) if op.wants(1, 2) else None


_ATTENTION = {"scale", "is_causal", "q_num_heads", "kv_num_heads"}  # what TensorRT's attention has of the attributes


def _attention(
    op: Standard, q: str, k: str, v: str, mask: str = "", past_k: str = "", past_v: str = "", lengths: str = ""
) -> Written:
    """TensorRT has it where it has a kernel for it: 16 bits, heads of 32 to 256, one output, one kind of mask."""
    sizes = [op.sizes(x) for x in (q, k, v)]
    heads = [s[-1] if s else None for s in sizes]
    if op.rank(q) == 3:
        counts = [op.attributes.get(name, 0) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
        heads = [size // count if size and count else None for size, count in zip(heads, counts, strict=True)]
    plain = not (past_k or past_v or lengths or op.wants(1, 2, 3))
    known = {name for name, value in op.attributes.items() if value} <= _ATTENTION
    rows = [(op.view.info(op.names[x]).shape or [None] * 2)[-2] for x in (q, k)]
    causal = op.attributes.get("is_causal", 0)
    aligned = not causal or (rows[0] is not None and rows[0] == rows[1])  # else it matters to which end
    size = heads[0] or 0
    if (
        plain
        and known
        and aligned
        and not (mask and causal)
        and op.dtype(q) in ("float16", "bfloat16")
        and 32 <= size <= 256
        and heads == [size] * 3
        and op.native
    ):
        return None
    return op.function()


# --- sums, products, transforms along an axis ------------------------------------------------------------------------


def _cum_prod(op: Standard, x: str, axis: str) -> Written:
    """y_i is the product of the x_j that a triangle of ones picks."""
    rank, at, sizes = op.rank(x), op.number_of(axis), op.sizes(x)
    if rank is None or at is None or sizes is None or sizes[at] is None:
        raise op.refuse("needs a constant axis of known length", "bake the axis with --bake, and fix that dimension")
    n = sizes[at] or 0
    op.check_table(n, n)
    picked = np.tri(n, k=-1 if op.attributes.get("exclusive") else 0, dtype=bool).T  # [j, i]
    picked = picked[::-1, ::-1] if op.attributes.get("reverse") else picked
    to_last = [*(a for a in range(rank) if a != at % rank), at % rank]
    columns = op.unsqueezed(op.Transpose(x, perm=to_last), rank)
    products = op.reduce("ReduceProd", op.Where(op.tensor(picked, bool), columns, op.like(1, x)), [-2], 18, keepdims=0)
    return (op.Transpose(products, perm=[int(a) for a in np.argsort(to_last)]),)


def _dft(op: Standard, x: str, length: str = "", axis: str = "") -> Written:
    """A product with the matrix of the transform: real and imaginary part of each angle."""
    rank, sizes = op.rank(x), op.sizes(x)
    at = op.number_of(axis, -2) if op.opset >= 20 else op.attributes.get("axis", 1)
    if rank is None or sizes is None or at is None or (given := sizes[at]) is None or sizes[-1] not in (1, 2):
        raise op.refuse("needs a constant axis and known lengths", "bake its inputs with --bake, fix its dimensions")
    inverse, onesided = bool(op.attributes.get("inverse", 0)), bool(op.attributes.get("onesided", 0))
    n = op.number_of(length, 2 * (given - 1) if inverse and onesided else given)
    if n is None:
        raise op.refuse("needs a constant length", "bake its inputs with --bake")
    used = min(given, n // 2 + 1 if inverse and onesided else n)
    op.check_table(used, 2, n, 2)
    matrix = _real_dft_matrix(used, n) if inverse and onesided else _dft_matrix(used, n, onesided, inverse)
    matrix = matrix[:, : sizes[-1]]  # [used, parts, kept, parts of the result]
    to_end = [*(a for a in range(rank - 1) if a != at % rank), at % rank, rank - 1]
    if used < given:
        x = op.Slice(x, op.ints(0), op.ints(used), op.ints(at))
    flat = op.Reshape(op.Transpose(x, perm=to_end), op.ints(*[0] * (rank - 2), -1))
    flat = op.MatMul(flat, op.like(matrix.reshape(used * matrix.shape[1], -1), "x0"))
    y = op.Reshape(flat, op.ints(*[0] * (rank - 2), *matrix.shape[2:]))
    return (op.Transpose(y, perm=[int(a) for a in np.argsort(to_end)]),)


def _dft_matrix(used: int, n: int, onesided: bool, inverse: bool) -> NDArray[np.float64]:
    """[used, 2, n or n // 2 + 1, 2]: from samples, real and imaginary, to angles."""
    kept = n // 2 + 1 if onesided else n
    angle = 2 * np.pi / n * np.outer(np.arange(used), np.arange(kept)) * (1 if inverse else -1)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], 1) / (n if inverse else 1)


def _real_dft_matrix(used: int, n: int) -> NDArray[np.float64]:
    """[used, 2, n, 1]: from the angles up to half the circle back to real samples; the others are their conjugates."""
    k = np.arange(used)
    twice = np.where((k == 0) | (2 * k == n), 1, 2)[:, None]
    angle = 2 * np.pi / n * np.outer(k, np.arange(n))
    return np.stack([np.cos(angle) * twice, -np.sin(angle) * twice], 1)[..., None] / n


def _recurrent(op: Standard, x: str, w: str, r: str, b: str = "", lengths: str = "", *rest: str) -> Written:
    """Of the layout [N, T, ...], which TensorRT reads as [T, N, ...]: transposed before and after. rest: states, peepholes."""
    if not op.attributes.get("layout"):
        return None
    swap = [1, 0, 2]
    states = [op.Transpose(s, perm=swap) if s else "" for s in rest[:2]]
    attributes = {name: value for name, value in op.attributes.items() if name != "layout"}
    inputs = [op.Transpose(x, perm=swap), w, r, b, lengths, *states, *rest[2:]]
    y, *last = op.several(op.node.op_type, len(op.node.output), *inputs, **attributes)
    return (op.Transpose(y, perm=[2, 0, 1, 3]), *(op.Transpose(state, perm=swap) for state in last))


# --- elementwise -----------------------------------------------------------------------------------------------------


def _mod(op: Standard, a: str, b: str) -> Written:
    """Of floats with the sign of b: the remainder with the sign of a, and b more where the signs differ."""
    if op.attributes.get("fmod") or op.dtype(a) not in ("float16", "bfloat16", "float32", "float64"):
        return None
    r, zero = op.Mod(a, b, fmod=1), op.like(0, a)
    differ = op.Xor(op.Less(r, zero), op.Less(b, zero))
    return (op.Where(op.And(differ, op.Not(op.Equal(r, zero))), op.Add(r, b), r),)


def _celu(op: Standard, x: str) -> Written:
    return None if op.dtype(x) == "float32" and op.native else op.function()


def _matmul(op: Standard, a: str, b: str) -> Written:
    """A vector times more than a matrix: the vector as a row."""
    rank = op.rank(b)
    if op.rank(a) != 1 or rank is None or rank < 3:
        return None
    y = op.MatMul(op.Reshape(a, op.ints(1, -1)), b)
    return (op.Squeeze(y, op.ints(-2)) if op.opset >= 13 else op.Squeeze(y, axes=[-2]),)


def _reduce_max(op: Standard, x: str, axes: str = "") -> Written:
    return _any(op, x, axes) if op.dtype(x) == "bool" else None


def _reduce_min(op: Standard, x: str, axes: str = "") -> Written:
    return (op.Not(*_any(op, op.Not(x), axes)),) if op.dtype(x) == "bool" else None


def _any(op: Standard, x: str, axes: str) -> Outputs:
    """Whether one of the bools is true: there are some when they are counted."""
    count = op.ReduceSum(op.Cast(x, to=TensorProto.INT32), *filter(None, [axes]), **op.attributes)
    return (op.Greater(count, op.tensor(0, np.int32)),)


def _dropout(op: Standard, x: str, ratio: str = "", training: str = "") -> Written:
    """In training it draws random numbers, unless it drops nothing."""
    if not op.number_of(training, False) or op.number_of(ratio, 0.5) != 0:
        return None
    return op.Identity(x), op.Expand(op.tensor(True, bool), op.Shape(x))


def _range(op: Standard, start: str, *_: str) -> Written:
    """Of 16 bits: a constant, if it is one."""
    if op.dtype(start) in ("float32", "int32", "int64"):
        return None
    known = branches.value(op.view, op.node.output[0], op.values)
    return None if known is None else (op.tensor(known, known.dtype),)


# --- picking and placing ---------------------------------------------------------------------------------------------


def _compress(op: Standard, x: str, condition: str) -> Written:
    """A Gather of the positions at which the condition holds."""
    known = op.value(condition)
    found = op.NonZero(condition) if known is None else op.tensor(np.flatnonzero(known), np.int64)
    at = op.Reshape(found, op.ints(-1))
    axis = op.attributes.get("axis")
    return (op.Gather(op.Reshape(x, op.ints(-1)), at) if axis is None else op.Gather(x, at, axis=axis),)


def _col2im(op: Standard, x: str, image: str, block: str) -> Written:
    """A transposed convolution of each channel with weights that put every element in its place."""
    sizes, out, kernel = op.sizes(x), op.value(image), op.value(block)
    if out is None or kernel is None or sizes is None or sizes[1] is None:
        raise op.refuse("needs constant shapes of image and block", "bake them with --bake")
    n = len(out)
    dilations, strides = (op.attributes.get(name, [1] * n) for name in ("dilations", "strides"))
    pads = op.attributes.get("pads", [0] * 2 * n)
    free = [int(o) + pads[i] + pads[i + n] - dilations[i] * (int(kernel[i]) - 1) - 1 for i, o in enumerate(out)]
    rest = [f % s for f, s in zip(free, strides, strict=True)]
    count = int(np.prod(kernel))
    op.check_table(sizes[1], count)
    weight = np.tile(np.eye(count), (sizes[1] // count, 1)).reshape(sizes[1], 1, *kernel)
    blocks = op.Reshape(x, op.ints(0, 0, *(f // s + 1 for f, s in zip(free, strides, strict=True))))
    group = sizes[1] // count
    y = op.ConvTranspose(
        blocks, op.like(weight, x), group=group, dilations=dilations, strides=strides, pads=pads, output_padding=rest
    )
    return (y,)


def _space_to_depth(op: Standard, x: str) -> Written:
    """TensorRT knows the order DCR only and does not say so (seen with the parser of 1.7.1): its channels, in the order CRD."""
    if op.attributes.get("mode", b"DCR") in (b"DCR", "DCR"):
        return None
    channels, block = op.known_sizes(x)[1], op.attributes["blocksize"]
    order = np.arange(block * block * channels).reshape(block * block, channels).T.ravel()
    return (op.Gather(op.SpaceToDepth(x, blocksize=block), op.ints(*map(int, order)), axis=1),)


def _has_element(op: Standard, x: str = "") -> Written:
    """A tensor is there, what is not given is not."""
    if x and op.rank(x) is None:
        return None
    return (op.tensor(bool(x), bool),)


WRITERS: dict[str, Callable[..., Written]] = {
    "Attention": _attention,
    "Celu": _celu,
    "Col2Im": _col2im,
    "Compress": _compress,
    "CumProd": _cum_prod,
    "DFT": _dft,
    "Dropout": _dropout,
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "LayerNormalization": _layer_norm,
    "MatMul": _matmul,
    "Mod": _mod,
    "OptionalHasElement": _has_element,
    "RNN": _recurrent,
    "Range": _range,
    "ReduceMax": _reduce_max,
    "ReduceMin": _reduce_min,
    "SpaceToDepth": _space_to_depth,
}
