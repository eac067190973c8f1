"""What a model needs before it can be built, node by node, and what a plan says of itself. Needs no GPU."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from trtconvert import manifest, registry
from trtconvert import model as onnx_model
from trtconvert.backend import logger, select
from trtconvert.engine import plugins_in
from trtconvert.fuse import NearMiss, fuse_model
from trtconvert.manifest import IO, Manifest, model_io
from trtconvert.rewrite import Fusion, is_ours


@dataclass(frozen=True)
class NodeReport:
    """How TensorRT will take a node. status: native, plugin, expanded (by its function body) or unsupported."""

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
    """Describe an ONNX model or a plan: a plan has a manifest beside it, or is named .plan, .engine or .trt."""
    if path.suffix != ".onnx" and (manifest.path_for(path).is_file() or path.suffix in (".plan", ".engine", ".trt")):
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
        _nodes(model, backend),
        result.fusions,
        result.near_misses,
    )


def _op(domain: str, op_type: str) -> str:
    return op_type if domain in onnx_model.STANDARD_DOMAINS else f"{domain}::{op_type}"


def _nodes(model: ModelProto, backend: str) -> list[NodeReport]:
    chosen = select(backend)
    trt = chosen.trt
    log, _ = logger(chosen)
    builder = trt.Builder(log)
    network = builder.create_network(chosen.network_flags())
    parser = trt.OnnxParser(network, log)
    bodies = {(f.domain, f.name) for f in model.functions}
    reports = []
    for node in onnx_model.all_nodes(model):
        op = _op(node.domain, node.op_type)
        name = node.name or (node.output[0] if node.output else node.op_type)
        registered = registry.find(node.op_type)
        if node.domain in onnx_model.STANDARD_DOMAINS:
            known = node.op_type == "Constant" or parser.supports_operator(node.op_type)
            missing = (
                f"{chosen.title} has no importer for it: rewrite it in the exporter, or give a plugin of that name"
            )
            reports.append(NodeReport(name, op, "native" if known else "unsupported", "" if known else missing))
        elif (node.domain, node.op_type) in bodies and not (registered and is_ours(node.domain)):
            reports.append(NodeReport(name, op, "expanded", "its function body is imported"))
        elif registered is not None:
            detail = f"plugin {registered.name} version {registered.version} from {registry.origin(registered)}"
            reports.append(NodeReport(name, op, "plugin", detail))
        else:
            reports.append(
                NodeReport(name, op, "unsupported", "no plugin and no function body: give one with --plugin")
            )
    return reports
