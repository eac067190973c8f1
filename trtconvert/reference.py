"""Runs an ONNX model without TensorRT: onnxruntime on CPU, or ONNX's reference evaluator for what onnxruntime cannot run."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from trtconvert.functions import inline_local
from trtconvert.model import copy, serialize


def session(model: ModelProto, folder: Path = Path()) -> onnxruntime.InferenceSession:
    """An onnxruntime session with graph optimizations off, since some of them change results. folder: of external data.

    Raises onnxruntime's own errors; "NOT_IMPLEMENTED" is in the message when it has no kernel for an op.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    return onnxruntime.InferenceSession(serialize(model), options, providers=["CPUExecutionProvider"])


def evaluator(model: ModelProto) -> ReferenceEvaluator:
    """ONNX's reference evaluator. Ops that ONNX defines by functions of their context need types, and no function of
    ours around them."""
    return ReferenceEvaluator(onnx.shape_inference.infer_shapes(inline_local(copy(model))))
