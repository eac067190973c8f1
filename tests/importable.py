"""Models written so that one mixture of TensorRT's parts can import them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from trtconvert import backend
from trtconvert.model import subgraphs


def mixed() -> bool:
    """TensorRT-RTX 1.6 with the ONNX parser of 1.7: the only mixture that runs plugins on compute capability 9.0."""
    chosen = backend.select()
    return chosen.is_rtx and chosen.version.startswith("1.6.")


def importable(source: Path, folder: Path) -> Path:
    """The model as it is; for that mixture, which ends the process at a 1-D convolution and takes no Squeeze, with 2-D ones
    of width 1 and with sums over the axes of size 1."""
    if not mixed():
        return source
    model = onnx.load(source)
    graphs = list(_graphs(model.graph))
    weights = {t.name: t for graph in graphs for t in graph.initializer}
    weights |= {n.output[0]: n.attribute[0].t for g in graphs for n in g.node if n.op_type == "Constant"}
    if not sum(write_sums(graph) + write_2d(graph, weights) for graph in graphs):
        return source
    for name, shape in (("to_2d", [0, 0, -1, 1]), ("to_1d", [0, 0, -1])):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(shape, np.int64), name))
    path = folder / f"{source.stem}_importable.onnx"
    onnx.save(model, path)
    return path


def write_sums(graph: onnx.GraphProto) -> int:
    """Write every Squeeze of named axes as a ReduceSum over them; how many there are."""
    found = [n for n in graph.node if n.op_type == "Squeeze" and (n.attribute or len(n.input) > 1)]
    for node in found:
        node.op_type = "ReduceSum"
        node.attribute.append(onnx.helper.make_attribute("keepdims", 0))
    return len(found)


def write_2d(graph: onnx.GraphProto, weights: dict[str, onnx.TensorProto]) -> int:
    """Write every 1-D convolution as a 2-D one between two Reshapes; how many there are."""
    nodes, found = [], 0
    for node in graph.node:
        if node.op_type != "Conv" or _kernel_rank(node) != 1:
            nodes.append(node)
            continue
        found += 1
        weights[node.input[1]].dims.append(1)
        for attribute in node.attribute:
            if attribute.name in ("kernel_shape", "strides", "dilations"):
                attribute.ints.append(1)
            elif attribute.name == "pads":
                attribute.ints[:] = [attribute.ints[0], 0, attribute.ints[1], 0]
        x, y = node.input[0], node.output[0]
        nodes.append(onnx.helper.make_node("Reshape", [x, "to_2d"], [f"{y}_in"], name=f"{node.name}_in"))
        node.input[0], node.output[0] = f"{y}_in", f"{y}_out"
        nodes += [node, onnx.helper.make_node("Reshape", [f"{y}_out", "to_1d"], [y], name=f"{node.name}_out")]
    del graph.node[:]
    graph.node.extend(nodes)
    return found


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Those within the graph, and the graph: what is written anew must hold what was."""
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _graphs(inner)
    yield graph


def _kernel_rank(node: onnx.NodeProto) -> int:
    return next((len(a.ints) for a in node.attribute if a.name == "kernel_shape"), 0)
