"""How TensorRT will take each node of a model: as it is, as a plugin, written as other ops, computed before, or not at all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto

from trtconvert import model as onnx_model
from trtconvert import shapes
from trtconvert.backend import Backend, supports
from trtconvert.custom_ops.attributes import op_title
from trtconvert.custom_ops.custom import Custom
from trtconvert.diagnosis import importable
from trtconvert.diagnosis.faults import Fault
from trtconvert.errors import ConvertError
from trtconvert.lower import Lowered, lower, name_nodes
from trtconvert.lowering import branches, contrib, squeezes

STATUSES = ("native", "plugin", "expanded", "folded", "unsupported")


@dataclass(frozen=True)
class NodeReport:
    """How TensorRT will take a node. status: native, plugin, expanded (written as other ops), folded (computed, or decided,
    before the build) or unsupported. node: its name, with the subgraphs or the function that it is in before it.
    """

    node: str
    op: str
    status: str
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Survey:
    """Every node of a model, those of subgraphs and functions among them. faults: of the model, its inputs and outputs, and
    of nodes that lowering made. notes: on what lowering rewrote."""

    nodes: list[NodeReport]
    faults: list[Fault]
    notes: list[str]

    @property
    def totals(self) -> dict[str, int]:
        """How many nodes have each status."""
        counts = Counter(node.status for node in self.nodes)
        return {status: counts[status] for status in STATUSES if counts[status]}


def survey(model: ModelProto, source: Path, backend: Backend, profile: shapes.Profile) -> Survey:
    """Lower the model as a build does, ask rules and parser, and tell it by the model's own nodes; nothing is built.

    source: the model's file. profile: that a build would take.
    """
    model = onnx_model.copy(model)
    onnx_model.adopt_ort_ops(model)
    name_nodes(model)
    lowered = lower(model, source.parent, supports(backend), profile.fixed, lenient=True, custom=Custom.of(backend))
    shapes.fix(lowered.model, profile)
    with suppress(ConvertError):  # then the parser refuses the Squeeze
        squeezes.settle(lowered.model, source.parent, profile.ranges)
    faults = importable.all_faults(lowered, source, backend)
    folds = {f.node: f.branch for f in branches.fold(onnx_model.copy(model), source.parent, profile.fixed)}
    told = _Told(model, lowered, faults, folds, backend)
    nodes = [told.report(node, path) for node, path in _walk(model)]
    return Survey(nodes, [fault for fault in faults if fault not in told.used], lowered.notes)


def _walk(model: ModelProto) -> Iterator[tuple[NodeProto, str]]:
    """Every node with its path."""

    def visit(graph: GraphProto, path: str) -> Iterator[tuple[NodeProto, str]]:
        for node in graph.node:
            yield node, path + node.name
            for inner in onnx_model.subgraphs(node):
                yield from visit(inner, f"{path}{node.name}/{inner.name}/")

    yield from visit(model.graph, "")
    for function in model.functions:
        for nodes in onnx_model.function_graphs(function):
            for node in nodes:
                yield node, f"{function.domain}::{node.name}"


class _Told:
    """What lowering, rules and parser said, asked by the model's own nodes."""

    def __init__(
        self, model: ModelProto, lowered: Lowered, faults: Sequence[Fault], folds: Mapping[str, str], backend: Backend
    ) -> None:
        self.folds, self.title = folds, backend.title
        self.inside = {n.name for f in model.functions for nodes in onnx_model.function_graphs(f) for n in nodes}
        self.faults: dict[str, Fault] = {}
        for fault in faults:
            self.faults.setdefault(self._original(fault.node), fault)
        self.used: list[Fault] = []
        self.bodies = {(f.domain, f.name) for f in model.functions}
        self.plugins = {self._original(node.node): node.creator for node in lowered.plugin_nodes}
        self.left = {(self._original(n.name), n.op_type) for n in onnx_model.all_nodes(lowered.model)}
        self.made = {name for n in onnx_model.all_nodes(lowered.model) for name in n.output if name}

    def report(self, node: NodeProto, path: str) -> NodeReport:
        """One node's."""
        op = op_title(node)
        fault = self.faults.get(node.name) if node.name else None
        if fault is not None:
            self.used.append(fault)
            return NodeReport(path, op, "unsupported", fault.reason, fault.fix)
        return NodeReport(path, op, *self._status(node))

    def _status(self, node: NodeProto) -> tuple[str, str]:
        if node.name in self.plugins:
            creator = self.plugins[node.name]
            return "plugin", f"plugin {creator.title} from {creator.library or self.title}"
        if node.name in self.folds:
            return "folded", f"its condition is constant: the {self.folds[node.name]} branch is taken"
        if (node.domain, node.op_type) in self.bodies:
            return "expanded", "its function body is imported"
        if (node.name, node.op_type) in self.left:
            return "native", ""
        if self.made.isdisjoint(node.output) and node.name not in self.inside:  # a function's tensors get new names
            return "folded", "computed before the build, or needed only by what is left out of it"
        if contrib.is_contrib(node):
            return "expanded", "onnxruntime's op: written as standard ONNX"
        return "expanded", f"{self.title} has no importer for this form of it: written as other standard ops"

    def _original(self, name: str) -> str:
        """A function's node by its name there: a call adds a number to it."""
        without = re.sub(r"__\d+$", "", name)
        return without if without in self.inside else name
