"""Function bodies: what a plugin node means, written as standard ops, so that the model runs anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from onnx import FunctionProto, ModelProto, helper

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert import registry
from trtconvert.errors import ConvertError
from trtconvert.graph import TensorInfo
from trtconvert.matching.emit import Emitter, available, quantizes
from trtconvert.model import elem_type
from trtconvert.op import Op
from trtconvert.pattern import Attr, Builder, Expr, Var

DOMAIN = "trtconvert"
_MIN_IR = 8  # the first IR version with functions in a model
_NARROW = ("float16", "bfloat16", "int8")


def spellings_of(op: type[Op], values: dict[str, Any] | None) -> Iterator[Expr]:
    """The op's spellings; attributes are symbols to capture (values None) or known."""
    symbolic = op.__new__(op)
    for name in op.attributes():
        setattr(symbolic, name, Attr(name, None if values is None else values[name]))
    yield from symbolic.patterns(Builder(), *(Var(name) for name in op.inputs()))


class Writing:
    """A model being written: the names it has, and the bodies of its plugin nodes."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self._domains: dict[tuple[Any, ...], str] = {}
        self._writable: dict[tuple[Any, ...], bool] = {}

    @cached_property
    def nodes(self) -> set[str]:
        """Names of nodes."""
        return {n.name for n in onnx_model.all_nodes(self.model)}

    @cached_property
    def tensors(self) -> set[str]:
        """Names of tensors."""
        names: set[str] = set()
        for graph in onnx_model.all_graphs(self.model.graph):
            names |= {i.name for i in graph.input} | {t.name for t in graph.initializer}
            names |= {name for node in graph.node for name in (*node.input, *node.output)}
        return names

    def writable(self, op: type[Op], values: dict[str, Any]) -> bool:
        """Whether the op with these attributes can be written in the model's opset."""
        key = (op, tuple(sorted(values.items())))
        if key not in self._writable:
            self._writable[key] = spelled(op, values, onnx_model.opset(self.model)) is not None
        return self._writable[key]

    def body(self, op: type[Op], values: dict[str, Any], dtype: str, rank: int | None) -> str:
        """Make sure that the model holds the op's body; returns the domain under which it stands."""
        key = (op, tuple(sorted(values.items())), dtype, rank)
        if key not in self._domains:
            self._domains[key] = _add_body(self.model, op, values, dtype, rank)
        return self._domains[key]


def retain(field: Any, keep: Any) -> None:
    """Keep those items of a repeated field."""
    kept = [item for item in field if keep(item)]
    if len(kept) != len(field):
        del field[:]
        field.extend(kept)


def raise_ir(model: ModelProto) -> None:
    """Functions need IR 8. Before IR 4 every initializer is also listed as an input; from then on that would make it
    a mere default, so those entries go."""
    if model.ir_version < 4:
        weights = {t.name for t in model.graph.initializer}
        retain(model.graph.input, lambda i: i.name not in weights)
    model.ir_version = max(model.ir_version, _MIN_IR)


def spelled(op: type[Op], values: dict[str, Any], opset: int) -> Expr | None:
    """The first of the op's patterns that has these attribute values and can be written in that opset."""
    return next((e for e in spellings_of(op, values) if available(e, opset, values)), None)


def body(op: type[Op], values: dict[str, Any], opset: int, dtype: str, rank: int | None, domain: str) -> FunctionProto:
    """The op as an ONNX function, emitted from the first of its patterns that has these attribute values.

    Like the kernels, it computes in float32 for 16-bit and int8 tensors; QuantizeLinear takes nothing wider. Float
    attributes stay attributes of the function, so that nodes which differ in them share one body.
    """
    expr = spelled(op, values, opset)
    if expr is None:
        raise ConvertError(f"no pattern of {op.name} describes {values}", where=registry.origin(op))
    wide = "float32" if dtype in _NARROW or quantizes(expr) else dtype
    cast = wide != dtype != "int8"  # what is int8 is dequantized instead
    names = {name: f"{name}_{wide}" if cast else name for name in op.inputs()}
    emitter = Emitter(opset, elem_type(wide), rank, values, names)
    casts = [
        helper.make_node("Cast", [k], [v], name=f"{k}_Cast", to=elem_type(wide)) for k, v in names.items() if k != v
    ]
    back = cast and not quantizes(expr)
    emitter.emit(expr, f"y_{wide}" if back else "y")
    if back:
        emitter.nodes.append(helper.make_node("Cast", [f"y_{wide}"], ["y"], name="y_Cast", to=elem_type(dtype)))
    imports = [helper.make_opsetid("", opset)]
    return helper.make_function(
        domain, op.name, list(op.inputs()), ["y"], [*casts, *emitter.nodes], imports, sorted(values)
    )


def _add_body(model: ModelProto, op: type[Op], values: dict[str, Any], dtype: str, rank: int | None) -> str:
    """Make sure that the model holds the body; returns the domain under which it stands.

    ONNX knows one body per domain and name. A model that needs the op with several bodies (axis 1 and -1, say) gets the
    second one under `trtconvert.2`, and so on; the op type, which is the plugin's name, never changes.
    """
    opset = onnx_model.opset(model)
    number = 1
    while True:
        domain = DOMAIN if number == 1 else f"{DOMAIN}.{number}"
        wanted = body(op, values, opset, dtype, rank, domain)
        present = next((f for f in model.functions if (f.domain, f.name) == (domain, op.name)), None)
        if present is None:
            model.functions.append(wanted)
        if present is None or present == wanted:
            if domain not in {entry.domain for entry in model.opset_import}:
                model.opset_import.append(helper.make_opsetid(domain, 1))
            return domain
        number += 1


def is_ours(domain: str) -> bool:
    """Whether `_add_body` gives out this domain."""
    return domain == DOMAIN or domain.startswith(f"{DOMAIN}.")


def _known(model: ModelProto) -> dict[str, TensorInfo]:
    return {name: info for graph in onnx_graph.infer(model).values() for name, info in graph.items()}


def add_bodies(model: ModelProto) -> None:
    """Give every custom node that a registered op implements a function body, so that onnxruntime can run it."""
    infos: dict[str, TensorInfo] = {}
    writing = Writing(model)
    defined = {(f.domain, f.name) for f in model.functions}
    nodes = [n for n in onnx_model.all_nodes(model) if n.domain not in onnx_model.STANDARD_DOMAINS]
    for node in nodes:
        op = registry.find(node.op_type)
        if op is None or (node.domain, node.op_type) in defined or not op.pattern:
            continue
        if node.input[0] not in infos:  # behind a node that has just got its body
            infos = _known(model)
        info = infos.get(node.input[0], TensorInfo("", None))
        own = {k: v for k, v in onnx_model.attribute_values(node).items() if k in op.attributes()}
        values = op().values() | own
        retain(node.attribute, lambda a, op=op: a.name in op.attributes())
        node.domain = writing.body(op, values, info.dtype or "float32", len(info.shape) if info.shape else None)
        missing = {k: v for k, v in values.items() if k not in own}
        node.attribute.extend(helper.make_attribute(k, v) for k, v in missing.items())
        raise_ir(model)
