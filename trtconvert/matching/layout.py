"""Where TensorRT lays the channels last in memory: around convolutions.

There an op over axis 1 is written over the last axis between two Transposes, which then cost nothing; over axis 1 the data would
be laid out anew before it and behind it. Measured on wav2vec2's convolutions: 0.9 times as fast as native so, 1.4 times between
Transposes (tests/bench/results/end_to_end.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from trtconvert.graph import GraphView
from trtconvert.matching.accept import Site

REACH = 2  # nodes from the op to a convolution: that one, and one between
_CONVOLUTIONS = frozenset(("Conv", "ConvTranspose"))
_BETWEEN = frozenset(("Add", "Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"))


def channels_last(view: GraphView, site: Site) -> Site:
    """The site as it is to be written: its op over the last axis, where it is over axis 1 and a convolution is near."""
    values = site.op.values()
    if not site.op.channels_last or values.get("axis") != 1 or (site.rank or 0) < 3:
        return site
    data = site.match.bound[site.op.inputs()[0]]
    before = [view.producers[data]] if data in view.producers else []
    behind = view.consumers.get(site.output, ())
    if not (_convolution_near(view, before, up=True) or _convolution_near(view, behind, up=False)):
        return site
    return dataclasses.replace(site, op=type(site.op)(**values | {"axis": -1}), channels_last=True)


def _convolution_near(view: GraphView, indices: Iterable[int], up: bool) -> bool:
    """Whether a convolution is at most REACH nodes away, counting these, with nothing between but what keeps the layout."""
    frontier = set(indices)
    for _ in range(REACH):
        nodes = [view.nodes[i] for i in frontier]
        if any(node.op_type in _CONVOLUTIONS for node in nodes):
            return True
        through = [node for node in nodes if node.op_type in _BETWEEN]
        if up:
            frontier = {view.producers[name] for node in through for name in node.input if name in view.producers}
        else:
            frontier = {i for node in through for name in node.output for i in view.consumers.get(name, ())}
    return False


def to_last(rank: int) -> list[int]:
    """The `perm` of a Transpose that moves axis 1 to the end."""
    return [0, *range(2, rank), 1]


def to_first(rank: int) -> list[int]:
    """The `perm` of the one that moves it back."""
    return [0, rank - 1, *range(1, rank - 1)]
