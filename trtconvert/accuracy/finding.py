"""What a search for the first wrong node found, in the names that the user knows, and the flag that avoids it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto

from trtconvert import model as onnx_model
from trtconvert.accuracy import metrics
from trtconvert.accuracy.parts import needed
from trtconvert.accuracy.results import Element
from trtconvert.accuracy.wrong import Wrong
from trtconvert.custom_ops.wishes import default_name

SHOWN = 6
Fusions = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Finding:
    """The first wrong node of a plan.

    node, op: what the engine runs there, a fused node if it is one. plugin: the plugin that makes it, "" for TensorRT itself.
    sources: the model's nodes that it stands for. tensor, element: one that is wrong, no element where the shape is; says: that
    in words. single, confirmed, fused_across, errors:
    see `bisect.Wrong`. flag: what leaves the node out or keeps it in float32, "" if there is none. builds: engines made.
    """

    comparison: str
    shapes: str
    node: str
    op: str
    plugin: str
    sources: tuple[str, ...]
    tensor: str
    element: Element | None
    says: str
    single: bool
    confirmed: bool
    fused_across: tuple[str, ...]
    errors: tuple[tuple[str, float], ...]
    flag: str
    builds: int

    def lines(self) -> Iterator[str]:
        """For people."""
        if not self.single:
            yield from self._growth()
            return
        yield f"first wrong: {self.node} ({f'plugin {self.plugin}' if self.plugin else self.op})"
        if self.sources and self.sources != (self.node,):
            yield f"it stands for {_some(self.sources)}"
        yield f"{self.says}, with inputs {self.shapes}"
        if self.fused_across:
            yield f"the error is gone when {_some(self.fused_across)} is an output: TensorRT's own fusing makes it"
        elif self.confirmed:
            yield f"confirmed in an engine that has no other outputs; engines built: {self.builds}"
        else:
            yield "not confirmed: an engine that has no other outputs does not show it"
        if self.flag:
            yield f"to avoid it: trtconvert build MODEL {self.flag}"

    def _growth(self) -> Iterator[str]:
        (first, low), (last, high) = self.errors[0], self.errors[-1]
        yield "no single node is to blame: what each adds is within what its precision allows"
        yield f"the error grows from {low:.2g} of what is allowed at {first} to {high:.2g} at {last} ({self.shapes})"
        yield f"it exceeds what is allowed at {self.node} ({self.op})"
        if self.flag:
            yield f"to lower it: trtconvert build MODEL {self.flag}"


def describe(
    wrong: Wrong,
    lowered: ModelProto,
    source: ModelProto,
    fusions: Fusions,
    converted: bool,
    comparison: str,
    shapes: str,
) -> Finding:
    """lowered: what was searched. source: the model before fusing. fusions: as the manifest has them. converted: whether the
    engine's precision is another than the source's."""
    nodes = [lowered.graph.node[index] for index in _inside(wrong, lowered)]
    sources = _sources(wrong, source)
    fusion = _fusion(nodes, sources, fusions)
    node, op = (fusion["node"], fusion["op"]) if fusion else _own(nodes, sources)
    tensor = wrong.wrong[0]
    element = _element(wrong, tensor)
    custom = next((n.op_type for n in nodes if n.domain not in onnx_model.STANDARD_DOMAINS), "")
    flag = f"--no-fuse {node}" if fusion else f"--keep-fp32 {node}" if converted else ""
    return Finding(
        comparison,
        shapes,
        node,
        op,
        fusion["op"] if fusion else custom,
        tuple(default_name(n) for n in sources),
        tensor,
        element,
        _in_words(wrong, tensor, element),
        wrong.single,
        wrong.confirmed,
        wrong.fused_across,
        wrong.errors,
        flag,
        wrong.builds,
    )


def _inside(wrong: Wrong, lowered: ModelProto) -> list[int]:
    """Those of the nodes between the two places that make what is wrong."""
    found = [index for index in needed(lowered.graph, wrong.wrong, wrong.before)[0] if index in wrong.nodes]
    return found or list(wrong.nodes)


def _sources(wrong: Wrong, source: ModelProto) -> list[NodeProto]:
    indices, _ = needed(source.graph, wrong.wrong, wrong.before)
    return [node for node in (source.graph.node[index] for index in indices) if node.op_type != "Constant"]


def _fusion(nodes: Sequence[NodeProto], sources: Sequence[NodeProto], fusions: Fusions) -> Mapping[str, Any] | None:
    """The fusion that makes one of the nodes, or lies in a graph inside of one."""
    names = {node.name for node in nodes}
    theirs = {default_name(node) for node in sources}
    for fusion in fusions:
        within = any(fusion["path"].startswith(f"{name}/") for name in names | theirs if name)
        if within or fusion["node"] in names or theirs & {*fusion["replaced"]}:
            return fusion
    return None


def _own(nodes: Sequence[NodeProto], sources: Sequence[NodeProto]) -> tuple[str, str]:
    """Name and op of what the user knows best: the model's last node there, or TensorRT's."""
    last = sources[-1] if sources else nodes[-1]
    return default_name(last), last.op_type


def _element(wrong: Wrong, tensor: str) -> Element | None:
    """The first element whose error is at least half the largest."""
    got, expected = wrong.got[tensor], wrong.expected[tensor]
    if got.shape != expected.shape:
        return None
    a, b = got.astype(np.float64), expected.astype(np.float64)
    off = np.abs(a - b)
    off = np.where((a == b) | np.isnan(a) & np.isnan(b), 0.0, np.nan_to_num(off, nan=np.inf))
    return metrics.element(got, expected, metrics.first(off >= off.max(initial=0.0) / 2))


def _in_words(wrong: Wrong, tensor: str, element: Element | None) -> str:
    if element is None:
        shapes = (list(arrays[tensor].shape) for arrays in (wrong.got, wrong.expected))
        return "{} has shape {}, expected {}".format(tensor, *shapes)
    return f"{tensor}{list(element.index)} is {element.got:g}, expected {element.expected:g}"


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - SHOWN} more" if names[SHOWN:] else ""
    return ", ".join(names[:SHOWN]) + rest
