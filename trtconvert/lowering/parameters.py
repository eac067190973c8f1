"""Inputs that TensorRT wants to know when it builds (axes, sizes, pads): where they follow from constants and known
dimensions, constants in their place."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert.graph import GraphView
from trtconvert.lowering.branches import Values, value

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
PARAMETERS: dict[str, tuple[int, ...]] = {
    **{f"Reduce{kind}": (1,) for kind in _REDUCTIONS},
    "Squeeze": (1,), "Unsqueeze": (1,), "TopK": (1,), "Slice": (1, 2, 3, 4), "Pad": (1, 2, 3), "Resize": (1, 2, 3),
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "Split": (1,), "CumSum": (1,), "OneHot": (1,), "Trilu": (1,),
    "ConstantOfShape": (0,), "Range": (0, 1, 2), "Clip": (1, 2), "Upsample": (1,), "Dropout": (1, 2),
    "NonMaxSuppression": (2, 3, 4), "CenterCropPad": (1,), "DFT": (1, 2),
}  # fmt: skip
"""Op type to the inputs that the parser wants as constants, or handles better as such. Seen: TensorRT-RTX 1.7.1."""
_LARGEST = 1024  # elements; parameters are small


def settle(model: ModelProto, folder: Path, shapes: onnx_graph.Known = onnx_graph.NOTHING) -> list[str]:
    """Put constants in the place of such inputs, in place; and axes where a Slice has none. Nodes that only computed what is
    a constant now go: their names, or what they made. folder: of external data. shapes: known
    dimensions of inputs that the model leaves open."""
    if not any(node.op_type in PARAMETERS for node in onnx_model.all_nodes(model)):
        return []
    values: Values = {}
    gone: list[str] = []
    views = onnx_graph.views(model, folder, shapes)
    # From behind, so that what a value is computed from is still as the views know it.
    for graph, view in reversed(list(zip(list(onnx_model.all_graphs(model.graph)), views, strict=True))):
        orphans: set[str] = set()
        for node in reversed(view.nodes):
            if node.domain not in onnx_model.STANDARD_DOMAINS:
                continue
            for index in PARAMETERS.get(node.op_type, ()):
                if index < len(node.input) and _computed(view, node.input[index]):
                    _replace(graph, node, index, view, values, orphans)
            _name_axes(node, graph, view)
        gone += _sweep(model, graph, orphans)
    return gone


def _computed(view: GraphView, name: str) -> bool:
    """Whether a node other than Constant makes the tensor, here or in a graph around."""
    at: GraphView | None = view
    while at is not None and name:
        node = at.producer(name)
        if node is not None:
            return node.op_type != "Constant"
        at = at.parent
    return False


def _replace(
    graph: GraphProto, node: NodeProto, index: int, view: GraphView, values: Values, orphans: set[str]
) -> None:
    found = value(view, node.input[index], values)
    if found is None or found.size > _LARGEST or found.dtype.kind not in "iufb":
        return
    if node.op_type == "Range" and found.size == 1:
        found = found.reshape(())  # what computes it is often content with one element
    name = f"{node.name or node.output[0]}_parameter_{index}"
    graph.initializer.append(numpy_helper.from_array(found, name))
    orphans.add(node.input[index])
    node.input[index] = name


def _name_axes(node: NodeProto, graph: GraphProto, view: GraphView) -> None:
    """Slice without axes starts at the first: TensorRT wants as many as there are axes then."""
    if node.op_type != "Slice" or len(node.input) < 3 or any(node.input[3:4]):
        return
    starts, rank = view.info(node.input[1]).shape, view.rank(node.input[0])
    if starts is None or rank is None or len(starts) != 1 or not isinstance(starts[0], int) or starts[0] >= rank:
        return
    name = f"{node.name or node.output[0]}_axes"
    graph.initializer.append(helper.make_tensor(name, 7, [starts[0]], list(range(starts[0]))))
    if len(node.input) > 3:
        node.input[3] = name
    else:
        node.input.append(name)


def _sweep(model: ModelProto, graph: GraphProto, orphans: set[str]) -> list[str]:
    """Remove the nodes of the graph that nothing reads any more, beginning with those that made the orphans."""
    if not orphans:
        return []
    reads = Counter(name for inner in onnx_model.all_graphs(model.graph) for node in inner.node for name in node.input)
    reads.update(output.name for inner in onnx_model.all_graphs(model.graph) for output in inner.output)
    gone: list[str] = []
    kept: list[NodeProto] = []
    for node in reversed(graph.node):
        if not orphans.isdisjoint(node.output) and not any(reads[name] for name in node.output):
            gone.append(node.name or node.output[0])
            reads.subtract(node.input)
            orphans |= set(node.input)
        else:
            kept.append(node)
    if gone:
        del graph.node[:]
        graph.node.extend(reversed(kept))
    return gone[::-1]
