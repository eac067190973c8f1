"""A model made ready for int8: an operator set that has what Q and DQ need, functions opened, batch norms in the convolutions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, numpy_helper

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert.bodies import is_ours, retain
from trtconvert.graph import GraphView
from trtconvert.lower import name_nodes
from trtconvert.lowering.functions import inline_local
from trtconvert.model import STANDARD_DOMAINS
from trtconvert.precision.int8_weights import MOVES, constant
from trtconvert.precision.prepare import in_opset

_PER_CHANNEL, _HALF = 13, 19  # the first opsets whose QuantizeLinear takes a scale a channel, and float16


def prepare(model: ModelProto, folder: Path, halves: bool = False) -> ModelProto:
    """A copy of the same meaning in which every node has a name of its own.

    halves: it is to take float16. ConvertError if its operator set is too old and ONNX cannot raise it.
    """
    copy = inline_local(onnx_model.copy(model), lambda f: not is_ours(f.domain))
    opset = _HALF if halves or has_halves(copy) else _PER_CHANNEL
    copy = in_opset(copy, opset) if onnx_model.opset(copy) < opset else copy
    name_nodes(copy)
    for view in onnx_graph.views(copy, folder)[:1]:
        _fold_batch_norms(view)
    return copy


def has_halves(model: ModelProto) -> bool:
    """Whether its weights are float16."""
    return any(t.data_type == onnx.TensorProto.FLOAT16 for t in model.graph.initializer)


def _fold_batch_norms(view: GraphView) -> None:
    """BatchNormalization behind a Conv that nothing else reads goes into the Conv's weight and bias, which int8 then holds.

    W' = W * k, b' = (b - mean) * k + B with k = scale / sqrt(var + epsilon). Source: Jacob et al., arXiv:1712.05877.
    """
    gone: list[str] = []
    names = {t.name for t in view.graph.initializer} | set(view.producers) | {i.name for i in view.graph.input}
    for norm in view.nodes:
        conv = _conv_before(view, norm)
        if conv is not None and _fold(view, conv, norm, names):
            gone.append(norm.name)
    retain(view.graph.node, lambda node: node.name not in gone)
    drop_unread(view.graph)


def _conv_before(view: GraphView, norm: NodeProto) -> NodeProto | None:
    if norm.op_type != "BatchNormalization" or norm.domain not in STANDARD_DOMAINS:
        return None
    if len([o for o in norm.output if o]) > 1 or view.attributes(norm).get("training_mode", 0):
        return None
    conv = view.producer(norm.input[0])
    alone = len(view.consumers.get(norm.input[0], [])) == 1 and norm.input[0] not in view.outputs
    if (
        conv is None
        or not alone
        or conv.op_type not in ("Conv", "ConvTranspose")
        or conv.domain not in STANDARD_DOMAINS
    ):
        return None
    grouped = conv.op_type == "ConvTranspose" and view.attributes(conv).get("group", 1) != 1
    return None if grouped else conv


def _fold(view: GraphView, conv: NodeProto, norm: NodeProto, names: set[str]) -> bool:
    weight = constant(view, conv.input[1])
    bias = constant(view, conv.input[2]) if len(conv.input) > 2 and conv.input[2] else np.float32(0)
    values = [constant(view, name) for name in norm.input[1:5]]
    if weight is None or bias is None or any(v is None for v in values):
        return False
    scale, shift, mean, var = (np.asarray(v, np.float64) for v in values)
    factor = scale / np.sqrt(var + float(view.attributes(norm)["epsilon"]))
    axis = 0 if conv.op_type == "Conv" else 1
    along = factor.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
    made = {"weight": weight * along, "bias": (np.asarray(bias, np.float64) - mean) * factor + shift}
    inputs = [conv.input[0]]
    for what, value in made.items():
        name = onnx_model.unique(f"{conv.name}_{what}_folded", names)
        view.graph.initializer.append(numpy_helper.from_array(value.astype(weight.dtype), name))
        inputs.append(name)
    del conv.input[:]
    conv.input.extend(inputs)
    conv.output[0] = norm.output[0]
    return True


def drop_unread(graph: GraphProto) -> None:
    """Initializers that nothing reads go, in place, and nodes that only moved such."""
    outputs = {o.name for o in graph.output}
    while True:
        read = outputs | {name for node in graph.node for name in (*node.input, *onnx_model.captured(node))}
        dead = [node for node in graph.node if node.op_type in MOVES and not read & set(node.output)]
        for node in dead:
            graph.node.remove(node)
        if not dead:
            break
    read |= {i.name for i in graph.input}
    retain(graph.initializer, lambda t: t.name in read)
