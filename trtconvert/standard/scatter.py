"""Scatter with a reduction, which TensorRT lacks: of all updates those that go to an element, and these combined."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trtconvert.model import numpy_dtype
from trtconvert.standard.writer import Standard, Written

_COMBINE = {"add": ("ReduceSum", 13, "Add"), "mul": ("ReduceProd", 18, "Mul"), "max": ("ReduceMax", 18, "Max")}
_COMBINE["min"] = ("ReduceMin", 18, "Min")


def _neutral(op: Standard, kind: str, x: str) -> str:
    """What changes nothing when it is added, multiplied or compared."""
    dtype = numpy_dtype(op.dtype(x) or "float32")
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    values = {"add": 0, "mul": 1, "max": limits.min if limits else -np.inf, "min": limits.max if limits else np.inf}
    return op.like(values[kind], x)


def _combined(op: Standard, kind: str, data: str, hits: str, updates: str, axis: int) -> str:
    """data with the updates along `axis` that hit it. hits: bool; both broadcast to updates by elements."""
    reduction, since, node = _COMBINE[kind]
    chosen = op.Where(hits, updates, _neutral(op, kind, "x0"))
    return op.node_of(node, data, op.reduce(reduction, chosen, [axis], since=since, keepdims=0))


def _scatter_nd(op: Standard, data: str, indices: str, updates: str) -> Written:
    kind = op.attributes.get("reduction", "none")
    if kind == "none":
        return None
    sizes, shape = op.known_sizes(data), op.known_sizes(indices)
    depth = shape[-1]
    places, inner, count = (int(np.prod(s)) for s in (sizes[:depth], sizes[depth:], shape[:-1]))
    op.check_table(count, places, inner)
    rows = op.Reshape(indices, op.ints(count, depth))
    rows = op.Where(op.Less(rows, op.ints(0)), op.Add(rows, op.ints(*sizes[:depth])), rows)
    strides = [int(np.prod(sizes[i + 1 : depth])) for i in range(depth)]
    flat = op.reduce("ReduceSum", op.Mul(rows, op.ints(*strides)), [1], since=13)  # [count, 1]
    hits = op.Reshape(op.Equal(flat, op.ints(*range(places))), op.ints(count, places, 1))
    given = op.Reshape(updates, op.ints(count, 1, inner))
    y = _combined(op, kind, op.Reshape(data, op.ints(places, inner)), hits, given, 0)
    return (op.Reshape(y, op.ints(*sizes)),)


def _scatter_elements(op: Standard, data: str, indices: str, updates: str) -> Written:
    kind = op.attributes.get("reduction", "none")
    if kind == "none":
        return None
    sizes, shape = op.known_sizes(data), op.known_sizes(indices)
    rank, axis = len(sizes), op.attributes.get("axis", 0) % len(sizes)
    others = [[n for i, n in enumerate(s) if i != axis] for s in (sizes, shape)]
    if others[0] != others[1]:
        raise op.refuse("with a reduction has indices smaller than the data on other axes", "make them as large")
    op.check_table(*shape, sizes[axis])
    at, given = (op.unsqueezed(op.moved(x, rank, axis, -1), rank) for x in (indices, updates))
    number = numpy_dtype(op.dtype(indices))
    at = op.Where(op.Less(at, op.tensor(0, number)), op.Add(at, op.tensor(sizes[axis], number)), at)
    hits = op.Equal(at, op.tensor(np.arange(sizes[axis]), number))
    y = _combined(op, kind, op.moved(data, rank, axis, -1), hits, given, -2)
    return (op.moved(y, rank, rank - 1, axis),)


WRITERS: dict[str, Callable[..., Written]] = {
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
}
