"""Pooling in forms that TensorRT lacks: every offset of the window as a strided slice, and these combined."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from trtconvert.standard.writer import Standard, Written

MAX_OFFSETS = 256  # of one window


@dataclass(frozen=True)
class _Windows:
    """Where the windows of a pooling node lie, an entry per spatial axis. after: padding behind, what ceil_mode adds among it."""

    sizes: list[int]
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[int]
    behind: list[int]
    out: list[int]
    after: list[int]

    @property
    def axes(self) -> list[int]:
        return list(range(2, 2 + len(self.sizes)))

    def offsets(self) -> list[tuple[int, ...]]:
        """Positions inside the window, dilated, the last axis fastest."""
        return list(itertools.product(*(range(0, k * d, d) for k, d in zip(self.kernel, self.dilations, strict=True))))

    def counts(self, with_padding: bool) -> NDArray[np.float64]:
        """How many elements each window has, those of the padding among them or not. [out sizes]"""
        per_axis = []
        for n, k, s, d, p, q, o in zip(
            self.sizes, self.kernel, self.strides, self.dilations, self.before, self.behind, self.out, strict=True
        ):
            at = np.arange(o)[:, None] * s - p + np.arange(k) * d
            low, high = (-p, n + q) if with_padding else (0, n)
            per_axis.append(((at >= low) & (at < high)).sum(1))
        return np.asarray(reduce(np.multiply.outer, per_axis), np.float64)


def _windows(op: Standard, x: str) -> _Windows:
    sizes, kernel = op.known_sizes(x)[2:], op.attributes["kernel_shape"]
    n = len(kernel)
    strides, dilations = (op.attributes.get(name, [1] * n) for name in ("strides", "dilations"))
    pads, auto = op.attributes.get("pads", [0] * 2 * n), op.attributes.get("auto_pad", "NOTSET")
    if int(np.prod(kernel)) > MAX_OFFSETS:
        raise op.refuse(f"has windows of {kernel}, too many elements to write one by one", "use a smaller window")
    if auto.startswith("SAME") and _dilated(op):
        raise op.refuse(f"has auto_pad {auto} with dilations, of which runtimes make different sizes", "give it pads")
    found = []
    for i, (size, k, s, d) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        span = d * (k - 1) + 1
        p, q = (0, 0) if auto == "VALID" else (pads[i], pads[i + n])
        if auto.startswith("SAME"):
            total = max((-(-size // s) - 1) * s + span - size, 0)
            p, q = (total // 2, total - total // 2) if auto == "SAME_UPPER" else (total - total // 2, total // 2)
        free = size + p + q - span
        o = (-(-free // s) if op.attributes.get("ceil_mode") else free // s) + 1
        o -= (o - 1) * s >= size + p  # a window that starts in the padding behind does not count
        found.append((p, q, o, max((o - 1) * s + span - size - p, 0)))
    before, behind, out, after = map(list, zip(*found, strict=True))
    return _Windows(sizes, kernel, strides, dilations, before, behind, out, after)


def _slices(op: Standard, x: str, w: _Windows, padding: float) -> list[str]:
    """For each offset in the window, the elements that lie there. [N, C, out sizes] each"""
    if any(w.before) or any(w.after):
        x = op.Pad(x, op.ints(0, 0, *w.before, 0, 0, *w.after), op.like(padding, "x0"))
    axes, steps = op.ints(*w.axes), op.ints(*w.strides)
    return [
        op.Slice(
            x,
            op.ints(*offset),
            op.ints(*(at + (o - 1) * s + 1 for at, o, s in zip(offset, w.out, w.strides, strict=True))),
            axes,
            steps,
        )
        for offset in w.offsets()
    ]


def _dilated(op: Standard) -> bool:
    return any(d != 1 for d in op.attributes.get("dilations", ()))


def _late(op: Standard, x: str) -> bool:
    """Whether rounding up gives a window that starts behind the data: ONNX leaves it out, TensorRT does not."""
    sizes = op.sizes(x)
    if not op.attributes.get("ceil_mode") or sizes is None or None in sizes[2:]:
        return False
    w = _windows(op, x)
    full = [
        -(-(n + p + q - d * (k - 1) - 1) // s) + 1
        for n, p, q, d, k, s in zip(w.sizes, w.before, w.behind, w.dilations, w.kernel, w.strides, strict=True)
    ]
    return full != w.out


def _max_pool(op: Standard, x: str) -> Written:
    """With dilations, with the indices of the maxima, or with less windows than TensorRT makes."""
    if (
        not (_dilated(op) or op.wants(1) or _late(op, x))
        or op.opset < 11
        or not op.dtype(x).startswith(("float", "bfloat"))
    ):
        return None
    w = _windows(op, x)
    slices = _slices(op, x, w, -np.inf)
    if not op.wants(1):
        return (reduce(op.Max, slices),)
    n, c = op.known_sizes(x)[:2]
    row_major = not op.attributes.get("storage_order", 0)
    sizes = w.sizes if row_major else w.sizes[::-1]
    per_axis = [int(np.prod(sizes[i + 1 :])) for i in range(len(sizes))]
    per_axis = per_axis if row_major else per_axis[::-1]
    starts = [(np.arange(o) * s - p) * m for o, s, p, m in zip(w.out, w.strides, w.before, per_axis, strict=True)]
    planes = np.arange(n * c).reshape(n, c) * int(np.prod(w.sizes))
    base = reduce(np.add.outer, [planes, *starts])
    within = [int(np.dot(offset, per_axis)) for offset in w.offsets()]
    stacked = op.Concat(*(op.unsqueezed(s, 2 + len(w.sizes)) for s in slices), axis=-1)
    picked = op.Gather(op.ints(*within), op.ArgMax(stacked, axis=-1, keepdims=0))
    return op.reduce("ReduceMax", stacked, [-1], since=18, keepdims=0), op.Add(picked, op.tensor(base, np.int64))


def _average_pool(op: Standard, x: str) -> Written:
    """With dilations, or with less windows than TensorRT makes."""
    if not (_dilated(op) or _late(op, x)) or op.opset < 11:
        return None
    w = _windows(op, x)
    counts = w.counts(with_padding=bool(op.attributes.get("count_include_pad")))
    return (op.Div(reduce(op.Add, _slices(op, x, w, 0)), op.like(counts, x)),)


def _lp_pool(op: Standard, x: str) -> Written:
    """(sum of |x|^p)^(1/p); with dilations, or of a p that is neither 1 nor 2."""
    p = op.attributes.get("p", 2)
    if (p in (1, 2) and not _dilated(op)) or op.opset < 11:
        return None
    powers = op.Pow(op.Abs(x), op.like(p, x))
    return (op.Pow(reduce(op.Add, _slices(op, powers, _windows(op, x), 0)), op.like(1 / p, x)),)


def _max_unpool(op: Standard, x: str, indices: str, shape: str = "") -> Written:
    """Every element scattered to where it came from, zeros elsewhere."""
    n, c, *sizes = op.known_sizes(x)
    kernel = op.attributes["kernel_shape"]
    strides, pads = op.attributes.get("strides", [1] * len(kernel)), op.attributes.get("pads", [0] * 2 * len(kernel))
    out = [
        (size - 1) * s + k - pads[i] - pads[i + len(kernel)]
        for i, (size, s, k) in enumerate(zip(sizes, strides, kernel, strict=True))
    ]
    zeros = op.Expand(op.like(0, x), op.ints(n * c * int(np.prod(out))))
    flat = op.ScatterElements(zeros, op.Reshape(indices, op.ints(-1)), op.Reshape(x, op.ints(-1)), axis=0)
    y = op.Reshape(flat, op.ints(n, c, *out))
    wanted = op.value(shape) if shape else np.asarray([n, c, *out])
    if wanted is None or any(wanted < [n, c, *out]):
        raise op.refuse("needs a constant output shape, no smaller than its windows", "bake the shape with --bake")
    more = [int(a) - b for a, b in zip(wanted, [n, c, *out], strict=True)]
    return (op.Pad(y, op.ints(*[0] * len(more), *more)) if any(more) else y,)


WRITERS: dict[str, Callable[..., Written]] = {
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
}
