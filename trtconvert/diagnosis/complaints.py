"""What ONNX's checker says, with the node it is about and the way out."""

from __future__ import annotations

import difflib
import re

import onnx
from onnx import ModelProto, NodeProto, TensorProto

from trtconvert.errors import ConvertError
from trtconvert.profiles import inference

_PLACE = re.compile(r"\(op_type:\s*(\w+)(?:,? node name:\s*([^)]*))?\):\s*")
_TAGS = re.compile(r"\[\w+Error\]\s*|Inference error\(s\):\s*")
_ELEMENT = re.compile(r"Inferred elem type differs from existing elem type: \((\d+)\) vs \((\d+)\)")


def explain(message: str, bare: ModelProto, where: str | None) -> ConvertError:
    """The checker's first complaint. bare: the model as it was checked, every node with a name."""
    first = next((line for line in message.splitlines() if line.strip()), "unknown fault").strip()
    place = _PLACE.search(first)
    name = place[2] if place and place[2] else _context_name(message)
    text = _TAGS.sub("", _PLACE.sub("", first)).strip()
    text = _ELEMENT.sub(lambda m: f"the graph makes {_dtype(int(m[1]))}, the model declares {_dtype(int(m[2]))}", text)
    text = text.replace("Inferred shape and existing shape differ", "the graph's shape and the declared one differ")
    nodes = [node for graph in _graphs(bare) for node in graph]
    unknown = re.search(r"No Op registered for (\S+)", first)
    strange = re.search(r"Unrecognized attribute: (\w+) for operator (\w+)", first)
    if unknown:
        named = [n.name for n in nodes if n.op_type == unknown[1]]
        about = f"node{'s' * (len(named) > 1)} {', '.join(named[:5])}" if named else ""
        return ConvertError(f"the model is not valid ONNX: {text}", where=_join(where, about), fix=_known(unknown[1]))
    if strange:
        found = [n for n in nodes if n.op_type == strange[2] and any(a.name == strange[1] for a in n.attribute)]
        about = f"node {found[0].name}" if found else ""
        return ConvertError(
            f"the model is not valid ONNX: {text}, in opset {_version(bare)}",
            where=_join(where, about),
            fix="the node was written for another opset: correct opset_import, or use onnx.version_converter",
        )
    about = f"node {name} ({place[1]})" if place and name else f"node {name}" if name else ""
    node = next((n for n in nodes if n.name == name), None)
    what = f"the model is not valid ONNX: {f'{about}: ' if about else ''}{text}"
    return ConvertError(
        what, where=where, fix=_types(node, bare) if node is not None and "inconsistent type" in text else None
    )


def _context_name(message: str) -> str:
    found = re.search(r"Bad node spec for node\. Name: (\S+)|node name: ([^)\n]+)\)", message)
    return next(filter(None, found.groups()), "") if found else ""


def _graphs(model: ModelProto) -> list[list[NodeProto]]:
    waiting, found = [model.graph], []
    while waiting:
        graph = waiting.pop()
        found.append(list(graph.node))
        waiting += [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
    return found


def _join(*parts: str | None) -> str | None:
    return ", ".join(filter(None, parts)) or None


def _version(model: ModelProto) -> int:
    return next((e.version for e in model.opset_import if e.domain in ("", "ai.onnx")), 1)


def _dtype(elem_type: int) -> str:
    return str(TensorProto.DataType.Name(elem_type)).lower().replace("float", "float32" if elem_type == 1 else "float")


def _known(op_type: str) -> str:
    names = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    near = difflib.get_close_matches(op_type, names, 1)
    hint = f"did you mean {near[0]}? " if near and near[0] != op_type else ""
    return f"{hint}ONNX has no such op in this opset: a custom op needs a domain of its own, and a plugin with --plugin"


def _types(node: NodeProto, bare: ModelProto) -> str:
    """Which input differs, and the Cast that would mend it."""
    known = {t.name: t.data_type for t in bare.graph.initializer}
    inferred = inference.infer(bare)
    for value in (*inferred.graph.input, *inferred.graph.value_info):
        known.setdefault(value.name, value.type.tensor_type.elem_type)
    types = [(name, known[name]) for name in node.input if known.get(name)]
    if len({kind for _, kind in types}) < 2:
        return "give its inputs one type, with a Cast"
    first = types[0][1]
    wrong = [name for name, kind in types if kind != first]
    constants = {t.name for t in bare.graph.initializer}
    told = ", ".join(f"{name} is {_dtype(kind)}" for name, kind in types)
    how = "store it as" if all(name in constants for name in wrong) else "Cast it to"
    return f"{told}: {how.replace('it', ' and '.join(wrong))} {_dtype(first)}"
