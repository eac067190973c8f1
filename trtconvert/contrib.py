"""onnxruntime's own ops (domain com.microsoft) as standard ONNX: each becomes a function of standard ops, then inlined."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from onnx import FunctionProto, ModelProto, NodeProto, helper
from onnx.inliner import inline_selected_functions

from trtconvert import model as onnx_model
from trtconvert.contrib_ops import WRITERS, Known, Writer
from trtconvert.errors import ConvertError

if TYPE_CHECKING:
    from trtconvert.graph import GraphView

_BODIES = "com.microsoft.standard"  # domain of the functions while they last
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
    bodies = _Bodies(model)
    for node in filter(bodies.wants, onnx_model.all_nodes(model)):
        if refusal(node) is None:
            bodies.call(node, _body(node, _NEWEST, _known(None)))
    bodies.add(model)
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
    bodies, written = _Bodies(model), Counter[str]()
    for graph, view in zip(onnx_model.all_graphs(model.graph), views, strict=True):
        for node in graph.node:
            if bodies.wants(node) and not keep(node.op_type):
                written[node.op_type] += 1
                bodies.call(node, _body(node, onnx_model.opset(model), _known(view)))
    if not written:
        return model, written
    bodies.add(model)
    inlined = inline_selected_functions(model, [(_BODIES, f.name) for f in bodies.functions.values()])
    for index, entry in reversed(list(enumerate(inlined.opset_import))):
        if entry.domain == _BODIES:
            del inlined.opset_import[index]
    return inlined, written


# --- functions -----------------------------------------------------------------------------------------------------


def _known(view: GraphView | None) -> Known:
    return lambda name: (view.info(name).dtype, view.rank(name)) if view is not None else ("", None)


class _Bodies:
    """The functions that contrib nodes call, equal ones once."""

    def __init__(self, model: ModelProto) -> None:
        self.defined = {(f.domain, f.name) for f in model.functions}  # the model's own definition of an op counts
        self.functions: dict[bytes, FunctionProto] = {}

    def wants(self, node: NodeProto) -> bool:
        return is_contrib(node) and (node.domain, node.op_type) not in self.defined

    def call(self, node: NodeProto, body: FunctionProto) -> None:
        """Make the node a call of the body: the op's inputs and outputs that are there, and no attributes."""
        known = self.functions.setdefault(body.SerializeToString(deterministic=True), body)
        if known is body:
            body.name = f"{node.op_type}_{len(self.functions)}"
        inputs, outputs = list(filter(None, node.input)), list(filter(None, node.output))
        del node.input[:], node.output[:], node.attribute[:]
        node.input.extend(inputs)
        node.output.extend(outputs)
        node.domain, node.op_type = _BODIES, known.name

    def add(self, model: ModelProto) -> None:
        model.functions.extend(self.functions.values())
        if self.functions:
            model.opset_import.append(helper.make_opsetid(_BODIES, 1))


def _body(node: NodeProto, opset: int, known: Known) -> FunctionProto:
    writer = WRITERS[node.op_type]
    op = Writer(node, opset, known)
    parameters = list(inspect.signature(writer).parameters.values())[1:]
    required = sum(p.default is p.empty for p in parameters)
    if not required <= len(node.input) <= len(parameters):
        raise op.refuse(
            f"has {len(node.input)} inputs, onnxruntime defines {required} to {len(parameters)}", "export it again"
        )
    outputs = writer(op, *(name and f"x{i}" for i, name in enumerate(node.input)))
    for name, made in zip_longest(node.output, outputs, fillvalue=""):
        if name and not made:
            raise op.refuse(f"has an output {name!r} that onnxruntime's kernel does not make", "remove that output")
    return helper.make_function(
        _BODIES,
        "",
        [f"x{i}" for i, name in enumerate(node.input) if name],
        [made for made, name in zip(outputs, node.output, strict=False) if name],
        op.nodes,
        [helper.make_opsetid("", opset)],
    )
