"""Functions written out where they are called: the model's own, and those by which ONNX defines standard ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import onnx
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto
from onnx.inliner import inline_local_functions, inline_selected_functions

from trtconvert import model as onnx_model
from trtconvert.errors import ConvertError


def inline_local(model: ModelProto, goes: Callable[[FunctionProto], bool] = lambda _: True) -> ModelProto:
    """A model with its own functions written out, those that are to go. Nodes in `model` itself may get attributes as in
    `expand`."""
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


def has_body(op_type: str, opset: int) -> bool:
    """Whether ONNX defines the standard op by a function of other ops, in that opset."""
    if not onnx.defs.has(op_type, opset, ""):
        return False
    schema = onnx.defs.get_schema(op_type, opset, "")
    versions: list[int] = schema.all_function_opset_versions  # type: ignore[attr-defined]  # onnx's stubs lack it
    return any(version <= opset for version in versions)


def expand(model: ModelProto, supports: Callable[[str], bool]) -> tuple[ModelProto, Counter[str]]:
    """A model with ONNX's function bodies in place of standard ops that TensorRT lacks, and how many nodes of each op
    there were. Nodes in `model` itself may get attributes that they left at their default."""
    found = missing = _missing(model, supports)
    tried: set[str] = set()
    while not tried.issuperset(missing):  # a body may hold such ops too: a loss is made of another loss
        tried |= set(missing)
        _fill(onnx_model.all_nodes(model), _schema_defaults(missing, onnx_model.opset(model)))
        model = inline_selected_functions(model, [("", name) for name in missing], inline_schema_functions=True)
        missing = _missing(model, supports)
    return model, found


def _missing(model: ModelProto, supports: Callable[[str], bool]) -> Counter[str]:
    opset = onnx_model.opset(model)
    standard = [n for n in onnx_model.all_nodes(model) if n.domain in onnx_model.STANDARD_DOMAINS]
    return Counter(n.op_type for n in standard if not supports(n.op_type) and has_body(n.op_type, opset))


def _schema_defaults(op_types: Iterable[str], opset: int) -> dict[tuple[str, str], list[AttributeProto]]:
    return {
        (domain, op_type): [
            attribute.default_value
            for attribute in onnx.defs.get_schema(op_type, opset, "").attributes.values()
            if attribute.default_value.type != AttributeProto.UNDEFINED
        ]
        for op_type in op_types
        for domain in onnx_model.STANDARD_DOMAINS
    }


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
