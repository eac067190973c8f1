"""Puts plugin nodes in place of matches, with a function body each, and clears away what they leave unused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import FunctionProto, ModelProto, NodeProto, helper, numpy_helper

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert import registry
from trtconvert.accept import Computed, Site
from trtconvert.emit import Emitter, available
from trtconvert.errors import ConvertError
from trtconvert.graph import GraphView, TensorInfo
from trtconvert.model import elem_type
from trtconvert.op import Op
from trtconvert.pattern import Attr, Builder, Expr, Var

DOMAIN = "trtconvert"
_MIN_IR = 8  # the first IR version with functions in a model


@dataclass(frozen=True)
class Fusion:
    """A subgraph that became a plugin node."""

    op: str
    node: str
    output: str
    replaced: tuple[str, ...]
    attributes: dict[str, Any]


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


def _unique(name: str, taken: set[str]) -> str:
    candidate, count = name, 1
    while candidate in taken:
        candidate, count = f"{name}_{count}", count + 1
    taken.add(candidate)
    return candidate


class Rewriter:
    """Replaces sites of one graph; `finish` drops what they leave unused."""

    def __init__(self, writing: Writing, view: GraphView) -> None:
        self.writing, self.view, self.graph = writing, view, view.graph
        self.nodes: list[NodeProto | None] = list(view.nodes)
        self.inserted: dict[int, list[NodeProto]] = {}
        self.orphans: set[str] = set()  # tensors that removed nodes made or read, here or in graphs inside

    def replace(self, site: Site) -> Fusion:
        """Put the op's node where the site's last node stood."""
        last = self.view.producers[site.output]
        removed = [self.view.nodes[i] for i in sorted(site.nodes)]
        base = self.view.nodes[last].name or site.output
        new: list[NodeProto] = []
        inputs = [site.match.bound[site.op.inputs()[0]]]
        for name, value in site.parameters.items():
            inputs.append(self._parameter(value, site, name, f"{base}_{name}", new))
        domain = self.writing.body(type(site.op), site.op.values(), site.dtype, site.rank)
        name = _unique(f"{base}_{site.op.name}", self.writing.nodes)
        output = _unique(f"{site.output}_fused", self.writing.tensors) if site.match.moved else site.output
        node = helper.make_node(site.op.name, inputs, [output], name=name, domain=domain)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(site.op.values().items()))
        self.inserted[last] = [*new, node, *self._moved(site, output)]
        for index in site.nodes:
            self.nodes[index] = None
        self.orphans |= {t for n in removed for t in (*n.input, *n.output)} - {site.output}
        path = self.view.path
        replaced = tuple(path + (n.name or n.op_type) for n in removed)
        return Fusion(site.op.name, path + name, site.output, replaced, site.op.values())

    def _moved(self, site: Site, tensor: str) -> Iterator[NodeProto]:
        """The nodes that only move elements, now behind the op."""
        for index in site.match.moved:
            node = NodeProto()
            node.CopyFrom(self.view.nodes[index])
            node.input[0] = tensor
            final = index == site.match.moved[-1]
            tensor = site.output if final else _unique(f"{node.output[0]}_fused", self.writing.tensors)
            node.output[0] = tensor
            yield node

    def _parameter(self, value: NDArray[Any] | Computed, site: Site, name: str, base: str, new: list[NodeProto]) -> str:
        """The tensor's name; a constant that does not lie in the model in that form becomes an initializer."""
        source = site.match.bound.get(name)
        if isinstance(value, Computed):
            return self._shaped(value, site.dtype, base, new)
        held = None if source is None else self.view.initializer(source)
        touched = any(name in (fold.scale, fold.bias) for fold in site.match.folded)
        same = held is not None and tuple(held.dims) == value.shape and held.data_type == elem_type(value.dtype.name)
        if source and same and not touched:
            return source
        unique = _unique(source or base, self.writing.tensors)
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), unique))
        return unique

    def _shaped(self, value: Computed, dtype: str, base: str, new: list[NodeProto]) -> str:
        """A computed tensor, through Reshape and Cast where it needs them."""
        tensor = value.tensor
        if value.shape is not None:
            shape = _unique(f"{base}_shape", self.writing.tensors)
            self.graph.initializer.append(numpy_helper.from_array(np.array(value.shape, np.int64), shape))
            tensor = self._insert("Reshape", [tensor, shape], base, new)
        if value.cast:
            tensor = self._insert("Cast", [tensor], base, new, to=elem_type(dtype))
        return tensor

    def _insert(self, op_type: str, inputs: list[str], base: str, new: list[NodeProto], **attributes: Any) -> str:
        output = _unique(f"{base}_{op_type}", self.writing.tensors)
        name = _unique(f"{base}_{op_type}", self.writing.nodes)
        new.append(helper.make_node(op_type, inputs, [output], name=name, **attributes))
        return output

    def finish(self) -> None:
        """Write the node list; constants and descriptions that only the removed nodes needed go."""
        nodes: list[NodeProto] = []
        for index, node in enumerate(self.nodes):
            nodes += self.inserted.get(index, [])
            if node is not None:
                nodes.append(node)
        kept = _without_dead_constants(nodes, self.orphans, {o.name for o in self.graph.output})
        del self.graph.node[:]
        self.graph.node.extend(kept)
        read = {name for n in kept for name in (*n.input, *onnx_model.captured(n))} | {
            o.name for o in self.graph.output
        }
        read |= {i.name for i in self.graph.input}
        _retain(self.graph.initializer, lambda t: t.name in read or t.name not in self.orphans)
        made = {name for n in kept for name in n.output}
        _retain(self.graph.value_info, lambda v: v.name in made or v.name not in self.orphans)
        _raise_ir(self.writing.model)


def _retain(field: Any, keep: Any) -> None:
    kept = [item for item in field if keep(item)]
    if len(kept) != len(field):
        del field[:]
        field.extend(kept)


def _without_dead_constants(nodes: list[NodeProto], orphans: set[str], outputs: set[str]) -> list[NodeProto]:
    """Drop nodes that only computed constants for what was removed."""
    reads = Counter(name for n in nodes for name in (*n.input, *onnx_model.captured(n)))
    makers = {name: i for i, n in enumerate(nodes) for name in n.output if name}
    dead: set[int] = set()
    todo = [makers[name] for name in orphans if name in makers]
    while todo:
        index = todo.pop()
        node = nodes[index]
        if index in dead or any(reads[name] or name in outputs for name in node.output if name):
            continue
        dead.add(index)
        for name in (*node.input, *onnx_model.captured(node)):
            reads[name] -= 1
            orphans.add(name)
            if name in makers:
                todo.append(makers[name])
    return [node for index, node in enumerate(nodes) if index not in dead]


def _raise_ir(model: ModelProto) -> None:
    """Functions need IR 8. Before IR 4 every initializer is also listed as an input; from then on that would make it
    a mere default, so those entries go."""
    if model.ir_version < 4:
        weights = {t.name for t in model.graph.initializer}
        _retain(model.graph.input, lambda i: i.name not in weights)
    model.ir_version = max(model.ir_version, _MIN_IR)


def spelled(op: type[Op], values: dict[str, Any], opset: int) -> Expr | None:
    """The first of the op's patterns that has these attribute values and can be written in that opset."""
    return next((e for e in spellings_of(op, values) if available(e, opset, values)), None)


def body(op: type[Op], values: dict[str, Any], opset: int, dtype: str, rank: int | None, domain: str) -> FunctionProto:
    """The op as an ONNX function, emitted from the first of its patterns that has these attribute values.

    Like the kernels, it computes in float32 for 16-bit tensors. Float attributes stay attributes of the function, so that
    nodes which differ in them share one body.
    """
    expr = spelled(op, values, opset)
    if expr is None:
        raise ConvertError(f"no pattern of {op.name} describes {values}", where=registry.origin(op))
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    names = {name: name if wide == dtype else f"{name}_{wide}" for name in op.inputs()}
    emitter = Emitter(opset, elem_type(wide), rank, values, names)
    casts = [
        helper.make_node("Cast", [k], [v], name=f"{k}_Cast", to=elem_type(wide)) for k, v in names.items() if k != v
    ]
    emitter.emit(expr, "y" if wide == dtype else f"y_{wide}")
    if wide != dtype:
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
        _retain(node.attribute, lambda a, op=op: a.name in op.attributes())
        node.domain = writing.body(op, values, info.dtype or "float32", len(info.shape) if info.shape else None)
        missing = {k: v for k, v in values.items() if k not in own}
        node.attribute.extend(helper.make_attribute(k, v) for k, v in missing.items())
        _raise_ir(model)
