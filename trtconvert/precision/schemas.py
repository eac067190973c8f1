"""Which inputs and outputs of a node may change from one float type to another: what ONNX says of its op."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

import onnx
from onnx import NodeProto

from trtconvert import registry
from trtconvert.bodies import is_ours
from trtconvert.model import STANDARD_DOMAINS

# Whose results' type an attribute says, or the input's where it does not.
_TYPED_BY_ATTRIBUTE = frozenset(
    (
        *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"),
        *("EyeLike", "HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix", "BitCast"),
    )
)
RETYPED = ("Cast", "Constant", "ConstantOfShape")  # the same, but `casting` writes the attribute anew
_OF_GRAPHS = ("If", "Loop", "Scan")  # whose results' types the graphs inside say
_STAY = {"LayerNormalization": "U"}  # type variables of results that stay: mean and deviation, by stash_type


@dataclass(frozen=True)
class Flexible:
    """For each input and output of a node, whether it may have the other type."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]


def flexible(
    node: NodeProto, inputs: Sequence[str], outputs: Sequence[str], opset: int, changing: Collection[str], target: str
) -> Flexible | str:
    """What of the node may change to the target type, or the reason why nothing may.

    inputs, outputs: dtypes, "" where unknown. changing: dtypes that are to become the target.
    """
    if node.domain not in STANDARD_DOMAINS:
        return _custom(node, inputs, outputs, changing, target)
    schema = _schema(node.op_type, opset)
    if schema is None or node.op_type in _TYPED_BY_ATTRIBUTE:
        return f"{node.op_type} makes the type that it says itself" if schema else f"{node.op_type} is not ONNX's"
    if any(name and not dtype for name, dtype in zip((*node.input, *node.output), (*inputs, *outputs), strict=True)):
        return "the types of its tensors are not all known"
    given = [_variable(schema.inputs, i, schema) for i in range(len(node.input))]
    made = [_variable(schema.outputs, i, schema) for i in range(len(node.output))]
    if node.op_type == "DequantizeLinear" and not any(a.name == "output_dtype" for a in node.attribute):
        made = [given[1]]
    bound = {variable for variable, name in zip(given, node.input, strict=True) if name}
    free = [v for v, dtype in zip(made, outputs, strict=True) if dtype in changing and v not in bound]
    if node.op_type in (*RETYPED, *_OF_GRAPHS):
        bound |= {*free}
    elif any(variable != _STAY.get(node.op_type) for variable in free):
        return f"{node.op_type} makes the type that it says itself"
    allowed = {c.type_param_str for c in schema.type_constraints if _type(target) in c.allowed_type_strs}
    found = Flexible(
        tuple(v in allowed and dtype in changing for v, dtype in zip(given, inputs, strict=True)),
        tuple(v in allowed & bound and dtype in changing for v, dtype in zip(made, outputs, strict=True)),
    )
    if any((*found.inputs, *found.outputs)):
        return found
    return f"ONNX has no {node.op_type} in {target} in opset {opset}"


def _type(dtype: str) -> str:
    """ONNX's name of a float dtype."""
    return f"tensor({'float' if dtype == 'float32' else dtype})"


def opset_for(op_type: str, opset: int, target: str, newest: int) -> int:
    """The first opset, from this one on, in which the op takes the target type; this one if there is none up to the newest."""
    for version in range(opset, newest + 1):
        schema = _schema(op_type, version)
        if schema is None:
            continue
        floats = [c.allowed_type_strs for c in schema.type_constraints if "tensor(float)" in c.allowed_type_strs]
        if any(_type(target) in allowed for allowed in floats):
            return version
    return opset


@cache
def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    known = onnx.defs.has(op_type, max_inclusive_version=opset)
    return onnx.defs.get_schema(op_type, max_inclusive_version=opset) if known else None


def _variable(formals: Sequence[onnx.defs.OpSchema.FormalParameter], index: int, schema: onnx.defs.OpSchema) -> str:
    """The type variable of an input or output, "" where its type is fixed."""
    if not formals:
        return ""
    name = formals[min(index, len(formals) - 1)].type_str
    return name if any(c.type_param_str == name for c in schema.type_constraints) else ""


def _custom(
    node: NodeProto, inputs: Sequence[str], outputs: Sequence[str], changing: Collection[str], target: str
) -> Flexible | str:
    op = registry.find(node.op_type)
    if op is None or not (op.pattern or is_ours(node.domain)):
        return f"what {node.op_type} computes in {target} is not known"
    if target not in op.dtypes:
        return f"the kernel of {op.name} takes no {target}"
    return Flexible(tuple(dtype in changing for dtype in inputs), tuple(dtype in changing for dtype in outputs))
