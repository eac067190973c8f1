"""Puts plugin nodes in place of matches, with a function body each, and clears away what they leave unused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import FunctionProto, ModelProto, NodeProto, helper, numpy_helper

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert import registry
from trtconvert.emit import Emitter, available
from trtconvert.errors import ConvertError
from trtconvert.graph import GraphView, TensorInfo
from trtconvert.match import Match
from trtconvert.model import elem_type
from trtconvert.op import Op
from trtconvert.pattern import Attr, Builder, Pattern, Var

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


@dataclass(frozen=True)
class Site:
    """A match that is to be fused. parameters: the op's further inputs, a constant [C] or a tensor's name."""

    op: Op
    pattern: Pattern
    match: Match
    output: str
    dtype: str
    rank: int | None
    parameters: dict[str, NDArray[Any] | str]


def spellings_of(op: type[Op], values: dict[str, Any] | None) -> Iterator[Pattern]:
    """The op's spellings; attributes are symbols to capture (values None) or known."""
    symbolic = op.__new__(op)
    for name in op.attributes():
        setattr(symbolic, name, Attr(name, None if values is None else values[name]))
    for spelling in symbolic.patterns(Builder(), *(Var(name) for name in op.inputs())):
        yield spelling if isinstance(spelling, Pattern) else Pattern(spelling)


class Rewriter:
    """Replaces sites of one graph; `finish` drops what they leave unused."""

    def __init__(self, model: ModelProto, view: GraphView) -> None:
        self.model, self.view, self.graph = model, view, view.graph
        self.nodes: list[NodeProto | None] = list(view.graph.node)
        self.inserted: dict[int, list[NodeProto]] = {}
        self.orphans: set[str] = set()  # tensors that the removed nodes made or read
        self.names = {n.name for g in onnx_model.all_graphs(model.graph) for n in g.node}
        self.tensors = _tensor_names(model)

    def replace(self, site: Site) -> Fusion:
        """Put the op's node where the site's last node stood."""
        last = self.view.producers[site.output]
        removed = [self.graph.node[i] for i in sorted(site.match.nodes)]
        base = self.graph.node[last].name or site.output
        inputs = [site.match.bound[site.op.inputs()[0]]]
        for name in site.op.inputs()[1:]:
            inputs.append(self._parameter(site.parameters[name], site.match.bound.get(name), f"{base}_{name}"))
        body_domain = _add_body(self.model, type(site.op), site.op.values(), site.dtype, site.rank)
        name = self._unique(f"{base}_{site.op.name}", self.names)
        output = site.output if site.pattern.after is None else self._unique(f"{site.output}_fused", self.tensors)
        node = helper.make_node(site.op.name, inputs, [output], name=name, domain=body_domain)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(site.op.values().items()))
        self.inserted[last] = [node, *self._after(site, output)]
        for index in site.match.nodes:
            self.nodes[index] = None
        self.orphans |= {t for n in removed for t in (*n.input, *n.output)}
        path = self.view.path
        replaced = tuple(path + (n.name or n.op_type) for n in removed)
        return Fusion(site.op.name, path + name, site.output, replaced, site.op.values())

    def _after(self, site: Site, fused: str) -> list[NodeProto]:
        if site.pattern.after is None:
            return []
        emitter = Emitter(self.view.opset, elem_type(site.dtype), site.rank, prefix=f"{site.output}_after_")
        emitter.emit(site.pattern.after(Builder(), Var(fused), site.match.captures), site.output)
        return emitter.nodes

    def _parameter(self, value: NDArray[Any] | str, source: str | None, base: str) -> str:
        """The tensor's name; a constant that does not lie in the model in that shape becomes an initializer."""
        if isinstance(value, str):
            return value
        if source is not None and source in self.view.initializers and self.view.info(source).shape == value.shape:
            return source
        name = self._unique(source or base, self.tensors)
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    @staticmethod
    def _unique(name: str, taken: set[str]) -> str:
        candidate, count = name, 1
        while candidate in taken:
            candidate, count = f"{name}_{count}", count + 1
        taken.add(candidate)
        return candidate

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
        _raise_ir(self.model)


def _retain(field: Any, keep: Any) -> None:
    kept = [item for item in field if keep(item)]
    if len(kept) != len(field):
        del field[:]
        field.extend(kept)


def _without_dead_constants(nodes: list[NodeProto], orphans: set[str], outputs: set[str]) -> list[NodeProto]:
    """Drop nodes that only computed constants for what was removed."""
    while True:
        read = {name for n in nodes for name in (*n.input, *onnx_model.captured(n))} | outputs
        dead = [n for n in nodes if any(o in orphans for o in n.output) and not any(o in read for o in n.output)]
        if not dead:
            return nodes
        orphans |= {name for n in dead for name in n.input}
        nodes = [n for n in nodes if n not in dead]


def _tensor_names(model: ModelProto) -> set[str]:
    names: set[str] = set()
    for graph in onnx_model.all_graphs(model.graph):
        names |= {i.name for i in graph.input} | {t.name for t in graph.initializer}
        names |= {name for node in graph.node for name in (*node.input, *node.output)}
    return names


def _raise_ir(model: ModelProto) -> None:
    """Functions need IR 8. Before IR 4 every initializer is also listed as an input; from then on that would make it
    a mere default, so those entries go."""
    if model.ir_version < 4:
        weights = {t.name for t in model.graph.initializer}
        _retain(model.graph.input, lambda i: i.name not in weights)
    model.ir_version = max(model.ir_version, _MIN_IR)


def body(op: type[Op], values: dict[str, Any], opset: int, dtype: str, rank: int | None, domain: str) -> FunctionProto:
    """The op as an ONNX function, emitted from the first of its patterns that has these attribute values.

    Float attributes stay attributes of the function, so that nodes which differ in them share one body.
    """
    for pattern in spellings_of(op, values):
        fixed = all(values[name] == value for name, value in pattern.attributes.items())
        if not fixed or pattern.after is not None or not available(pattern.expr, opset):
            continue
        emitter = Emitter(opset, elem_type(dtype), rank, by_reference=True)
        emitter.emit(pattern.expr, "y")
        return helper.make_function(
            domain, op.name, list(op.inputs()), ["y"], emitter.nodes, [helper.make_opsetid("", opset)], sorted(values)
        )
    raise ConvertError(f"no pattern of {op.name} describes {values}", where=registry.origin(op))


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
        node.domain = _add_body(model, op, values, info.dtype or "float32", len(info.shape) if info.shape else None)
        missing = {k: v for k, v in values.items() if k not in own}
        node.attribute.extend(helper.make_attribute(k, v) for k, v in missing.items())
        _raise_ir(model)
