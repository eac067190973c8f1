"""Measures of how far an array lies from another, in float64: of all elements, of the worst slice, of the systematic part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trtconvert.accuracy.results import Channel, Element, Errors, Evidence

Array: TypeAlias = NDArray[Any]

QUANTILES = (0.5, 0.9, 0.99, 0.999)
REL_FLOOR = 1e-3  # max_rel looks at elements above this share of the largest
SLICE_FLOOR = 0.1  # a slice counts as at least this share of the output's root mean square
SIGMAS = 4.0  # by which the systematic part must stand out of the noise, and may be larger than it looks
_GROUPS = 64  # of elements by value
_PER_GROUP = 8  # elements that a slice or group needs for its mean to say anything
_SAMPLE = 1 << 16  # elements that decide the borders of groups
_BINS, _POINTS, _WORST = 64, 1024, 16


def measure(got: Array, expected: Array) -> Errors:
    """Errors of `got`, of the same shape as `expected`, over the elements that are finite in both.

    rel_l2 = ||got - expected|| / ||expected||. max_rel: largest |got - expected| / |expected| where |expected| is above
    REL_FLOOR of the largest. cosine of the angle between the two. Of zeros the absolute values stand for the relative ones.
    """
    a, b = _wide(got), _wide(expected)
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.any():
        return Errors(0, 0.0, 0.0, 0.0, 1.0, dict.fromkeys(map(str, QUANTILES), 0.0))
    a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
    error = a - b
    size = np.abs(error)
    scale = norm(b)
    large = np.abs(b) > REL_FLOOR * np.abs(b).max()
    return Errors(
        elements=int(finite.sum()),
        max_abs=float(size.max()),
        max_rel=float((size[large] / np.abs(b[large])).max()) if large.any() else 0.0,
        rel_l2=norm(error) / (scale or 1.0),
        cosine=_cosine(a, b),
        quantiles=dict(zip(map(str, QUANTILES), map(float, np.quantile(size[finite], QUANTILES)), strict=True)),
        bias={name: _bias(error, groups, scale) for name, groups in _groupings(b)},
        channel=_worst_slice(error, b),
    )


def evidence(got: Array, expected: Array) -> Evidence:
    """What a report draws of the two: a histogram of errors, evenly taken elements, the worst ones."""
    a, b = _wide(got), _wide(expected)
    size = np.abs(a - b)
    shown = np.log10(size[np.isfinite(size) & (size > 0)])
    counts, edges = np.histogram(shown, _BINS) if shown.size else (np.zeros(0, int), np.zeros(0))
    take = np.linspace(0, b.size - 1, min(b.size, _POINTS)).astype(int)
    ranked = np.nan_to_num(size.ravel(), nan=np.inf)
    worst = np.argpartition(ranked, -min(_WORST, b.size))[-_WORST:] if b.size else np.zeros(0, int)
    return Evidence(
        edges=tuple(map(float, edges)),
        counts=tuple(map(int, counts)),
        exact=int((size == 0).sum()),
        expected=tuple(map(float, b.ravel()[take])),
        got=tuple(map(float, a.ravel()[take])),
        worst=tuple(element(got, expected, int(i)) for i in worst[np.argsort(-ranked[worst], kind="stable")]),
    )


def norm(array: Array) -> float:
    """Root of the sum of squares, summed pairwise; BLAS' own would wake threads for each."""
    return float(np.sqrt((array * array).sum()))


def element(got: Array, expected: Array, flat: int) -> Element:
    """The element at that place of the flattened arrays."""
    index = tuple(int(i) for i in np.unravel_index(flat, expected.shape))
    return Element(index, float(got[index]), float(expected[index]))


def first(wrong: Array) -> int:
    """Place of the first true element of the flattened array."""
    return int(np.argmax(wrong.ravel()))


def _wide(array: Array) -> Array:
    return np.asarray(array).astype(np.float64)


def _cosine(a: Array, b: Array) -> float:
    norms = norm(a) * norm(b)
    return float((a * b).sum()) / norms if norms else float(np.array_equal(a, b))


def _worst_slice(error: Array, expected: Array) -> Channel | None:
    """The slice along an axis with the largest relative L2, where small ones count as SLICE_FLOOR of the rms. Slices of a few
    elements are left to max_abs."""
    worst = None
    least = SLICE_FLOOR * float(np.sqrt(np.mean(expected**2)))
    for axis, size in enumerate(expected.shape):
        if size < 2 or expected.size < _PER_GROUP * size:
            continue
        others = tuple(i for i in range(expected.ndim) if i != axis)
        rms, scale = (np.sqrt(np.mean(values**2, axis=others)) for values in (error, expected))
        relative = rms / np.maximum(scale, least or 1.0)
        index = int(np.argmax(relative))
        if worst is None or relative[index] > worst.rel_l2:
            worst = Channel(axis, index, float(relative[index]))
    return worst


# --- systematic errors ---------------------------------------------------------------------------------------------


def _groupings(expected: Array) -> Iterator[tuple[str, Array]]:
    """Names, and the group of each element: by its value, and by its index along each axis."""
    if expected.size >= 4 * _PER_GROUP:
        sample = np.sort(expected.ravel()[:: max(1, expected.size // _SAMPLE)])
        count = min(_GROUPS, sample.size // _PER_GROUP)
        borders = np.unique(sample[np.linspace(0, sample.size - 1, count + 1).astype(int)[1:-1]])
        yield "value", np.searchsorted(borders, expected, side="right")
    for axis, size in enumerate(expected.shape):
        if 2 <= size <= expected.size // _PER_GROUP:
            shape = [-1 if i == axis else 1 for i in range(expected.ndim)]
            yield f"axis {axis}", np.broadcast_to(np.arange(size).reshape(shape), expected.shape)


def _bias(error: Array, groups: Array, size: float) -> tuple[float, float]:
    """Bounds of the relative L2 of what the group of an element decides of its error.

    Of group k with n elements, mean m and variance v of the error, n m^2 - v is expected to be n times the square of the
    systematic error b: noise that has nothing to do with the group adds v to n m^2. The sum over groups strays by the root of
    sum 2 v^2 + 4 n b^2 v, SIGMAS of which make the bounds.
    """
    which = groups.ravel()
    count = np.bincount(which).astype(np.float64)
    total = np.bincount(which, error.ravel())
    squares = np.bincount(which, error.ravel() ** 2)
    full = count > 1
    count, total, squares = count[full], total[full], squares[full]
    mean = total / count
    variance = np.maximum(squares - count * mean**2, 0.0) / (count - 1)
    parts = count * mean**2 - variance
    energy = float(parts.sum())
    stray = SIGMAS * float(np.sqrt((2 * variance**2 + 4 * np.maximum(parts, 0.0) * variance).sum()))
    low, high = (float(np.sqrt(max(e, 0.0))) / (size or 1.0) for e in (energy - stray, energy + stray))
    return low, high
