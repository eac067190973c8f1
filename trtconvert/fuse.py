"""Matches become plugin nodes that carry their own meaning as a function body; near misses come with a reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import FunctionProto, ModelProto, NodeProto, helper, numpy_helper

from trtconvert import model as onnx_model
from trtconvert import registry
from trtconvert.errors import ConvertError
from trtconvert.files import check_writable
from trtconvert.launch import Dim, Size, Tensor
from trtconvert.model import GraphView, elem_type, numpy_dtype
from trtconvert.op import Op
from trtconvert.pattern import Attr, Builder, Emitter, Match, Matcher, Pattern, Var, available, roots

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
class NearMiss:
    """A subgraph that resembles a pattern, and the first difference."""

    pattern: str
    node: str
    reason: str
    matched: int
    nodes: frozenset[int] = field(default=frozenset(), compare=False, repr=False)


@dataclass
class FuseResult:
    """The fused model, what was fused and what nearly was. `path` is where it was written, if anywhere."""

    model: ModelProto
    fusions: list[Fusion] = field(default_factory=list)
    near_misses: list[NearMiss] = field(default_factory=list)
    path: Path | None = None


def fuse(model: str | Path, patterns: Sequence[str] = (), output: str | Path | None = None) -> FuseResult:
    """Replace every match of the patterns by its plugin node and write the model to `output`.

    patterns: names as `trtconvert fuse --pattern list` prints them; none given means all but the opt-in ones.
    The result is a valid ONNX model that runs anywhere: each plugin node has a function body of standard ops.
    Raises ConvertError when the file is not a valid model, a pattern is unknown or the output cannot be written.
    """
    source = Path(model)
    ops = registry.by_pattern(tuple(patterns))
    if output is not None:
        check_writable(Path(output))
    proto = onnx_model.load(source)
    onnx_model.check(proto, source)
    result = fuse_model(proto, source.parent, ops)
    if output is not None:
        result.path = Path(output)
        if result.fusions:
            onnx_model.check(proto)
        onnx_model.save(proto, result.path, source)
    return result


def fuse_model(model: ModelProto, folder: Path, ops: Sequence[type[Op]]) -> FuseResult:
    """Fuse in place. `folder` is where the model's external data lies."""
    result = FuseResult(model)
    spellings = [(op, pattern, roots(pattern.expr)) for op in ops for pattern in _patterns(op, None)]
    for view in onnx_model.views(model, folder):
        finder = _Finder(view, spellings)
        sites = finder.sites()
        result.near_misses += finder.near_misses(sites)
        if sites:
            writer = _Writer(model, view)
            result.fusions += [writer.replace(site) for site in sites]
            writer.finish()
    result.near_misses.sort(key=lambda miss: -miss.matched)
    return result


def _patterns(op: type[Op], values: dict[str, Any] | None) -> Iterator[Pattern]:
    """The op's spellings; attributes are symbols to capture (values None) or known."""
    symbolic = op.__new__(op)
    for name in op.attributes():
        setattr(symbolic, name, Attr(name, None if values is None else values[name]))
    for spelling in symbolic.patterns(Builder(), *(Var(name) for name in op.inputs())):
        yield spelling if isinstance(spelling, Pattern) else Pattern(spelling)


# --- finding -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Site:
    op: Op
    pattern: Pattern
    match: Match
    output: str
    dtype: str
    rank: int | None
    parameters: dict[str, NDArray[Any] | str]  # per-channel inputs: a constant [C], or the tensor's name as it is


class _Refused(Exception):
    """A full match that must not be fused, with the reason."""


class _Finder:
    def __init__(self, view: GraphView, spellings: list[tuple[type[Op], Pattern, frozenset[str]]]) -> None:
        self.view, self.spellings = view, spellings
        self.refusals: list[NearMiss] = []

    def sites(self) -> list[_Site]:
        """Matches in graph order, no two sharing a node."""
        found: list[_Site] = []
        taken: set[int] = set()
        for index, node in enumerate(self.view.graph.node):
            if index in taken or node.domain not in onnx_model.STANDARD_DOMAINS or not node.output:
                continue
            site = self._site_at(node, taken)
            if site is not None:
                found.append(site)
                taken |= site.match.nodes
        return found

    def _site_at(self, node: NodeProto, taken: set[int]) -> _Site | None:
        best: dict[type[Op], tuple[frozenset[int], str]] = {}
        refused: dict[type[Op], NearMiss] = {}
        for op, pattern, root_types in self.spellings:
            if node.op_type not in root_types:
                continue
            matcher = Matcher(self.view)
            for match in matcher.find(pattern.expr, node.output[0]):
                try:
                    return self._accept(op, pattern, match, node.output[0], taken)
                except _Refused as refusal:
                    miss = NearMiss(op.pattern, self._path(node), str(refusal), len(match.nodes) + 1, match.nodes)
                    refused.setdefault(op, miss)
            if len(matcher.furthest[0]) > len(best.get(op, (frozenset(), ""))[0]):
                best[op] = matcher.furthest
        self.refusals += refused.values()
        for op, (nodes, reason) in best.items():
            seen = {self.view.graph.node[i].op_type for i in nodes}
            if op not in refused and reason and seen & set(op.landmarks):
                self.refusals.append(NearMiss(op.pattern, self._path(node), reason, len(nodes), nodes))
        return None

    def _path(self, node: NodeProto) -> str:
        return self.view.path + (node.name or f"{node.op_type} that makes {node.output[0]}")

    def near_misses(self, sites: list[_Site]) -> list[NearMiss]:
        """Refusals, nearest first; of those that share nodes with a fusion or with each other only the nearest."""
        covered = {index for site in sites for index in site.match.nodes}
        kept = []
        for miss in sorted(self.refusals, key=lambda miss: -miss.matched):
            if not miss.nodes & covered:
                kept.append(miss)
                covered |= miss.nodes
        return kept

    def _accept(self, op: type[Op], pattern: Pattern, match: Match, output: str, taken: set[int]) -> _Site:
        """The site, or _Refused: shared interiors, overlaps, inputs that the op does not take."""
        if match.nodes & taken:
            raise _Refused("part of it belongs to another fusion")
        self._check_interior(match, output)
        attributes = {**op().values(), **match.attributes, **pattern.attributes}
        instance = op(**attributes)
        data = match.bound[op.inputs()[0]]
        info, result = self.view.info(data), self.view.info(output)
        if info.dtype not in op.dtypes:
            raise _Refused(f"the dtype of {data} is {info.dtype or 'unknown'}; the kernel takes {', '.join(op.dtypes)}")
        rank = len(info.shape) if info.shape is not None else None
        if rank is None and (len(op.inputs()) > 1 or pattern.attributes.get("axis", -1) != -1):
            rank = len(result.shape) if result.shape is not None else None
            if rank is None:
                raise _Refused(f"the rank of {data} is unknown")
        parameters = {name: self._parameter(name, match, rank or 0, info) for name in op.inputs()[1:]}
        for name, parameter in list(parameters.items()):
            if parameter is None:
                parameters[name] = self._default(op, name, match, parameters, info)
        reason = instance.accepts(*self._symbols(op, data, rank or 0, parameters))
        if reason is not None:
            raise _Refused(reason)
        known = {name: value for name, value in parameters.items() if value is not None}
        return _Site(instance, pattern, match, output, info.dtype, rank, known)

    def _check_interior(self, match: Match, output: str) -> None:
        """Whatever is made inside, but for the result, must be read inside only."""
        for index in match.nodes:
            for tensor in self.view.graph.node[index].output:
                if not tensor or tensor == output:
                    continue
                if tensor in self.view.outputs:
                    raise _Refused(f"{tensor} inside it is an output of the graph")
                outside = [i for i in self.view.consumers.get(tensor, []) if i not in match.nodes]
                if outside:
                    node = self.view.graph.node[outside[0]]
                    raise _Refused(f"{tensor} inside it is also read by {node.name or node.op_type}")

    def _parameter(self, name: str, match: Match, rank: int, data: onnx_model.TensorInfo) -> NDArray[Any] | str | None:
        """A per-channel input as the op wants it, [C]: a constant, or a tensor that has that shape already."""
        if name not in match.bound:
            return None
        tensor, axis = match.bound[name], match.channel_axis.get(name, -1)
        value = self.view.constant(tensor)
        shape = self.view.info(tensor).shape if value is None else value.shape
        if shape is None:
            raise _Refused(f"the shape of {tensor} ({name}) is unknown")
        trailing = 0 if axis == -1 else rank - 1 - axis
        position = len(shape) - 1 - trailing
        if len(shape) > rank or any(d != 1 for i, d in enumerate(shape) if i != position):
            raise _Refused(f"{tensor} ({name}) has shape {list(shape)}, which is not one value a channel")
        if value is not None and value.size > 1:
            return value.reshape(-1)
        if value is not None:
            channels = self._channels(match, data)
            return np.full(channels, value.reshape(-1)[0], value.dtype)
        if len(shape) != 1 or shape[0] == 1 or not isinstance(shape[0], int):
            raise _Refused(f"{tensor} ({name}) is not a constant and has shape {list(shape)}, not [C]")
        return tensor

    def _channels(self, match: Match, data: onnx_model.TensorInfo) -> int:
        """C, from the data's shape or from any per-channel input."""
        for name, axis in match.channel_axis.items():
            if data.shape is not None and isinstance(size := data.shape[axis], int):
                return size
            value = self.view.constant(match.bound[name])
            if value is not None and value.size > 1:
                return int(value.size)
        if data.shape is not None and isinstance(size := data.shape[-1], int):
            return size
        raise _Refused("the number of channels is unknown")

    def _default(
        self, op: type[Op], name: str, match: Match, others: dict[str, Any], data: onnx_model.TensorInfo
    ) -> NDArray[Any]:
        if name not in op.defaults:
            raise _Refused(f"its input {name} is missing")
        channels = next((v.size for v in others.values() if isinstance(v, np.ndarray)), 0) or self._channels(
            match, data
        )
        return np.full(channels, op.defaults[name], numpy_dtype(data.dtype))

    def _symbols(self, op: type[Op], data: str, rank: int, parameters: dict[str, Any]) -> list[Tensor]:
        """The op's inputs as `accepts` sees them; where the data's channel count is unknown it stays a Dim."""
        info = self.view.info(data)
        shape: tuple[int | str | None, ...] = info.shape if info.shape is not None else (None,) * rank
        tensors = [Tensor(info.dtype, _sizes(0, shape), "in 0")]
        for i, name in enumerate(op.inputs()[1:], start=1):
            value = parameters[name]
            if isinstance(value, np.ndarray):
                tensors.append(Tensor(value.dtype.name, tuple(value.shape), f"in {i}"))
            else:
                other = self.view.info(value)
                tensors.append(Tensor(other.dtype, _sizes(i, other.shape or ()), f"in {i}"))
        return tensors


def _sizes(tensor: int, shape: Sequence[int | str | None]) -> tuple[Size, ...]:
    return tuple(d if isinstance(d, int) else Dim.of_input(tensor, axis) for axis, d in enumerate(shape))


# --- writing -------------------------------------------------------------------------------------------------------


class _Writer:
    """Replaces sites of one graph; `finish` drops what they leave unused."""

    def __init__(self, model: ModelProto, view: GraphView) -> None:
        self.model, self.view, self.graph = model, view, view.graph
        self.nodes: list[NodeProto | None] = list(view.graph.node)
        self.inserted: dict[int, list[NodeProto]] = {}
        self.orphans: set[str] = set()  # tensors that the removed nodes made or read
        self.names = {n.name for g in onnx_model.all_graphs(model.graph) for n in g.node}
        self.tensors = _tensor_names(model)

    def replace(self, site: _Site) -> Fusion:
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
        node = helper.make_node(
            site.op.name, inputs, [output], name=name, domain=body_domain, **dict(sorted(site.op.values().items()))
        )
        self.inserted[last] = [node, *self._after(site, output)]
        for index in site.match.nodes:
            self.nodes[index] = None
        self.orphans |= {t for n in removed for t in (*n.input, *n.output)}
        path = self.view.path
        replaced = tuple(path + (n.name or n.op_type) for n in removed)
        return Fusion(site.op.name, path + name, site.output, replaced, site.op.values())

    def _after(self, site: _Site, fused: str) -> list[NodeProto]:
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


# --- function bodies -----------------------------------------------------------------------------------------------


def body(op: type[Op], values: dict[str, Any], opset: int, dtype: str, rank: int | None, domain: str) -> FunctionProto:
    """The op as an ONNX function, emitted from the first of its patterns that has these attribute values.

    Float attributes stay attributes of the function, so that nodes which differ in them share one body.
    """
    for pattern in _patterns(op, values):
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


def add_bodies(model: ModelProto, folder: Path) -> list[str]:
    """Give every custom node that a registered op implements a function body, so that onnxruntime can run it.

    Returns the names of the nodes it did so for.
    """
    defined = {(f.domain, f.name) for f in model.functions}
    nodes = [n for n in onnx_model.all_nodes(model) if n.domain not in onnx_model.STANDARD_DOMAINS]
    done = []
    for node in nodes:
        op = registry.find(node.op_type)
        if op is None or (node.domain, node.op_type) in defined or not op.pattern:
            continue
        info = onnx_model.views(model, folder)[0].info(node.input[0])
        own = {k: v for k, v in onnx_model.attribute_values(node).items() if k in op.attributes()}
        values = op().values() | own
        _retain(node.attribute, lambda a, op=op: a.name in op.attributes())
        node.domain = _add_body(model, op, values, info.dtype or "float32", len(info.shape) if info.shape else None)
        missing = {k: v for k, v in values.items() if k not in own}
        node.attribute.extend(helper.make_attribute(k, v) for k, v in missing.items())
        done.append(node.name or node.op_type)
    if done:
        _raise_ir(model)
    return done
