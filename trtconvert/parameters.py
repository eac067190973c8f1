"""Inputs that TensorRT wants as constants, such as axes: computed here where constants and known dimensions give them."""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto, NodeProto, numpy_helper

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert.branches import Values, value
from trtconvert.graph import GraphView

# By op type, the positions of such inputs. TensorRT-RTX 1.7.1 takes an initializer or a Constant there.
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
POSITIONS = {f"Reduce{kind}": (1,) for kind in _REDUCTIONS} | {
    "CumSum": (1,),
    "Pad": (3,),
    "Slice": (3,),
    "Squeeze": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
}


def make_constant(model: ModelProto, folder: Path, shapes: onnx_graph.Known = onnx_graph.NOTHING) -> int:
    """Write computed axes and the like as initializers, in place, where their value is known; returns how many.

    folder: of external data. shapes: known dimensions of inputs that the model leaves open.
    """
    if not any(_computed(node, None) for node in onnx_model.all_nodes(model)):
        return 0
    values: Values = {}
    written: dict[str, str] = {}
    for view in onnx_graph.views(model, folder, shapes):
        for node in view.graph.node:
            for index in _computed(node, view):
                name = node.input[index]
                key = f"{view.path}{name}"
                known = value(view, name, values)
                if known is None:
                    continue
                if key not in written:
                    written[key] = _unique(f"{name}_value", model)
                    model.graph.initializer.append(numpy_helper.from_array(known, written[key]))
                node.input[index] = written[key]
    return len(written)


def _computed(node: NodeProto, view: GraphView | None) -> list[int]:
    """Positions of such inputs that nodes compute; without a view those that may be."""
    if node.domain not in onnx_model.STANDARD_DOMAINS:
        return []
    found = [i for i in POSITIONS.get(node.op_type, ()) if i < len(node.input) and node.input[i]]
    if view is None:
        return found
    return [i for i in found if _is_computed(view, node.input[i])]


def _is_computed(view: GraphView, name: str) -> bool:
    maker = view.producer(name)
    if maker is not None:
        return maker.op_type != "Constant"
    return view.initializer(name) is None and view.parent is not None and _is_computed(view.parent, name)


def _unique(name: str, model: ModelProto) -> str:
    taken = {t for g in onnx_model.all_graphs(model.graph) for n in g.node for t in n.output}
    taken |= {t.name for g in onnx_model.all_graphs(model.graph) for t in (*g.initializer, *g.input)}
    while name in taken:
        name += "_"
    return name
