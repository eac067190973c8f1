"""Runs an ONNX model without TensorRT: onnxruntime on CPU, or ONNX's reference evaluator for what onnxruntime cannot run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from trtconvert import registry, saturation
from trtconvert.custom_ops import attributes, creators, wishes
from trtconvert.errors import ConvertError
from trtconvert.lowering.functions import inline_local
from trtconvert.manifest import Manifest
from trtconvert.model import STANDARD_DOMAINS, all_nodes, copy, serialize
from trtconvert.profiles import inference


def session(model: ModelProto, folder: Path = Path(), in_order: bool = False) -> onnxruntime.InferenceSession:
    """An onnxruntime session with graph optimizations off, since some of them change results, and without products that saturate.
    folder: of external data. in_order: run nodes in the order of the file, which decides how long tensors are kept.

    Raises onnxruntime's own errors; "NOT_IMPLEMENTED" is in the message when it has no kernel for an op.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    if in_order:
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    return onnxruntime.InferenceSession(
        serialize(saturation.without(model, folder)), options, providers=["CPUExecutionProvider"]
    )


def take_over(model: ModelProto, described: Manifest) -> None:
    """Give nodes to the ops that the build gave them to, in place, unless the model says itself what they compute.

    ConvertError for nodes of a library's plugin: what it computes only the library knows.
    """
    asked = wishes.told(described.options.get("wishes", {}))
    bodies = {(f.domain, f.name) for f in model.functions}
    nodes = [node for node in all_nodes(model) if (node.domain, node.op_type) not in bodies]
    wishes.give(nodes, asked.maps)
    for node in nodes:
        for value in asked.values:
            op = registry.find(node.op_type)
            if op is not None and wishes.is_meant(value.node, node):
                fields = {field.name: field for field in creators.of_op(op).fields}
                attributes.set_value(node, value.name, value.text, fields.get(value.name))
    theirs = {plugin.name for plugin in described.plugins if plugin.kind.startswith("library")}
    unknown = [node for node in nodes if node.op_type in theirs and node.domain not in STANDARD_DOMAINS]
    if unknown:
        raise ConvertError(
            f"there is nothing to compare with: {unknown[0].op_type} is a library's plugin, which onnxruntime cannot run",
            where=f"node {wishes.default_name(unknown[0])}",
            fix="give the model a function of that domain and name that says what it computes, and build with --map",
        )


def run(
    model: ModelProto, folder: Path, feeds: Mapping[str, NDArray[Any]], evaluate: bool = True
) -> dict[str, NDArray[Any]]:
    """The model's outputs by name. evaluate: let ONNX's reference evaluator, which is slow, do what onnxruntime cannot.

    ConvertError where neither runs it.
    """
    try:
        outputs = session(model, folder).run(None, dict(feeds))
    except Exception as error:  # onnxruntime's exceptions have no common base of their own
        if "NOT_IMPLEMENTED" not in str(error) or not evaluate:
            raise ConvertError(f"onnxruntime cannot run the model: {str(error).splitlines()[0]}") from error
        with np.errstate(all="ignore"):
            outputs = evaluator(model).run(None, dict(feeds))
    return {value.name: np.asarray(output) for value, output in zip(model.graph.output, outputs, strict=True)}


def evaluator(model: ModelProto) -> ReferenceEvaluator:
    """ONNX's reference evaluator. Ops that ONNX defines by functions of their context need types, and no function of
    ours around them."""
    return ReferenceEvaluator(inference.infer(inline_local(copy(model))))
