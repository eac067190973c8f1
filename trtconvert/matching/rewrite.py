"""Puts plugin nodes in place of matches, with a function body each, and clears away what they leave unused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

from trtconvert import model as onnx_model
from trtconvert.bodies import Writing, raise_ir, retain
from trtconvert.custom_ops.wishes import default_name
from trtconvert.graph import GraphView
from trtconvert.matching.accept import Computed, Site
from trtconvert.matching.layout import to_first, to_last
from trtconvert.model import elem_type


@dataclass(frozen=True)
class Fusion:
    """A subgraph that became a plugin node.

    node: its name, after the path of the nodes that hold its graph. output: the tensor that subgraph and plugin make (the
    plugin's own may be moved by further nodes). inputs: the tensor that the subgraph read, and what else the plugin reads.
    channels_last: see accept.Site.
    """

    op: str
    node: str
    output: str
    replaced: tuple[str, ...]
    attributes: dict[str, Any]
    inputs: tuple[str, ...] = ()
    path: str = ""
    channels_last: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all others that there could be in its model: the op, and the output after its path."""
        return self.op, self.path + self.output


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
        name = onnx_model.unique(f"{base}_{site.op.name}", self.writing.nodes)
        output = onnx_model.unique(f"{site.output}_fused", self.writing.tensors) if site.match.moved else site.output
        new += self._node(site, helper.make_node(site.op.name, inputs, [output], name=name, domain=domain))
        self.inserted[last] = [*new, *self._moved(site, output)]
        for index in site.nodes:
            self.nodes[index] = None
        self.orphans |= {t for n in removed for t in (*n.input, *n.output)} - {site.output}
        path = self.view.path
        replaced = tuple(path + default_name(n) for n in removed)
        values = site.op.values()
        return Fusion(site.op.name, path + name, site.output, replaced, values, tuple(inputs), path, site.channels_last)

    def _node(self, site: Site, node: NodeProto) -> Iterator[NodeProto]:
        """The op's node with its attributes, between Transposes where its channels are to be last."""
        node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(site.op.values().items()))
        if not site.channels_last or site.rank is None:
            yield node
            return
        data, result = node.input[0], node.output[0]
        before: list[NodeProto] = []
        node.input[0] = self._insert("Transpose", [data], f"{node.name}_in", before, perm=to_last(site.rank))
        node.output[0] = onnx_model.unique(f"{result}_last", self.writing.tensors)
        name = onnx_model.unique(f"{node.name}_out_Transpose", self.writing.nodes)
        back = helper.make_node("Transpose", [node.output[0]], [result], name=name, perm=to_first(site.rank))
        yield from (*before, node, back)

    def _moved(self, site: Site, tensor: str) -> Iterator[NodeProto]:
        """The nodes that only move elements, now behind the op."""
        for index in site.match.moved:
            node = NodeProto()
            node.CopyFrom(self.view.nodes[index])
            node.input[0] = tensor
            final = index == site.match.moved[-1]
            tensor = site.output if final else onnx_model.unique(f"{node.output[0]}_fused", self.writing.tensors)
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
        unique = onnx_model.unique(source or base, self.writing.tensors)
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), unique))
        return unique

    def _shaped(self, value: Computed, dtype: str, base: str, new: list[NodeProto]) -> str:
        """A computed tensor, through Reshape and Cast where it needs them."""
        tensor = value.tensor
        if value.shape is not None:
            shape = onnx_model.unique(f"{base}_shape", self.writing.tensors)
            self.graph.initializer.append(numpy_helper.from_array(np.array(value.shape, np.int64), shape))
            tensor = self._insert("Reshape", [tensor, shape], base, new)
        if value.cast:
            tensor = self._insert("Cast", [tensor], base, new, to=elem_type(dtype))
        return tensor

    def _insert(self, op_type: str, inputs: list[str], base: str, new: list[NodeProto], **attributes: Any) -> str:
        output = onnx_model.unique(f"{base}_{op_type}", self.writing.tensors)
        name = onnx_model.unique(f"{base}_{op_type}", self.writing.nodes)
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
        retain(self.graph.initializer, lambda t: t.name in read or t.name not in self.orphans)
        made = {name for n in kept for name in n.output}
        retain(self.graph.value_info, lambda v: v.name in made or v.name not in self.orphans)
        raise_ir(self.writing.model)


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
