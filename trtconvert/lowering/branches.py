"""If nodes whose condition is known before the engine is built: the branch taken stands in their place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, helper
from onnx.reference import ReferenceEvaluator

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert.graph import GraphView

# What conditions are computed with, beside what GraphView folds. Their inputs are shapes and flags: small.
_FOLDABLE = frozenset(
    (
        "Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Transpose",
        "Gather", "GatherElements", "Slice", "Concat", "Where",
        "Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Sign", "Min", "Max",
        "ReduceProd", "ReduceSum", "ReduceMin", "ReduceMax",
        "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Not", "Range",
    )
)  # fmt: skip
_MOVES = frozenset(["Gather", "Slice"])
Values: TypeAlias = "dict[tuple[int, str], NDArray[Any] | None]"
"""Tensors of known value, by their view's id and name; None for those that have none."""


@dataclass(frozen=True)
class Fold:
    """An If that gave way to one of its branches, "then" or "else"."""

    node: str
    branch: str


def fold(
    model: ModelProto, folder: Path = Path(), shapes: Mapping[str, Sequence[int | None]] | None = None
) -> list[Fold]:
    """Put the branch taken in the place of every If with a known condition, in place; nodes that only the other branch
    or the condition needed go.

    A condition is known when it is computed from constants and from known dimensions. shapes: dimensions of the model's
    inputs that the engine will have, where the model leaves them open. folder: of external data.
    """
    folds: list[Fold] = []
    while any(node.op_type == "If" for node in onnx_model.all_nodes(model)):
        chosen = _choose(model, folder, shapes or {})
        if not chosen:
            break
        graph_index, taken = chosen  # one graph at a time: what it takes in may hold further Ifs
        graph = list(onnx_model.all_graphs(model.graph))[graph_index]
        folds += [
            Fold(graph.node[i].name or next(filter(None, graph.node[i].output), "If"), name)
            for i, name in taken.items()
        ]
        _replace(model, graph, taken)
    return folds


def _choose(
    model: ModelProto, folder: Path, shapes: Mapping[str, Sequence[int | None]]
) -> tuple[int, dict[int, str]] | None:
    """The first graph with Ifs of known condition: its index, and by node index the branch taken."""
    values: Values = {}
    for graph_index, view in enumerate(onnx_graph.views(model, folder, shapes)):
        found = {}
        for index, node in enumerate(view.graph.node):
            if node.op_type == "If" and node.domain in onnx_model.STANDARD_DOMAINS:
                condition = value(view, node.input[0], values)
                if condition is not None and condition.size == 1:
                    found[index] = "then" if bool(condition.item()) else "else"
        if found:
            return graph_index, found
    return None


# --- what is known of a condition ----------------------------------------------------------------------------------


def value(view: GraphView, name: str, done: Values) -> NDArray[Any] | None:
    """The tensor's value if it follows from constants and known dimensions. done: what was found before, for the next call."""
    for each in view.chain(name, _FOLDABLE, lambda tensor: (id(view), tensor) in done):
        done[id(view), each] = None  # a cycle is no constant
        done[id(view), each] = _compute(view, each, done)
    return done[id(view), name]


def _compute(view: GraphView, name: str, done: Values) -> NDArray[Any] | None:
    constant = view.constant(name)
    node = view.producer(name)
    if constant is not None:
        return constant
    if node is None:
        own = name in {i.name for i in view.graph.input} or name in view.initializers
        return value(view.parent, name, done) if view.parent is not None and not own else None
    if node.domain not in onnx_model.STANDARD_DOMAINS:
        return None
    if node.op_type in ("Shape", "Size"):
        dims = _dims(view, node)
        sizes = [d for d in dims or () if isinstance(d, int)]
        if dims is None or len(sizes) < len(dims):
            return None
        return np.asarray(sizes if node.op_type == "Shape" else np.prod(sizes, dtype=np.int64), np.int64)
    if node.op_type not in _FOLDABLE:
        return None
    first = view.producer(node.input[0])
    if node.op_type in _MOVES and first is not None and first.op_type == "Shape":
        return _picked(view, node, _dims(view, first), done)
    return _evaluate(view, node, [value(view, i, done) for i in node.input if i])


def _dims(view: GraphView, node: NodeProto) -> Sequence[int | str | None] | None:
    """What a Shape or Size node looks at."""
    shape = view.info(node.input[0]).shape
    attributes = onnx_model.attribute_values(node)
    return None if shape is None else shape[attributes.get("start", 0) : attributes.get("end", len(shape))]


def _picked(
    view: GraphView,
    node: NodeProto,
    dims: Sequence[int | str | None] | None,
    done: Values,
) -> NDArray[Any] | None:
    """Dimensions picked from a shape of which others may be open: the node is run on their positions."""
    if dims is None:
        return None
    positions = _evaluate(view, node, [np.arange(len(dims)), *(value(view, i, done) for i in node.input[1:] if i)])
    if positions is None or not all(isinstance(dims[p], int) for p in positions.flat):
        return None
    return np.asarray([dims[p] for p in positions.flat], np.int64).reshape(positions.shape)


def _evaluate(view: GraphView, node: NodeProto, inputs: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    feeds = dict(zip(filter(None, node.input), inputs, strict=True))
    if any(array is None or array.size > onnx_graph.MAX_FOLDED for array in feeds.values()):
        return None
    if node.op_type == "Range" and not _is_short(*feeds.values()):
        return None
    try:
        with np.errstate(all="ignore"):
            (result,) = ReferenceEvaluator(node, opsets={"": view.opset}).run(None, feeds)
    except Exception:  # noqa: BLE001  # the evaluator's own errors are of many types; what it cannot compute is not known
        return None
    return np.asarray(result)


def _is_short(start: Any, limit: Any, delta: Any) -> bool:
    return bool(delta) and abs(float(limit) - float(start)) <= abs(float(delta)) * onnx_graph.MAX_FOLDED


# --- the branch in place of the node -------------------------------------------------------------------------------


def _replace(model: ModelProto, graph: GraphProto, branches: Mapping[int, str]) -> None:
    defined = Counter(name for inner in onnx_model.all_graphs(model.graph) for name in _made(inner))
    nodes: list[NodeProto] = []
    orphans: set[str] = set()  # what the condition and both branches read
    for index, node in enumerate(graph.node):
        if index in branches:
            orphans |= {*node.input, *onnx_model.captured(node)}
            branch = next(a.g for a in node.attribute if a.name == f"{branches[index]}_branch")
            nodes += _inlined(branch, node.output, graph, defined)
        else:
            nodes.append(node)
    outputs = {o.name for o in graph.output}
    live, needed = _live(nodes, orphans, outputs)
    weights = [t for t in graph.initializer if t.name not in orphans or t.name in needed]
    for field, kept in ((graph.node, live), (graph.initializer, weights)):
        if len(kept) != len(field) or field is graph.node:
            del field[:]
            field.extend(kept)


def _made(graph: GraphProto) -> set[str]:
    """Names that the graph itself gives to tensors."""
    names = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    return names | {name for node in graph.node for name in node.output if name}


def _inlined(
    branch: GraphProto, outputs: Sequence[str], graph: GraphProto, defined: Counter[str]
) -> Iterator[NodeProto]:
    """The branch's nodes, which make the If's outputs now; its initializers move to the graph. What it captures keeps
    its name; what it makes gets another one where a second tensor of the model has that name."""
    made = {name for node in branch.node for name in node.output if name}
    names: dict[str, str] = {}
    for inner, outer in zip(branch.output, outputs, strict=False):
        if outer and inner.name in made:
            names.setdefault(inner.name, outer)
    for name in sorted(_made(branch)):
        names.setdefault(name, _unique(name, defined))
    for tensor in branch.initializer:
        tensor.name = names[tensor.name]
        graph.initializer.append(tensor)
    for node in branch.node:
        _rename(node, names, defined)
        yield node
    for inner, outer in zip(branch.output, outputs, strict=False):
        source = names.get(inner.name, inner.name)
        if outer and source != outer:  # an initializer, a captured tensor, or one tensor as two outputs
            yield helper.make_node("Identity", [source], [outer], name=f"{outer}_Identity")


def _unique(name: str, defined: Counter[str]) -> str:
    candidate, count = name, 1
    while defined[candidate] > (candidate == name):  # its own definition is among those counted
        candidate, count = f"{name}_{count}", count + 1
    defined[candidate] += candidate != name
    return candidate


def _rename(node: NodeProto, names: Mapping[str, str], defined: Counter[str]) -> None:
    """Rename what the node reads and makes, and what its subgraphs capture. What a subgraph makes under one of the new
    names, which it could not see until now, gets another one."""
    for field in (node.input, node.output):
        field[:] = [names.get(name, name) for name in field]
    for graph in onnx_model.subgraphs(node):
        own = _made(graph)
        seen = {name: new for name, new in names.items() if name not in own}
        seen |= {name: _unique(name, defined) for name in sorted(own.intersection(names.values()))}
        for inner in graph.node:
            _rename(inner, seen, defined)
        for item in (*graph.input, *graph.initializer, *graph.output, *graph.value_info):
            item.name = seen.get(item.name, item.name)


def _live(nodes: Sequence[NodeProto], orphans: set[str], outputs: set[str]) -> tuple[list[NodeProto], set[str]]:
    """The nodes without those that only made orphans, and what they read. Others stay, needed or not."""
    live: list[NodeProto] = []
    needed = set(outputs)
    for node in reversed(nodes):
        read = {*node.input, *onnx_model.captured(node)}
        if needed.isdisjoint(node.output) and not orphans.isdisjoint(node.output):
            orphans |= read
        else:
            needed |= read
            live.append(node)
    return live[::-1], needed
