"""Whether TensorRT can import a lowered model: every fault, by rules and by the parser itself, before anything is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, NodeProto

from trtconvert import adapter, registration
from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert.backend import Backend, logger
from trtconvert.custom_ops.custom import PluginNode
from trtconvert.diagnosis import contract, dtypes, rules
from trtconvert.diagnosis.faults import Fault, refusal
from trtconvert.diagnosis.tensorrt_log import parser_faults
from trtconvert.lower import Lowered
from trtconvert.profiles import shape_values


def require(lowered: Lowered, source: Path, backend: Backend) -> None:
    """ConvertError that lists all faults, if there are any that lowering or a rule can tell."""
    if known_faults(lowered, source.parent, backend):
        raise refusal(backend.title, shape_values.with_bake(all_faults(lowered, source, backend), lowered.model))


def all_faults(lowered: Lowered, source: Path, backend: Backend) -> list[Fault]:
    """What lowering, the rules and the parser refuse."""
    known = known_faults(lowered, source.parent, backend)
    asked = replace(lowered, model=dtypes.replaced(lowered.model)) if known else lowered
    return complete(known, ask(asked, source, backend))


def known_faults(lowered: Lowered, folder: Path, backend: Backend) -> list[Fault]:
    """What can be told without the parser."""
    views = onnx_graph.views(lowered.model, folder)
    return complete(
        lowered.faults,
        [
            *contract.faults(lowered.model),
            *_idle(lowered),
            *dtypes.faults(lowered.model, views),
            *rules.node_faults(lowered.model, views, backend),
        ],
    )


def _idle(lowered: Lowered) -> list[Fault]:
    paths = _paths(lowered.model)
    fix = "remove the node, or name its output"
    return [
        Fault(node.name, node.op_type, "it has no outputs", fix, paths.get(node.name, ""))
        for node in onnx_model.all_nodes(lowered.model)
        if _is_idle(node)
    ]


def _is_idle(node: NodeProto) -> bool:
    """Whether it is a custom op that makes nothing: TensorRT-RTX 1.7.1's parser ends the process at those."""
    standard = node.domain in onnx_model.STANDARD_DOMAINS and onnx.defs.has(node.op_type)
    return not standard and not any(node.output)


def _without_idle(model: ModelProto) -> ModelProto:
    """The model itself, if it has none of those."""
    if not any(map(_is_idle, onnx_model.all_nodes(model))):
        return model
    model = onnx_model.copy(model)
    for graph in onnx_model.all_graphs(model.graph):
        for node in [*filter(_is_idle, graph.node)]:
            graph.node.remove(node)
    return model


def complete(known: Sequence[Fault], others: Sequence[Fault]) -> list[Fault]:
    """The faults, and those others that are about other nodes."""
    seen = {fault.node for fault in known} | ({""} if known else set())
    return [*known, *(fault for fault in others if fault.node not in seen)]


def ask(lowered: Lowered, source: Path, backend: Backend) -> list[Fault]:
    """What the parser itself refuses, all of it; paths as in the model."""
    log, _ = logger(backend)
    builder = backend.trt.Builder(log)
    network = builder.create_network(backend.network_flags())
    with registration.parsing, adapter.building(()):
        parser = make_parser(backend, network, log, lowered.plugin_nodes)
        taken = parser.supports_model_v2(onnx_model.serialize(_without_idle(lowered.model)), str(source.resolve()))
    if taken:
        return []
    paths = _paths(lowered.model)
    return [
        Fault(f.node, f.op, f.reason, f.fix, paths.get(f.node, f.path)) for f in parser_faults(parser, backend.title)
    ]


def make_parser(backend: Backend, network: Any, log: Any, nodes: Sequence[PluginNode]) -> Any:
    """A parser for the network, with the creators of these nodes registered. network, log: to be kept alive."""
    for op in {node.op for node in nodes if node.op is not None}:
        registration.ensure_creator(backend, op.name, op.version, op.namespace, op)
    parser = backend.trt.OnnxParser(network, log)
    if any(onnx.defs.has(node.creator.name) for node in nodes):
        parser.set_flag(backend.trt.OnnxParserFlag.ENABLE_PLUGIN_OVERRIDE)
    return parser


def _paths(model: ModelProto) -> dict[str, str]:
    """Node name to the same with the subgraphs around it."""
    found: dict[str, str] = {}

    def visit(graph: onnx.GraphProto, path: str) -> None:
        for node in graph.node:
            found[node.name] = path + node.name
            for inner in onnx_model.subgraphs(node):
                visit(inner, f"{path}{node.name}/{inner.name}/")

    visit(model.graph, "")
    return found
