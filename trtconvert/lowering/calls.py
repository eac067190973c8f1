"""Nodes made into calls of functions, which are then written out in their place."""

from __future__ import annotations

from onnx import FunctionProto, ModelProto, NodeProto, helper
from onnx.inliner import inline_selected_functions

_DOMAIN = "trtconvert.written"  # of the functions while they last


class Calls:
    """Calls of functions, equal ones once. A body has no name and no attributes, and takes those inputs and outputs of
    its node that are there."""

    def __init__(self) -> None:
        self.functions: dict[bytes, FunctionProto] = {}

    def call(self, node: NodeProto, body: FunctionProto) -> None:
        """Make the node a call of the body."""
        body.domain, body.name = _DOMAIN, ""
        known = self.functions.setdefault(body.SerializeToString(deterministic=True), body)
        if known is body:
            body.name = f"{node.op_type}_{len(self.functions)}"
        inputs, outputs = list(filter(None, node.input)), list(filter(None, node.output))
        del node.input[:], node.output[:], node.attribute[:]
        node.input.extend(inputs)
        node.output.extend(outputs)
        node.domain, node.op_type = _DOMAIN, known.name

    def add(self, model: ModelProto) -> None:
        """Give the model the functions, without writing them out."""
        model.functions.extend(self.functions.values())
        if self.functions:
            model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))

    def inline(self, model: ModelProto) -> ModelProto:
        """The model with each call as the nodes of its function."""
        if not self.functions:
            return model
        self.add(model)
        inlined = inline_selected_functions(model, [(_DOMAIN, f.name) for f in self.functions.values()])
        for index, entry in reversed(list(enumerate(inlined.opset_import))):
            if entry.domain == _DOMAIN:
                del inlined.opset_import[index]
        return inlined
