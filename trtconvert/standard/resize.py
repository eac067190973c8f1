"""Resize in forms that TensorRT lacks: per axis a Gather of the nearest elements, or a product with a matrix of weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtconvert.standard.writer import Standard, Written

Array = NDArray[np.float64]
# What TensorRT has.
_COORDINATES = ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn")


@dataclass(frozen=True)
class _Axis:
    """One axis that changes: its sizes before and after, the scale that coordinates are computed with, and its part of roi."""

    index: int
    before: int
    after: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    def coordinates(self, mode: str) -> Array:
        """Where the results lie among the elements. Formulas: ONNX, Resize, coordinate_transformation_mode."""
        x, n, m = np.arange(self.after, dtype=np.float64), self.before, self.after
        if mode == "align_corners":
            return x * ((n - 1) / (m - 1)) if m > 1 else np.zeros(m)
        if mode == "asymmetric":
            return x / self.scale
        if mode == "tf_crop_and_resize":
            if m == 1:
                return np.full(1, 0.5 * (self.start + self.end) * (n - 1))
            return self.start * (n - 1) + x * (self.end - self.start) * (n - 1) / (m - 1)
        if mode == "pytorch_half_pixel" and m == 1:
            return np.zeros(1)
        shift = n / 2 * (1 - m / (self.scale * n)) if mode == "half_pixel_symmetric" else 0.0
        return shift + (x + 0.5) / self.scale - 0.5


def _resize(op: Standard, x: str, roi: str = "", scales: str = "", sizes: str = "") -> Written:
    """With antialiasing, a kept aspect ratio, or coordinates that TensorRT lacks."""
    get = op.attributes.get
    mode, coordinates = get("mode", "nearest"), get("coordinate_transformation_mode", "half_pixel")
    plain = not get("antialias") and get("keep_aspect_ratio_policy", "stretch") == "stretch"
    if (plain and coordinates in _COORDINATES) or op.opset < 11:
        return None
    axes = _axes(op, x, roi, scales, sizes)
    if mode == "nearest":
        return (_nearest(op, x, axes, coordinates),)
    rank, y, outside = op.rank(x) or 0, op.wide(x), np.zeros((), bool)
    for axis in axes:
        op.check_table(axis.after, axis.before)
        at = axis.coordinates(coordinates)
        weights = _weights(
            at, axis, mode, get("cubic_coeff_a", -0.75), bool(get("antialias")), bool(get("exclude_outside"))
        )
        y = op.moved(y, rank, axis.index, -1)
        y = op.moved(op.MatMul(y, op.tensor(weights.T, np.float32)), rank, rank - 1, axis.index)
        beyond = (at < 0) | (at > axis.before - 1)
        outside = outside | beyond.reshape([-1 if a == axis.index else 1 for a in range(rank)])
    if coordinates == "tf_crop_and_resize" and outside.any():
        y = op.Where(op.tensor(outside, bool), op.tensor(get("extrapolation_value", 0.0), np.float32), y)
    return (op.narrow(y, x),)


def _axes(op: Standard, x: str, roi: str, scales: str, sizes: str) -> list[_Axis]:
    """The axes that change, with the sizes that they get."""
    before = op.known_sizes(x)
    chosen = [a % len(before) for a in op.attributes.get("axes", range(len(before)))]
    given = op.value(scales if scales and not sizes else sizes)
    region = op.value(roi) if roi else None
    if given is None or (
        op.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize" and region is None
    ):
        raise op.refuse("needs constant sizes and roi in this form", "bake them with --bake")
    ratios = [float(g) if not sizes else int(g) / before[a] for g, a in zip(given, chosen, strict=True)]
    policy = op.attributes.get("keep_aspect_ratio_policy", "stretch")
    if sizes and policy != "stretch":
        ratio = (min if policy == "not_larger" else max)(ratios)
        after = [math.floor(ratio * before[a] + 0.5) for a in chosen]
        ratios = [ratio] * len(chosen)
    else:
        after = [int(g) if sizes else math.floor(r * before[a]) for g, r, a in zip(given, ratios, chosen, strict=True)]
    found = []
    for i, (axis, n, ratio) in enumerate(zip(chosen, after, ratios, strict=True)):
        part = (float(region[i]), float(region[i + len(chosen)])) if region is not None and region.size else (0.0, 1.0)
        if n != before[axis] or ratio != 1 or part != (0.0, 1.0):
            found.append(_Axis(axis, before[axis], n, ratio, *part))
    return found


_ROUND: dict[str, Callable[[Array], Array]] = {
    "ceil": np.ceil,
    "floor": np.floor,
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
}


def _nearest(op: Standard, x: str, axes: list[_Axis], coordinates: str) -> str:
    if coordinates == "tf_crop_and_resize" or op.attributes.get("antialias"):
        raise op.refuse("takes the nearest elements with cropping or antialiasing", "use mode linear")
    rounded = _ROUND[op.attributes.get("nearest_mode", "round_prefer_floor")]
    for axis in axes:
        at = np.clip(rounded(axis.coordinates(coordinates)), 0, axis.before - 1)
        x = op.Gather(x, op.ints(*map(int, at)), axis=axis.index)
    return x


def _weights(at: Array, axis: _Axis, mode: str, a: float, antialias: bool, exclude_outside: bool) -> Array:
    """[after, before]: of each element in each result. The kernel widens by the factor of downsampling if antialiased; what
    lies outside counts as the element at the edge, unless excluded."""
    shrink = min(axis.scale, 1.0) if antialias else 1.0
    reach = math.ceil((2 if mode == "cubic" else 1) / shrink)
    weights = np.zeros((axis.after, axis.before))
    for offset in range(-reach, reach + 2):
        near = np.floor(at).astype(np.int64) + offset
        values = (_cubic if mode == "cubic" else _linear)((near - at) * shrink, a)
        inside = (near >= 0) & (near < axis.before)
        values = np.where(inside, values, 0) if exclude_outside else values
        np.add.at(weights, (np.arange(axis.after), np.clip(near, 0, axis.before - 1)), values)
    return np.asarray(weights / weights.sum(1, keepdims=True))


def _linear(d: Array, _: float) -> Array:
    return np.asarray(np.clip(1 - np.abs(d), 0, 1))


def _cubic(d: Array, a: float) -> Array:
    """Keys' kernel."""
    d = np.abs(d)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


WRITERS: dict[str, Callable[..., Written]] = {"Resize": _resize}
