"""Standard ops in forms that TensorRT lacks, as nodes that it has: written by hand, or as the function that ONNX defines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from onnx import FunctionProto, ModelProto, NodeProto

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert.diagnosis.faults import Fault
from trtconvert.errors import ConvertError
from trtconvert.graph import GraphView
from trtconvert.lowering import functions
from trtconvert.lowering.branches import Values
from trtconvert.lowering.calls import Calls
from trtconvert.standard import integers, ops, pooling, resize, scatter
from trtconvert.standard.writer import Standard

_MODULES = (integers, ops, pooling, resize, scatter)
WRITERS = {op: writer for module in _MODULES for op, writer in module.WRITERS.items()}
BY_HAND, BY_ONNX = "ops that TensorRT has", "the function that ONNX defines for it"


def standardize(
    model: ModelProto,
    folder: Path,
    supports: Callable[[str], bool],
    shapes: onnx_graph.Known,
    faults: list[Fault],
) -> tuple[ModelProto, Counter[tuple[str, str]]]:
    """A model without the nodes that TensorRT would refuse, where others can stand for them; and how many there were of
    each op, and how it was written. Those that nothing can stand for stay. `model` itself is changed.

    supports: whether TensorRT, or a registered op, takes a standard op. shapes: known dimensions of inputs that the model
    leaves open. faults: gets those that could be written if more were known.
    """
    written: Counter[tuple[str, str]] = Counter()
    first = True
    while any(_may_go(node, model, supports) for node in onnx_model.all_nodes(model)):
        calls = Calls()
        values: Values = {}
        views = onnx_graph.views(model, folder, shapes)
        graphs = list(onnx_model.all_graphs(model.graph))  # a node that becomes a call loses its subgraphs
        for graph, view in zip(graphs, views, strict=True):
            for node in graph.node:
                if _may_go(node, model, supports):
                    how, body = _tried(node, view, values, supports, faults)
                    if body is not None:
                        if first:  # not what bodies hold
                            written[node.op_type, how] += 1
                        calls.call(node, body)
        if not calls.functions:
            break
        model, first = calls.inline(model), False
    return model, written


def _may_go(node: NodeProto, model: ModelProto, supports: Callable[[str], bool]) -> bool:
    if node.domain not in onnx_model.STANDARD_DOMAINS:
        return functions.has_body(node.op_type, 1, node.domain)
    if node.op_type in WRITERS:
        return True
    return not supports(node.op_type) and functions.has_body(node.op_type, onnx_model.opset(model))


def _tried(
    node: NodeProto, view: GraphView, values: Values, supports: Callable[[str], bool], faults: list[Fault]
) -> tuple[str, FunctionProto | None]:
    try:
        return _body(node, view, values, supports)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return BY_HAND, None  # a node that is not as ONNX has it, such as one with too many inputs: the parser says so
    except ConvertError as error:
        name = node.name or next(filter(None, node.output), "")
        reason = error.what.removeprefix(f"{node.op_type} ")
        fault = Fault(name, node.op_type, f"it {reason}", error.fix or "", view.path + name)
        if fault not in faults:
            faults.append(fault)
        return BY_HAND, None


def _body(
    node: NodeProto, view: GraphView, values: Values, supports: Callable[[str], bool]
) -> tuple[str, FunctionProto | None]:
    op = Standard(node, view, values, supports(node.op_type))
    writer = WRITERS.get(node.op_type) if node.domain in onnx_model.STANDARD_DOMAINS else None
    outputs = writer(op, *op.inputs()) if writer else None
    if outputs is None and not op.native:
        outputs = op.function()
    if outputs is None or isinstance(outputs, FunctionProto):
        return BY_ONNX, outputs
    return BY_HAND, op.body(outputs)
