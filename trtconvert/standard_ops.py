"""Forms of standard ops that TensorRT lacks, each in terms of standard ops that it has, for any opset.

A writer returns None where TensorRT takes the node as it is. Source: ONNX' operator schemas and reference evaluator;
what TensorRT lacks was seen with TensorRT-RTX 1.7.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import FunctionProto, NodeProto

from trtconvert import branches, functions
from trtconvert.contrib_ops import normalize
from trtconvert.graph import GraphView
from trtconvert.writer import Outputs, Writer

Written: TypeAlias = "Outputs | FunctionProto | None"


class Standard(Writer):
    """Writes nodes for one standard node; knows what is known of its inputs."""

    def __init__(self, node: NodeProto, view: GraphView, values: branches.Values, native: bool) -> None:
        super().__init__(node, view.opset, lambda name: (view.info(name).dtype, view.rank(name)))
        self.view, self.values, self.native = view, values, native

    def value(self, x: str) -> NDArray[Any] | None:
        """The input's value, if it is known before the engine is built."""
        return branches.value(self.view, self.names[x], self.values) if x else None

    def number_of(self, x: str, default: Any = None) -> Any:
        """The input's only element, if it is known; default if there is no such input."""
        found = self.value(x) if x else np.asarray(default)
        return found.item() if found is not None and found.size == 1 else None

    def sizes(self, x: str) -> list[int | None] | None:
        """The input's dimensions, None for those that are not known; None if not even their number is."""
        shape = self.view.info(self.names[x]).shape
        return None if shape is None else [d if isinstance(d, int) else None for d in shape]

    def function(self) -> FunctionProto | None:
        """The op as ONNX defines it by others."""
        return functions.body(self.node, self.opset, self.view)

    def ints(self, *values: int) -> str:
        """A constant vector."""
        return self.tensor(values, np.int64)

    def like(self, value: Any, x: str) -> str:
        """A constant tensor of an input's dtype."""
        array = np.asarray(value, np.float64)
        return self.CastLike(self.tensor(array, np.float32), x) if not self.dtype(x) else self._cast(array, x)

    def _cast(self, array: NDArray[Any], x: str) -> str:
        from trtconvert.model import numpy_dtype

        return self.tensor(array, numpy_dtype(self.dtype(x)))


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
    size = heads[0] or 0
    if (
        plain
        and known
        and not (mask and op.attributes.get("is_causal"))
        and op.dtype(q) in ("float16", "bfloat16")
        and 32 <= size <= 256
        and heads == [size] * 3
        and op.native
    ):
        return None
    return op.function()


def _batch_norm(op: Standard, x: str, scale: str, b: str, mean: str, var: str) -> Written:
    """In training mode: normalised by the batch's own mean and variance, and the running ones moved towards these."""
    rank = op.rank(x)
    if not op.attributes.get("training_mode") or rank is None:
        return None
    axes = [0, *range(2, rank)]
    shape = op.ints(1, -1, *[1] * (rank - 2))
    wide = op.wide(x)
    center = op.mean(wide, axes)
    d = op.Sub(wide, center)
    spread = op.mean(op.Mul(d, d), axes)
    epsilon = op.tensor(op.attributes.get("epsilon", 1e-5), np.float32)
    y = op.Div(d, op.Sqrt(op.Add(spread, epsilon)))
    y = op.Add(op.Mul(y, op.Reshape(op.wide(scale), shape)), op.Reshape(op.wide(b), shape))
    momentum = op.attributes.get("momentum", 0.9)
    kept, new = (op.tensor(m, np.float32) for m in (momentum, 1 - momentum))
    running = (
        op.narrow(op.Add(op.Mul(op.wide(old), kept), op.Mul(op.Reshape(batch, op.ints(-1)), new)), old)
        for old, batch in ((mean, center), (var, spread))
    )
    return (op.narrow(y, x), *running)


# --- sums, products, transforms along an axis ------------------------------------------------------------------------


def _cum_prod(op: Standard, x: str, axis: str) -> Written:
    """y_i is the product of the x_j that a triangle of ones picks."""
    rank, at, sizes = op.rank(x), op.number_of(axis), op.sizes(x)
    if rank is None or at is None or sizes is None or sizes[at] is None:
        raise op.refuse("needs a constant axis of known length", "bake the axis with --bake, and fix that dimension")
    n = sizes[at] or 0
    picked = np.tri(n, k=-1 if op.attributes.get("exclusive") else 0, dtype=bool).T  # [j, i]
    picked = picked[::-1, ::-1] if op.attributes.get("reverse") else picked
    to_last = [*(a for a in range(rank) if a != at % rank), at % rank]
    columns = op.Unsqueeze(op.Transpose(x, perm=to_last), op.ints(rank))
    products = op.reduce("ReduceProd", op.Where(op.tensor(picked, bool), columns, op.like(1, x)), [-2], 18, keepdims=0)
    return (op.Transpose(products, perm=[int(a) for a in np.argsort(to_last)]),)


def _dft(op: Standard, x: str, length: str = "", axis: str = "") -> Written:
    """A product with the matrix of the transform: real and imaginary part of each angle."""
    rank, sizes = op.rank(x), op.sizes(x)
    at = op.number_of(axis, -2) if op.opset >= 20 else op.attributes.get("axis", 1)
    n = op.number_of(length, sizes[at] if sizes and at is not None else None)
    if rank is None or sizes is None or at is None or n is None or sizes[at] is None or sizes[-1] not in (1, 2):
        raise op.refuse("needs a constant axis and known lengths", "bake its inputs with --bake, fix its dimensions")
    inverse, onesided = op.attributes.get("inverse", 0), op.attributes.get("onesided", 0)
    if inverse and onesided:
        raise op.refuse("is inverse and one-sided, which older opsets do not define", "export it two-sided")
    used = min(sizes[at] or 0, n)
    matrix = _dft_matrix(used, sizes[-1] or 1, n, n // 2 + 1 if onesided else n, bool(inverse))
    to_end = [*(a for a in range(rank - 1) if a != at % rank), at % rank, rank - 1]
    if used < (sizes[at] or 0):
        x = op.Slice(x, op.ints(0), op.ints(used), op.ints(at))
    flat = op.Reshape(op.Transpose(x, perm=to_end), op.ints(*[0] * (rank - 2), -1))
    y = op.Reshape(op.MatMul(flat, op.like(matrix, "x0")), op.ints(*[0] * (rank - 2), matrix.shape[1] // 2, 2))
    return (op.Transpose(y, perm=[int(a) for a in np.argsort(to_end)]),)


def _dft_matrix(used: int, parts: int, n: int, kept: int, inverse: bool) -> NDArray[np.float64]:
    """[used * parts, kept * 2]: from samples (real, or real and imaginary) to angles."""
    angle = 2 * np.pi / n * np.outer(np.arange(used), np.arange(kept)) * (1 if inverse else -1)
    cos, sin = np.cos(angle), np.sin(angle)
    rows = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)][:parts], 1)  # [used, parts, kept, 2]
    return rows.reshape(used * parts, kept * 2) / (n if inverse else 1)


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


def _reduce_bool(op: Standard, x: str, axes: str = "") -> Written:
    """ReduceMax and ReduceMin of bool: as integers."""
    if op.dtype(x) != "bool":
        return None
    inputs = [op.Cast(x, to=6), *filter(None, [axes])]
    return (op.Cast(op.node_of(op.node.op_type, *inputs, **op.attributes), to=9),)


def _dropout(op: Standard, x: str, ratio: str = "", training: str = "") -> Written:
    """In training it draws random numbers, unless it drops nothing."""
    trains = op.number_of(training, False)
    if trains is False or trains == 0:
        return None
    if op.number_of(ratio, 0.5) != 0:
        raise op.refuse("in training mode draws random numbers, which an engine does not", "export for inference")
    return op.Identity(x), op.Expand(op.tensor(True, bool), op.Shape(x))


# --- picking and placing ---------------------------------------------------------------------------------------------


def _compress(op: Standard, x: str, condition: str) -> Written:
    """A Gather of the positions at which the condition holds."""
    known = op.value(condition)
    if known is not None:
        at = op.tensor(np.flatnonzero(known), np.int64)
    else:
        at = op.Reshape(op.NonZero(condition), op.ints(-1))
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
    weight = np.tile(np.eye(count), (sizes[1] // count, 1)).reshape(sizes[1], 1, *kernel)
    blocks = op.Reshape(x, op.ints(0, 0, *(f // s + 1 for f, s in zip(free, strides, strict=True))))
    group = sizes[1] // count
    y = op.ConvTranspose(
        blocks, op.like(weight, x), group=group, dilations=dilations, strides=strides, pads=pads, output_padding=rest
    )
    return (y,)


def _has_element(op: Standard, x: str = "") -> Written:
    """A tensor is there, what is not given is not."""
    if x and op.rank(x) is None:
        return None
    return (op.tensor(bool(x), bool),)


WRITERS: dict[str, Callable[..., Written]] = {
    "Attention": _attention,
    "BatchNormalization": _batch_norm,
    "Celu": _celu,
    "Col2Im": _col2im,
    "Compress": _compress,
    "CumProd": _cum_prod,
    "DFT": _dft,
    "Dropout": _dropout,
    "LayerNormalization": _layer_norm,
    "MatMul": _matmul,
    "Mod": _mod,
    "OptionalHasElement": _has_element,
    "ReduceMax": _reduce_bool,
    "ReduceMin": _reduce_bool,
}
