"""Loops in the form that TensorRT's parser reads as ONNX means it."""

from __future__ import annotations

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from trtconvert import model as onnx_model


def settle(model: ModelProto) -> None:
    """In place, with every node named: an Identity between an input of the model and a Loop that reads it, since TensorRT-RTX
    1.7.1 gives such an input the name that it has in the Loop's body; and the condition true where a Loop has none, since
    the body's own condition is unknown to the parser then."""
    inputs = {value.name for value in model.graph.input}
    for depth, graph in enumerate(list(onnx_model.all_graphs(model.graph))):
        nodes: list[NodeProto] = []
        for node in graph.node:
            if node.op_type == "Loop" and node.domain in onnx_model.STANDARD_DOMAINS:
                _give_condition(node, graph)
                if depth == 0:
                    nodes += _copied(node, inputs)
            nodes.append(node)
        if len(nodes) > len(graph.node):
            del graph.node[:]
            graph.node.extend(nodes)


def _give_condition(node: NodeProto, graph: GraphProto) -> None:
    if len(node.input) > 1 and node.input[1]:
        return
    name = f"{node.name}_condition"
    graph.initializer.append(helper.make_tensor(name, TensorProto.BOOL, [], [True]))
    node.input.extend([""] * (2 - len(node.input)))
    node.input[1] = name


def _copied(node: NodeProto, inputs: set[str]) -> list[NodeProto]:
    copies = []
    for index, name in enumerate(node.input):
        if name in inputs:
            inner = f"{node.name}_input_{index}"
            copies.append(helper.make_node("Identity", [name], [inner], name=inner))
            node.input[index] = inner
    return copies
