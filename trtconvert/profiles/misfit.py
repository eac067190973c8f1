"""Why a node cannot take inputs of these shapes: what was expected, what it got, and which sizes are to blame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

Dims: TypeAlias = "tuple[int, ...]"
Groups: TypeAlias = "list[list[tuple[int, int]]]"

WINDOWS = ("Conv", "ConvInteger", "MaxPool", "AveragePool", "LpPool")
_BROADCASTS = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "PRelu", "Min", "Max", "Sum", "Mean", "Where"),
        *("And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
        *("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift"),
    )
)


@dataclass(frozen=True)
class Blame:
    """A sentence, and the sizes that contradict each other, in groups of (operand, axis) that each have to change together."""

    reason: str
    groups: Groups


def explain(op_type: str, attributes: dict[str, Any], operands: Sequence[Dims], result: Dims | None) -> Blame | None:
    """The fault of a standard op with operands of these shapes; None where nothing is known of it.

    attributes: with defaults. result: shape of the first output, as far as it is known.
    """
    if op_type in _BROADCASTS:
        return _broadcast(operands)
    if op_type == "MatMul":
        return _matmul(operands)
    if op_type == "Gemm":
        return _gemm(operands, bool(attributes.get("transA")), bool(attributes.get("transB")))
    if op_type == "Concat":
        return _concat(operands, int(attributes.get("axis", 0)))
    if op_type in WINDOWS:
        return _window(operands, attributes)
    if op_type == "Reshape" and result is not None and prod(operands[0]) != prod(result):
        every = [(0, axis) for axis in range(len(operands[0]))]
        return Blame(f"{prod(operands[0])} elements cannot become {list(result)}, which has {prod(result)}", [every])
    return None


def anything(operands: Sequence[Dims], reason: str) -> Blame:
    """All sizes of each operand, with ONNX's reason, where nothing more is known."""
    groups = [[(index, axis) for axis in range(len(shape))] for index, shape in enumerate(operands)]
    return Blame(reason or "the inputs of a node do not go together", groups)


def _broadcast(operands: Sequence[Dims]) -> Blame | None:
    for offset in range(1, max(map(len, operands), default=0) + 1):
        sizes = [
            (i, len(s) - offset, s[-offset]) for i, s in enumerate(operands) if offset <= len(s) and s[-offset] != 1
        ]
        for index, axis, size in sizes[1:]:
            first, first_axis, expected = sizes[0]
            if size != expected:
                where = f"axis {axis}" if axis == first_axis else f"axes {first_axis} and {axis}"
                reason = f"sizes {expected} and {size} on {where} must be equal, or one of them 1"
                return Blame(reason, [[(first, first_axis)], [(index, axis)]])
    return None


def _equal(a: int, b: int, what: str, first: tuple[int, int], second: tuple[int, int]) -> Blame | None:
    return None if a == b else Blame(f"{what} {a} and {b} must be equal", [[first], [second]])


def _matmul(operands: Sequence[Dims]) -> Blame | None:
    a, b = operands[:2]
    if not a or not b:
        return None
    rows = max(len(b) - 2, 0)
    inner = _equal(a[-1], b[rows], "the inner sizes", (0, len(a) - 1), (1, rows))
    return inner or _broadcast([a[:-2], b[:-2]])


def _gemm(operands: Sequence[Dims], trans_a: bool, trans_b: bool) -> Blame | None:
    a, b = operands[:2]
    if len(a) != 2 or len(b) != 2:
        return None
    return _equal(a[1 - trans_a], b[int(trans_b)], "the inner sizes", (0, 1 - trans_a), (1, int(trans_b)))


def _concat(operands: Sequence[Dims], axis: int) -> Blame | None:
    first = operands[0]
    for index, shape in enumerate(operands[1:], 1):
        if len(shape) != len(first):
            return None
        for k, (a, b) in enumerate(zip(first, shape, strict=True)):
            if k != axis % len(first) and a != b:
                return _equal(a, b, f"joined on axis {axis}: on axis {k} sizes", (0, k), (index, k))
    return None


def _window(operands: Sequence[Dims], attributes: dict[str, Any]) -> Blame | None:
    """A kernel that reaches beyond the padded input; for Conv also channels that are not the weight's."""
    x = operands[0]
    weight = operands[1] if len(operands) > 1 else ()
    group = int(attributes.get("group", 1))
    if weight and len(x) > 1 and x[1] != weight[1] * group:
        return Blame(f"{x[1]} channels on axis 1, the weight takes {weight[1] * group}", [[(0, 1)]])
    kernel = attributes.get("kernel_shape") or weight[2:]
    if len(kernel) != len(x) - 2 or str(attributes.get("auto_pad", "NOTSET")).startswith("SAME"):
        return None
    for axis, (reach, size, padding) in enumerate(_reaches(x, kernel, attributes), 2):
        if reach > size + padding:
            padded = f" and padding {padding}" if padding else ""
            return Blame(f"a kernel that spans {reach} on axis {axis} of size {size}{padded}", [[(0, axis)]])
    return None


def _reaches(x: Dims, kernel: Sequence[int], attributes: dict[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Per spatial axis what the kernel spans, the size and the padding."""
    n = len(kernel)
    dilations = attributes.get("dilations") or [1] * n
    pads = attributes.get("pads") or [0] * (2 * n)
    for k in range(n):
        yield (kernel[k] - 1) * dilations[k] + 1, x[k + 2], pads[k] + pads[k + n]
