"""Functions written out where they are called: the model's own, and those by which ONNX defines standard ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import onnx
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, helper
from onnx.inliner import inline_local_functions, inline_selected_functions

from trtconvert import model as onnx_model
from trtconvert.errors import ConvertError

if TYPE_CHECKING:
    from trtconvert.graph import GraphView


def inline_local(model: ModelProto, goes: Callable[[FunctionProto], bool] = lambda _: True) -> ModelProto:
    """A model with its own functions written out, those that are to go. Nodes in `model` itself may get attributes that
    they left at their default."""
    going = [(f.domain, f.name) for f in model.functions if goes(f)]
    if not going:
        return model
    defaults = {(f.domain, f.name): list(f.attribute_proto) for f in model.functions}
    _fill(onnx_model.all_nodes(model), defaults)
    for function in model.functions:
        _fill(_nodes(function), defaults)
    try:
        if len(going) == len(model.functions):
            return inline_local_functions(model, convert_version=True)
        return inline_selected_functions(model, going)
    except RuntimeError as error:
        raise ConvertError(
            f"the model's own functions cannot be written out: {error}", fix="export them with the model's opset"
        ) from error


def has_body(op_type: str, opset: int, domain: str = "") -> bool:
    """Whether ONNX defines the standard op by a function of other ops, in that opset."""
    schema = _schema(op_type, opset, domain)
    return schema is not None and any(version <= opset for found in _versions(schema) for version in found)


def body(node: NodeProto, opset: int, view: GraphView) -> FunctionProto | None:
    """The function by which ONNX defines the node's op, as a body for `calls.Calls`; None if there is none in that opset.

    view: of the node's graph; some bodies depend on the dtypes and ranks of the inputs.
    """
    schema: Any = _schema(node.op_type, opset, node.domain)  # onnx's stubs lack its functions
    if schema is None:
        return None
    plain, typed = ([v for v in found if v <= opset] for found in _versions(schema))
    types = [_type(view, name) for name in node.input]
    if plain:
        data = schema.get_function_with_opset_version(max(plain))
    elif typed and all(kind or not name for kind, name in zip(types, node.input, strict=True)):
        # What is of unknown type, or a sequence, ends ONNX's writers of bodies, and the process with them.
        data = schema.get_context_dependent_function_with_opset_version(max(typed), node.SerializeToString(), types)
    else:
        return None
    function = FunctionProto.FromString(data)
    if not function.node:  # ONNX cannot write it for these dtypes
        return None
    values = {a.name: a.default_value for a in schema.attributes.values() if a.default_value.type}
    values |= {a.name: a for a in node.attribute}
    return _bound(function, node, values, opset)


def _schema(op_type: str, opset: int, domain: str) -> onnx.defs.OpSchema | None:
    domain = "" if domain in onnx_model.STANDARD_DOMAINS else domain
    version = opset if not domain else onnx.defs.onnx_opset_version()  # those have one version
    if not onnx.defs.has(op_type, version, domain):
        return None
    return onnx.defs.get_schema(op_type, version, domain)


def _versions(schema: onnx.defs.OpSchema) -> tuple[list[int], list[int]]:
    """Opsets for which there is a body, and a body that depends on types."""
    found: Any = schema  # onnx's stubs lack these
    return list(found.function_opset_versions), list(found.context_dependent_function_opset_versions)


def _type(view: GraphView, name: str) -> bytes:
    info = view.info(name)
    if not name or not info.dtype:
        return b""
    dtype = onnx_model.elem_type(info.dtype)
    return bytes(helper.make_tensor_type_proto(dtype, info.shape).SerializeToString())


def _bound(function: FunctionProto, node: NodeProto, values: Mapping[str, AttributeProto], opset: int) -> FunctionProto:
    """The function with the node's attributes in it, and with those inputs and outputs that the node has."""
    given = dict(zip_longest(function.input, node.input, fillvalue=""))
    absent = {name for name, actual in given.items() if not actual}
    for inner in _nodes(function):
        inner.input[:] = ["" if name in absent else name for name in inner.input]
        for attribute in reversed(inner.attribute):
            if attribute.ref_attr_name:
                value = values.get(attribute.ref_attr_name)
                name = attribute.name
                attribute.Clear()
                if value is None:
                    inner.attribute.remove(attribute)
                else:
                    attribute.CopyFrom(value)
                    attribute.name = name
    outputs = [made for made, wanted in zip(function.output, node.output, strict=False) if wanted]
    inputs = [name for name, actual in given.items() if actual]
    return helper.make_function("", "", inputs, outputs, list(function.node), [helper.make_opsetid("", opset)])


def _fill(nodes: Iterable[NodeProto], defaults: Mapping[tuple[str, str], list[AttributeProto]]) -> None:
    """Write out attributes left at their default: ONNX's inliner drops what refers to an attribute that the call lacks,
    so that the inner op's own default would count, and the result be wrong without a word."""
    for node in nodes:
        present = {a.name for a in node.attribute}
        node.attribute.extend(d for d in defaults.get((node.domain, node.op_type), ()) if d.name not in present)


def _nodes(function: FunctionProto) -> Iterator[NodeProto]:
    for node in function.node:
        yield node
        for graph in onnx_model.subgraphs(node):
            for inner in onnx_model.all_graphs(graph):
                yield from inner.node
