"""What a model needs before it can be built, node by node, and what a plan says of itself. Needs no GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, NodeProto

from trtconvert import branches, contrib, manifest, registry
from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert.backend import Backend, select, supports
from trtconvert.bodies import is_ours
from trtconvert.engine import plugins_in
from trtconvert.functions import has_body
from trtconvert.fuse import NearMiss, fuse_model
from trtconvert.graph import GraphView
from trtconvert.manifest import IO, Manifest, model_io
from trtconvert.rewrite import Fusion


@dataclass(frozen=True)
class NodeReport:
    """How TensorRT will take a node. status: native, plugin, expanded (written as other ops) or unsupported."""

    node: str
    op: str
    status: str
    detail: str


@dataclass(frozen=True)
class ModelReport:
    """An ONNX model as TensorRT will see it."""

    path: str
    producer: str
    opset: int
    ir_version: int
    inputs: list[IO]
    outputs: list[IO]
    ops: dict[str, int]
    nodes: list[NodeReport]
    fusions: list[Fusion]
    near_misses: list[NearMiss]


@dataclass(frozen=True)
class PluginReport:
    """A plugin in a plan, with these attributes; layers of that plugin, None if no manifest says so."""

    name: str
    version: str
    namespace: str
    kernel: str
    attributes: dict[str, str]
    layers: int | None


@dataclass(frozen=True)
class PlanReport:
    """A plan, from its manifest and from its own bytes."""

    path: str
    bytes: int
    manifest: Manifest | None
    plugins: list[PluginReport]


def inspect(path: Path) -> ModelReport | PlanReport:
    """Describe an ONNX model or a plan."""
    if manifest.is_plan(path):
        return inspect_plan(path)
    return inspect_model(path)


def inspect_plan(path: Path) -> PlanReport:
    """Plugins, targets, inputs and outputs of a plan; ConvertError if it is not the one its manifest describes."""
    data, described = manifest.read_plan(path)
    nodes = {plugin.name: len(plugin.nodes) for plugin in described.plugins} if described else {}
    counts = dict.fromkeys(
        (p.name, p.version, p.namespace, p.kernel, tuple(p.attributes.items())) for p in plugins_in(data)
    )
    found = [
        PluginReport(name, version, namespace, kernel, dict(attributes), nodes.get(name))
        for name, version, namespace, kernel, attributes in counts
    ]
    return PlanReport(str(path), len(data), described, found)


def inspect_model(path: Path, backend: str = "auto") -> ModelReport:
    """Per node: native, plugin, expanded or unsupported; and what fuse would do."""
    model = onnx_model.load(path)
    onnx_model.check(model, path)
    fused = ModelProto()
    fused.CopyFrom(model)
    result = fuse_model(fused, path.parent, registry.by_pattern(()))
    return ModelReport(
        str(path),
        f"{model.producer_name} {model.producer_version}".strip() or "unknown producer",
        onnx_model.opset(model),
        model.ir_version,
        model_io(model, "input"),
        model_io(model, "output"),
        dict(Counter(_op(n.domain, n.op_type) for n in onnx_model.all_nodes(model)).most_common()),
        _nodes(model, path.parent, backend),
        result.fusions,
        result.near_misses,
    )


def _op(domain: str, op_type: str) -> str:
    return op_type if domain in onnx_model.STANDARD_DOMAINS else f"{domain}::{op_type}"


def _nodes(model: ModelProto, folder: Path, backend: str) -> list[NodeReport]:
    """As `lower` will take them: onnxruntime's ops where they are, and Ifs of known condition as their branch."""
    chosen = select(backend)
    known = supports(chosen)
    model = onnx_model.copy(model)
    onnx_model.adopt_ort_ops(model)
    reports = [
        NodeReport(fold.node, "If", "expanded", f"its condition is constant: the {fold.branch} branch is taken")
        for fold in branches.fold(model, folder)
    ]
    bodies = {(f.domain, f.name) for f in model.functions}
    opset = onnx_model.opset(model)
    views = onnx_graph.views(model, folder)
    for graph, view in zip(onnx_model.all_graphs(model.graph), views, strict=True):
        for node in graph.node:
            name = node.name or (node.output[0] if node.output else node.op_type)
            op = _op(node.domain, node.op_type)
            if node.domain in onnx_model.STANDARD_DOMAINS:
                status, detail = _standard(node, opset, known, chosen)
            elif (node.domain, node.op_type) in bodies:
                status, detail = _function(node)
            else:
                status, detail = _custom(node, view)
            reports.append(NodeReport(name, op, status, detail))
    return reports


def _standard(node: NodeProto, opset: int, known: Callable[[str], bool], backend: Backend) -> tuple[str, str]:
    if known(node.op_type):
        return "native", ""
    if registry.find(node.op_type):
        return _plugin(node)
    if has_body(node.op_type, opset):
        return "expanded", f"{backend.title} has no importer for it: the function that ONNX defines for it is imported"
    missing = f"{backend.title} has no importer for it: rewrite it in the exporter, or give a plugin of that name"
    return "unsupported", missing


def _function(node: NodeProto) -> tuple[str, str]:
    if is_ours(node.domain) and registry.find(node.op_type):
        return _plugin(node)
    return "expanded", "its function body is imported"


def _custom(node: NodeProto, view: GraphView) -> tuple[str, str]:
    if registry.find(node.op_type):
        return _plugin(node)
    if contrib.is_contrib(node):
        why = contrib.refusal(node, view)
        return ("unsupported", why) if why else ("expanded", "onnxruntime's op: written as standard ONNX")
    return "unsupported", "no plugin and no function body: give one with --plugin"


def _plugin(node: NodeProto) -> tuple[str, str]:
    op = registry.find(node.op_type)
    assert op is not None
    return "plugin", f"plugin {op.name} version {op.version} from {registry.origin(op)}"
