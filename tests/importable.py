"""Models written so that one mixture of TensorRT's parts can import them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from trtconvert import backend


def mixed() -> bool:
    """TensorRT-RTX 1.6 with the ONNX parser of 1.7: the only mixture that runs plugins on compute capability 9.0."""
    chosen = backend.select()
    return chosen.is_rtx and chosen.version.startswith("1.6.")


def importable(source: Path, folder: Path) -> Path:
    """The model as it is; for that mixture, which ends the process at a 1-D convolution and takes no Squeeze, with 2-D ones
    of width 1 and with sums over the axes of size 1."""
    model = onnx.load(source)
    flat = [n for n in model.graph.node if n.op_type == "Conv" and len(n.attribute) and _kernel_rank(n) == 1]
    squeezes = [n for n in model.graph.node if n.op_type == "Squeeze" and (n.attribute or len(n.input) > 1)]
    if not mixed() or not flat + squeezes:
        return source
    for node in squeezes:
        node.op_type = "ReduceSum"
        node.attribute.append(onnx.helper.make_attribute("keepdims", 0))
    write_2d(model, flat)
    path = folder / f"{source.stem}_importable.onnx"
    onnx.save(model, path)
    return path


def write_2d(model: onnx.ModelProto, flat: list[onnx.NodeProto]) -> None:
    """Write these 1-D convolutions as 2-D ones between two Reshapes."""
    weights = {t.name: t for t in model.graph.initializer}
    for name, shape in (("to_2d", [0, 0, -1, 1]), ("to_1d", [0, 0, -1])):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(shape, np.int64), name))
    nodes = []
    for node in model.graph.node:
        if node not in flat:
            nodes.append(node)
            continue
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
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _kernel_rank(node: onnx.NodeProto) -> int:
    return next((len(a.ints) for a in node.attribute if a.name == "kernel_shape"), 0)
