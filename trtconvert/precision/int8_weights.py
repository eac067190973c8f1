"""Weights of any size, also where an exporter left the nodes that move or cast them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from trtconvert.graph import GraphView

MOVES = frozenset(("Constant", "Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast"))


def constant(view: GraphView, name: str) -> NDArray[Any] | None:
    """The value of an initializer, or of one that such nodes move; None if the tensor is neither."""
    tensor = view.initializer(name)
    if tensor is not None:
        return np.asarray(numpy_helper.to_array(tensor, str(view.folder)))
    order = view.chain(name, MOVES, lambda each: view.initializer(each) is not None)
    chain = [node for each in order if (node := view.producer(each)) is not None and node.op_type in MOVES]
    if len(chain) < len(order):
        return None
    read = {each: view.initializer(each) for node in chain for each in node.input if each and each not in order}
    feeds = {each: numpy_helper.to_array(held, str(view.folder)) for each, held in read.items() if held is not None}
    inputs = [helper.make_tensor_value_info(each, TensorProto.UNDEFINED, None) for each in feeds]
    made = helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None)
    graph = helper.make_graph(chain, "weight", inputs, [made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", view.opset)])
    (value,) = ReferenceEvaluator(model).run(None, feeds)
    return np.asarray(value)
