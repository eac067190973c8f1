"""What is no fault of a model although onnx.checker minds it, hidden from the checker in a copy."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import ModelProto, NodeProto, helper

from trtconvert.profiles import inference

_UNKNOWN = "trtconvert.unknown"  # of nodes that the checker is not to judge


def allow_ops(bare: ModelProto, nodes: Iterable[NodeProto]) -> None:
    """Ops that ONNX does not have in the default domain, where many exporters leave a plugin's: whether anybody has them is
    for lower to say. nodes: those of the default domain."""
    local = {function.name for function in bare.functions}
    for node in nodes:
        if node.op_type not in local and not onnx.defs.has(node.op_type):
            node.domain = _UNKNOWN
            import_domain(bare, _UNKNOWN)


def import_domain(model: ModelProto, domain: str) -> None:
    """Import the domain, if the model does not."""
    if all(entry.domain != domain for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(domain, 1))


def allow_ranks(bare: ModelProto) -> None:
    """Inputs and outputs without a shape: the checker minds, ONNX and its tools do not. The inputs become tensors made by a
    node that nobody knows, the outputs tensors that nobody reads."""
    nodes = []
    for field in (bare.graph.input, bare.graph.output):
        shapeless = [v.type.HasField("tensor_type") and not v.type.tensor_type.HasField("shape") for v in field]
        kept = [v for v, gone in zip(field, shapeless, strict=True) if not gone]
        if field is bare.graph.input:
            gone = [v.name for v, gone in zip(field, shapeless, strict=True) if gone]
            nodes = [helper.make_node("Unknown", [], [name], domain=_UNKNOWN) for name in gone]
        if any(shapeless):
            del field[:]
            field.extend(kept)
    if nodes:
        nodes += bare.graph.node
        del bare.graph.node[:]
        bare.graph.node.extend(nodes)
        import_domain(bare, _UNKNOWN)


def check(bare: ModelProto) -> None:
    """onnx.checker with full_check. Where it ends at a tensor without a type, which is what custom ops make, shapes are left
    unchecked: TensorRT's parser asks the plugin for them. Raises onnx's own errors."""
    onnx.checker.check_model(bare)
    try:
        inference.infer(bare, strict_mode=True, check_type=True)  # as the checker's full_check
    except onnx.shape_inference.InferenceError as error:
        if "expected to have type but instead is null" not in str(error):
            raise
