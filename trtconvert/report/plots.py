"""Drawings of a comparison as SVG: how large the errors are, and what came out against what should have."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trtconvert.accuracy.results import Element, Evidence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS, POINTS = 48, 2000
LARGEST = 1e300  # numbers that axes can be computed for
SIZE = (4.6, 3.3)  # inches
INK, FAINT, BAR, DOT, BAD = "#1f2328", "#d1d9e0", "#0969da", "#8250df", "#cf222e"
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "trtconvert",  # the same drawing is the same file
    "font.family": "sans-serif",
    "font.size": 10.0,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def histogram(evidence: Sequence[Evidence]) -> bytes | None:
    """Counts of elements by log10 of their absolute error; None if all elements are exact."""
    middles = np.concatenate([_middles(each) for each in evidence])
    counts = np.concatenate([np.asarray(each.counts, float)[: len(_middles(each))] for each in evidence])
    if not counts.sum():
        return None
    heights, edges = np.histogram(middles, BINS, weights=counts)

    def draw(axes: Axes) -> None:
        axes.bar(edges[:-1], heights, np.diff(edges), align="edge", color=BAR)
        axes.xaxis.set_major_formatter(
            lambda value, _: f"{10**value:.0e}" if value == int(value) else f"{10**value:.1e}"
        )
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel("absolute error")
        axes.set_ylabel("elements")

    return _svg(draw)


def scatter(evidence: Sequence[Evidence], worst: Sequence[Element]) -> bytes | None:
    """Elements against the reference, those of `worst` in red, with the line on which they are equal; None if there is no finite
    one."""
    x, y = _finite([(a, b) for each in evidence for a, b in zip(each.expected, each.got, strict=True)])
    bad_x, bad_y = _finite([(each.expected, each.got) for each in worst if each.got != each.expected])
    if not x.size:
        return None
    keep = np.linspace(0, x.size - 1, min(x.size, POINTS)).astype(int)
    x, y = x[keep], y[keep]

    def draw(axes: Axes) -> None:
        all_of_them = np.concatenate([x, y, bad_x, bad_y])
        ends = [all_of_them.min(), all_of_them.max()]
        axes.plot(ends, ends, color=INK, linewidth=0.8, zorder=1)
        axes.scatter(x, y, s=9, color=DOT, alpha=0.5, linewidths=0, zorder=2, rasterized=True)
        axes.scatter(bad_x, bad_y, s=9, color=BAD, linewidths=0, zorder=3, rasterized=True)
        for axis in ("x", "y"):
            axes.locator_params(axis=axis, nbins=5)
        axes.set_xlabel("reference")
        axes.set_ylabel("compared")

    return _svg(draw)


def _finite(pairs: Sequence[tuple[float, float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both sides of the pairs that can be drawn."""
    both = np.array(pairs, np.float64).reshape(-1, 2)
    kept = both[(np.abs(np.nan_to_num(both, nan=np.inf)) < LARGEST).all(1)]
    return kept[:, 0], kept[:, 1]


def _middles(evidence: Evidence) -> NDArray[np.float64]:
    edges = np.asarray(evidence.edges, float)
    middles: NDArray[np.float64] = (edges[1:] + edges[:-1]) / 2
    return middles


def _svg(draw: Callable[[Axes], None]) -> bytes:
    import matplotlib  # an optional dependency, and slow to load
    from matplotlib.figure import Figure

    file = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(SIZE, dpi=144, layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=FAINT, linewidth=0.5)
        axes.set_axisbelow(True)
        draw(axes)
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
