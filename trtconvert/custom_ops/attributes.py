"""Attributes of a plugin node against the fields that its creator declares.

TensorRT's parser goes by the node: it drops what the creator does not declare, hands over a field's type as the attribute
has it, cuts integers to 32 bits and passes some tensors on as another type (seen in TensorRT-RTX 1.7.1), all without a word.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, helper

from trtconvert import model as onnx_model
from trtconvert.custom_ops.creators import Creator, Field
from trtconvert.diagnosis.faults import Fault
from trtconvert.errors import ConvertError

VERSION, NAMESPACE, SHAPE_INPUTS = "plugin_version", "plugin_namespace", "tensorrt_plugin_shape_input_indices"
MAPPED = "plugin"  # domain of nodes that --map gave to a creator: nothing else claims them
RESERVED = (VERSION, NAMESPACE, SHAPE_INPUTS)  # the parser reads these itself
LAUNCH, BUILD, IMAGES = (
    "trtconvert_launch",
    "trtconvert_build",
    "trtconvert_images",
)  # kernels inside the node, see carried.py
_FLOATS = ("float32", "float16", "float64", "bf16")
_INTS = {"int8": 8, "int16": 16, "int32": 32, "int64": 32}  # bits that arrive: the parser passes integers as int32
_NUMBERS = {
    AttributeProto.FLOAT: "a float",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INT: "an integer",
    AttributeProto.INTS: "integers",
}
_TEXT = {AttributeProto.STRING: "a string", AttributeProto.STRINGS: "strings"}
# What TensorRT-RTX 1.7.1 hands over as the type that it is; it calls int64, bool and uint8 float16, and halves float64.
_TENSORS: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bf16",
    onnx.TensorProto.INT32: "int32",
    onnx.TensorProto.INT8: "int8",
}


def op_title(node: NodeProto) -> str:
    """The node's op as messages and options name it: with its domain, where it has one."""
    return node.op_type if node.domain in (*onnx_model.STANDARD_DOMAINS, MAPPED) else f"{node.domain}::{node.op_type}"


def check(node: NodeProto, creator: Creator, left_out: Sequence[str] = ()) -> Iterator[Fault]:
    """Every fault of the node's attributes; what can be put right exactly is, in place: integers where floats are declared,
    whole floats where integers are, the defaults of a Python op, which makes its kernels anew. left_out: fields that may be
    missing."""
    if creator.op is not None:
        drop(node, (LAUNCH, BUILD, IMAGES))
    declared = {field.name: field for field in creator.fields}
    given = {attribute.name: attribute for attribute in node.attribute if attribute.name not in RESERVED}
    missing = [field for name, field in declared.items() if name not in given and name not in left_out]
    for name, attribute in given.items():
        if name not in declared:
            yield _unknown(node, name, creator, [field.name for field in missing])
            continue
        problem = _unfit(attribute, declared[name], exact=creator.op is not None)
        if problem:
            wanted = f"{declared[name].type}{' within 32 bits' * (declared[name].type in _INTS)}"
            fix = f"export it as {wanted}, or --set-attr {node.name}.{name}=VALUE"
            yield Fault(node.name, op_title(node), f"attribute {name!r} {problem}", fix)
    node.attribute.extend(helper.make_attribute(f.name, f.default) for f in missing if f.default is not None)
    if lacking := [field for field in missing if field.default is None]:
        flags = " ".join(f"--set-attr {node.name}.{field.name}=VALUE" for field in lacking)
        fields = ", ".join(f"{field.name} ({field.type})" for field in lacking)
        reason = f"the plugin declares {fields}, which the node lacks"
        yield Fault(node.name, op_title(node), reason, f"{flags}; an empty VALUE leaves it to the plugin")


def drop(node: NodeProto, names: Sequence[str]) -> None:
    """Remove the attributes of these names."""
    kept = [attribute for attribute in node.attribute if attribute.name not in names]
    del node.attribute[:]
    node.attribute.extend(kept)


def _unknown(node: NodeProto, name: str, creator: Creator, missing: list[str]) -> Fault:
    declared = [field.name for field in creator.fields]
    near = difflib.get_close_matches(name, missing, 1) or difflib.get_close_matches(name, declared, 1)
    drop = f"remove it (--set-attr {node.name}.{name}=)"
    return Fault(
        node.name,
        op_title(node),
        f"attribute {name!r} is not one that the plugin declares ({', '.join(declared) or 'none'})",
        f"rename it to {near[0]!r}, or {drop}" if near else f"{drop}, or declare it in the plugin",
    )


def _unfit(attribute: AttributeProto, field: Field, exact: bool) -> str | None:
    """Why the attribute cannot be this field, and None if it can, once it is of the type declared. exact: one value."""
    value = helper.get_attribute_value(attribute)
    count = len(value) if isinstance(value, Sequence) and not isinstance(value, bytes) else 1
    if attribute.type in _TEXT or field.type == "char":
        if attribute.type not in _TEXT or field.type != "char" or (exact and attribute.type == AttributeProto.STRINGS):
            return f"is {_kind(attribute)}, {field.type} is declared"
        return None
    if attribute.type == AttributeProto.TENSOR:
        return "is a tensor, one value is declared" if exact else _unfit_tensor(attribute.t, field)
    if attribute.type not in _NUMBERS:
        return f"is {_kind(attribute)}, which TensorRT passes to no plugin"
    # A declared length of 1 says little: NVIDIA's own samples declare it for lists as well.
    if count != field.length and (exact or field.length > 1):
        return f"has {count} values, {field.length} declared"
    return _convert(attribute, list(value) if isinstance(value, Sequence) else [value], field)


def _convert(attribute: AttributeProto, values: list[Any], field: Field) -> str | None:
    """Make the numbers of the field's type, in place, or say why that would change them."""
    listed = attribute.type in (AttributeProto.INTS, AttributeProto.FLOATS)
    kind = AttributeProto.FLOATS if listed else AttributeProto.FLOAT
    if field.type in _FLOATS:
        changed = [v for v in values if isinstance(v, int) and int(np.float32(v)) != v]
        if changed:
            return f"is {changed[0]}, which float32 cannot hold exactly"
        values = [float(v) for v in values]
    elif field.type in _INTS:
        kind = AttributeProto.INTS if listed else AttributeProto.INT
        broken = [v for v in values if not (math.isfinite(v) and v == int(v))]
        if broken:
            return f"is {broken[0]!r}, {field.type} is declared"
        values = [int(v) for v in values]
        bits = _INTS[field.type]
        outside = [v for v in values if not -(2 ** (bits - 1)) <= v < 2 ** (bits - 1)]
        if outside:
            how = "TensorRT passes 32-bit integers to plugins" if bits == 32 else f"{field.type} is declared"
            return f"is {outside[0]}, {how}"
    else:
        return None  # dims and unknown: the plugin sorts it out
    if attribute.type != kind:
        attribute.CopyFrom(helper.make_attribute(attribute.name, values if listed else values[0], attr_type=kind))
    return None


def _unfit_tensor(tensor: onnx.TensorProto, field: Field) -> str | None:
    passed = _TENSORS.get(tensor.data_type)
    dtype = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
    count = math.prod(tensor.dims)
    if passed is None:
        return f"is a tensor of {dtype}, which TensorRT does not pass to plugins as it is"
    if count == 0:
        return "is a tensor without values"
    if field.type not in ("unknown", "dims", passed):
        return f"is a tensor of {dtype}, {field.type} is declared"
    if field.length > 1 and count != field.length:
        return f"has {count} values, {field.length} declared"
    return None


def _kind(attribute: AttributeProto) -> str:
    named = {**_NUMBERS, **_TEXT, AttributeProto.TENSOR: "a tensor", AttributeProto.GRAPH: "a graph"}
    return named.get(attribute.type, f"of type {AttributeProto.AttributeType.Name(attribute.type)}")


def shape_inputs(node: NodeProto, creator: Creator) -> Iterator[Fault]:
    """Faults of the attribute that says which inputs of a plugin are shapes."""
    attribute = next((a for a in node.attribute if a.name == SHAPE_INPUTS), None)
    if attribute is None:
        return
    indices = list(attribute.ints)
    problem = None
    if attribute.type != AttributeProto.INTS:
        problem = f"is {_kind(attribute)}; a list of integers is expected"
    elif bad := [i for i in indices if not 0 <= i < len(node.input)]:
        problem = f"names input {bad[0]}, the node has {len(node.input)}"
    elif len(set(indices)) < len(indices):
        problem = f"names an input twice: {indices}"
    elif creator.interface == "V1":
        problem = "is for plugins of version 3, this one is of version 2"
    elif creator.op is not None:
        problem = "is for plugins that read shapes; a Python op reads tensors"
    if problem:
        yield Fault(
            node.name,
            op_title(node),
            f"{SHAPE_INPUTS} {problem}",
            "give the indices of the inputs that are shapes, or leave the attribute out",
        )


def set_value(node: NodeProto, name: str, text: str, field: Field | None) -> None:
    """Set an attribute from what the command line says, in the type that is declared; an empty text removes it."""
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if text:
        node.attribute.append(helper.make_attribute(name, _parsed(name, text, field)))


def _parsed(name: str, text: str, field: Field | None) -> Any:
    if field is not None and field.type == "char":
        return text
    read = float if field is not None and field.type in _FLOATS else int
    try:
        values = [read(part) for part in text.split(",")]
    except ValueError:
        if field is None:
            return text
        fix = f"give numbers, such as {name}=1 or {name}=1,2"
        raise ConvertError(f"--set-attr: {text!r} is no value for {name} ({field.type})", fix=fix) from None
    return values if "," in text else values[0]
