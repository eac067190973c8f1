"""Shared tail of the sample-model scripts: strip exporter traces from a model, save it, check it, run it."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

HERE = Path(__file__).resolve().parent
MAX_BYTES = 1_000_000


@dataclass
class Export:
    """One exported model, with the inputs and outputs that prove it still computes what the framework did."""

    proto: onnx.ModelProto
    exporter: str
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    expected: list[np.ndarray] = field(default_factory=list)
    tolerance: float = 1e-4
    not_run: str = ""
    shape: str = ""  # ranges of the dynamic inputs, for `trtconvert build` without --shape


def _clear(messages: Iterable) -> None:
    """Empty the doc strings and metadata of these messages, where they have such fields."""
    for message in messages:
        for name in ("doc_string", "metadata_props"):
            if name in message.DESCRIPTOR.fields_by_name:
                message.ClearField(name)


def _clear_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    """Clear nodes and, through their attributes, any subgraphs they hold."""
    for node in nodes:
        _clear([node, *node.attribute])
        for attribute in node.attribute:
            for graph in [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs:
                _clear_graph(graph)


def _clear_graph(graph: onnx.GraphProto) -> None:
    """Clear a graph and everything in it."""
    _clear([graph, *graph.input, *graph.output, *graph.value_info, *graph.initializer])
    _clear_nodes(graph.node)


def strip_traces(model: onnx.ModelProto) -> None:
    """Drop doc strings and metadata in place: exporters keep stack traces and source paths there."""
    _clear([model, *model.functions])
    _clear_graph(model.graph)
    for function in model.functions:
        _clear_nodes(function.node)


def run_unoptimised(path: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Run a model with onnxruntime on the CPU, with graph optimisation off."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, inputs)


def save(name: str, export: Export) -> None:
    """Write NAME.onnx beside this script, check it fully and compare its outputs with the framework's."""
    strip_traces(export.proto)
    if export.shape:
        onnx.helper.set_model_props(export.proto, {"trtconvert.shape": export.shape})
    path = HERE / f"{name}.onnx"
    onnx.save_model(export.proto, path, save_as_external_data=False)
    onnx.checker.check_model(str(path), full_check=True)
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"{path.name} is {size} bytes, more than {MAX_BYTES}")
    opsets = ", ".join(f"{entry.domain or 'ai.onnx'} {entry.version}" for entry in export.proto.opset_import)
    print(f"{path.name}: {size} bytes, {export.exporter}, opsets: {opsets}")
    print(f"  {dict(Counter(node.op_type for node in export.proto.graph.node))}")
    print(f"  {_verify(path, export)}")


def _verify(path: Path, export: Export) -> str:
    """Compare onnxruntime's outputs with the expected ones; say what was found."""
    if export.not_run:
        return f"checked, not run: {export.not_run}"
    outputs = run_unoptimised(path, export.inputs)
    worst = 0.0
    for got, want in zip(outputs, export.expected, strict=True):
        if got.dtype != want.dtype or got.shape != want.shape:
            raise ValueError(f"{path.name}: got {got.dtype}{got.shape}, expected {want.dtype}{want.shape}")
        worst = max(worst, float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max()))
    if not worst <= export.tolerance:
        raise ValueError(f"{path.name}: outputs differ by {worst}, more than {export.tolerance}")
    return f"runs in onnxruntime {ort.__version__}, largest difference {worst:.1e}"


def make(models: dict[str, Callable[[], Export]], names: list[str]) -> None:
    """Make the named models, or all of them."""
    unknown = set(names) - set(models)
    if unknown:
        raise SystemExit(f"unknown models: {', '.join(sorted(unknown))}; known: {', '.join(models)}")
    for name in names or models:
        save(name, models[name]())
