"""onnxruntime's own ops (domain com.microsoft) as standard ONNX: each becomes a function of standard ops, then inlined."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from onnx import FunctionProto, ModelProto, NodeProto

from trtconvert import model as onnx_model
from trtconvert.errors import ConvertError
from trtconvert.lowering import contrib_ops, contrib_quantized
from trtconvert.lowering.calls import Calls
from trtconvert.lowering.writer import Known, Writer

if TYPE_CHECKING:
    from trtconvert.graph import GraphView

WRITERS = contrib_ops.WRITERS | contrib_quantized.WRITERS
_NEWEST = (
    23  # opset of bodies that only inference sees: the shortest ones, and fit for inputs of unknown dtype and rank
)


# --- what other modules call ---------------------------------------------------------------------------------------


def is_contrib(node: NodeProto) -> bool:
    """Whether this module knows the node's op."""
    return node.domain == onnx_model.ORT_DOMAIN and node.op_type in WRITERS


def refusal(node: NodeProto, view: GraphView | None = None) -> str | None:
    """Why the node cannot be written as standard ONNX; None if it can. view: of its graph, if it is known."""
    try:
        _body(node, _NEWEST, _known(view))
    except ConvertError as error:
        return error.what
    return None


def for_inference(model: ModelProto) -> ModelProto:
    """The model, changed in place, with a function for every contrib node, so that ONNX shape inference goes on behind
    it. Graphs, tensor names and the order of nodes stay; what cannot be written stays as it was."""
    onnx_model.adopt_ort_ops(model)
    calls, own = Calls(), _own(model)
    for node in onnx_model.all_nodes(model):
        if is_contrib(node) and node.op_type not in own and refusal(node) is None:
            calls.call(node, _body(node, _NEWEST, _known(None)))
    calls.add(model)
    return model


def standardize(
    model: ModelProto, views: Sequence[GraphView], keep: Callable[[str], bool]
) -> tuple[ModelProto, Counter[str]]:
    """A model in which contrib nodes, but for op types to `keep`, are standard nodes of its own opset; and how many
    nodes of each op type were written so. `model` itself is changed.

    views: of the model after `for_inference`, for dtypes and ranks. Raises ConvertError for a variant of an op that
    cannot be written. Source: onnxruntime 1.32, docs/ContribOperators.md and its CPU kernels.
    """
    onnx_model.adopt_ort_ops(model)
    calls, own, written = Calls(), _own(model), Counter[str]()
    for graph, view in zip(onnx_model.all_graphs(model.graph), views, strict=True):
        for node in graph.node:
            if is_contrib(node) and node.op_type not in own and not keep(node.op_type):
                written[node.op_type] += 1
                calls.call(node, _body(node, onnx_model.opset(model), _known(view)))
    return calls.inline(model), written


# --- functions -----------------------------------------------------------------------------------------------------


def _own(model: ModelProto) -> set[str]:
    """Ops of that domain which the model itself defines."""
    return {f.name for f in model.functions if f.domain == onnx_model.ORT_DOMAIN}


def _known(view: GraphView | None) -> Known:
    return lambda name: (view.info(name).dtype, view.rank(name)) if view is not None else ("", None)


def _body(node: NodeProto, opset: int, known: Known) -> FunctionProto:
    writer = WRITERS[node.op_type]
    op = Writer(node, opset, known)
    parameters = list(inspect.signature(writer).parameters.values())[1:]
    required = sum(p.default is p.empty for p in parameters)
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(node.input) < required or (len(node.input) > len(parameters) and not variadic):
        raise op.refuse(
            f"has {len(node.input)} inputs, onnxruntime defines {required} to {len(parameters)}", "export it again"
        )
    outputs = writer(op, *op.inputs())
    for name, made in zip_longest(node.output, outputs, fillvalue=""):
        if name and not made:
            raise op.refuse(f"has an output {name!r} that onnxruntime's kernel does not make", "remove that output")
    return op.body(outputs)
