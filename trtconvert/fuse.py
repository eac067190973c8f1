"""Matches become plugin nodes that carry their own meaning as a function body; near misses come with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto

from trtconvert import model as onnx_model
from trtconvert import registry
from trtconvert.files import check_outputs
from trtconvert.graph import GraphView, TensorInfo, views
from trtconvert.launch import Dim, Size, Tensor
from trtconvert.match import Match, Matcher, roots
from trtconvert.model import numpy_dtype
from trtconvert.op import Op
from trtconvert.pattern import Pattern
from trtconvert.rewrite import Fusion, Rewriter, Site, spellings_of


@dataclass(frozen=True)
class NearMiss:
    """A subgraph that resembles a pattern, and the first difference."""

    pattern: str
    node: str
    reason: str
    matched: int


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
    proto = onnx_model.load(source)
    if output is not None:
        check_outputs([Path(output)], [source, *onnx_model.data_files(proto, source.parent)])
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
    spellings = [(op, pattern, roots(pattern.expr)) for op in ops for pattern in spellings_of(op, None)]
    for view in views(model, folder):
        finder = _Finder(view, spellings)
        sites = finder.sites()
        result.near_misses += finder.near_misses(sites)
        if sites:
            writer = Rewriter(model, view)
            result.fusions += [writer.replace(site) for site in sites]
            writer.finish()
    result.near_misses.sort(key=lambda miss: -miss.matched)
    return result


class _Refused(Exception):
    """A full match that must not be fused, with the reason."""


class _Finder:
    def __init__(self, view: GraphView, spellings: list[tuple[type[Op], Pattern, frozenset[str]]]) -> None:
        self.view, self.spellings = view, spellings
        self.refusals: list[tuple[NearMiss, frozenset[int]]] = []

    def sites(self) -> list[Site]:
        """Matches in graph order, no two sharing a node."""
        found: list[Site] = []
        taken: set[int] = set()
        for index, node in enumerate(self.view.graph.node):
            if index in taken or node.domain not in onnx_model.STANDARD_DOMAINS or not node.output:
                continue
            site = self._site_at(node, taken)
            if site is not None:
                found.append(site)
                taken |= site.match.nodes
        return found

    def _site_at(self, node: NodeProto, taken: set[int]) -> Site | None:
        best: dict[type[Op], tuple[frozenset[int], str]] = {}
        refused: dict[type[Op], tuple[NearMiss, frozenset[int]]] = {}
        for op, pattern, root_types in self.spellings:
            if node.op_type not in root_types:
                continue
            matcher = Matcher(self.view)
            for match in matcher.find(pattern.expr, node.output[0]):
                try:
                    return self._accept(op, pattern, match, node.output[0], taken)
                except _Refused as refusal:
                    miss = NearMiss(op.pattern, self._path(node), str(refusal), len(match.nodes) + 1)
                    refused.setdefault(op, (miss, match.nodes))
            if len(matcher.furthest[0]) > len(best.get(op, (frozenset(), ""))[0]):
                best[op] = matcher.furthest
        self.refusals += refused.values()
        for op, (nodes, reason) in best.items():
            seen = {self.view.graph.node[i].op_type for i in nodes}
            if op not in refused and reason and seen & set(op.landmarks):
                self.refusals.append((NearMiss(op.pattern, self._path(node), reason, len(nodes)), nodes))
        return None

    def _path(self, node: NodeProto) -> str:
        return self.view.path + (node.name or f"{node.op_type} that makes {node.output[0]}")

    def near_misses(self, sites: list[Site]) -> list[NearMiss]:
        """Refusals, nearest first; of those that share nodes with a fusion or with each other only the nearest."""
        covered = {index for site in sites for index in site.match.nodes}
        kept = []
        for miss, nodes in sorted(self.refusals, key=lambda refusal: -refusal[0].matched):
            if not nodes & covered:
                kept.append(miss)
                covered |= nodes
        return kept

    def _accept(self, op: type[Op], pattern: Pattern, match: Match, output: str, taken: set[int]) -> Site:
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
        axis = int(attributes.get("axis", -1))
        parameters = {name: self._parameter(op, name, match, rank or 0, info, axis) for name in op.inputs()[1:]}
        reason = instance.accepts(*self._symbols(op, data, rank or 0, parameters))
        if reason is not None:
            raise _Refused(reason)
        return Site(instance, pattern, match, output, info.dtype, rank, parameters)

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

    def _parameter(
        self, op: type[Op], name: str, match: Match, rank: int, data: TensorInfo, axis: int
    ) -> NDArray[Any] | str:
        """A per-channel input as the op wants it, [C]: a constant, or a tensor that has that shape already. axis: where
        the op's data has its channels."""
        if name not in match.bound:
            if name not in op.defaults:
                raise _Refused(f"its input {name} is missing")
            return np.full(self._channels(match, data, axis), op.defaults[name], numpy_dtype(data.dtype))
        tensor, seen_axis = match.bound[name], match.channel_axis.get(name, -1)
        value = self.view.constant(tensor)
        shape = self.view.info(tensor).shape if value is None else value.shape
        if shape is None:
            raise _Refused(f"the shape of {tensor} ({name}) is unknown")
        trailing = 0 if seen_axis == -1 else rank - 1 - seen_axis
        position = len(shape) - 1 - trailing
        if len(shape) > rank or any(d != 1 for i, d in enumerate(shape) if i != position):
            raise _Refused(f"{tensor} ({name}) has shape {list(shape)}, which is not one value a channel")
        if value is not None and value.size > 1:
            return value.reshape(-1)
        if value is not None:
            return np.full(self._channels(match, data, axis), value.reshape(-1)[0], value.dtype)
        if len(shape) != 1 or shape[0] == 1 or not isinstance(shape[0], int):
            raise _Refused(f"{tensor} ({name}) is not a constant and has shape {list(shape)}, not [C]")
        return tensor

    def _channels(self, match: Match, data: TensorInfo, axis: int) -> int:
        """C, from the data's shape or from any per-channel constant."""
        if data.shape is not None and isinstance(size := data.shape[axis], int):
            return size
        constants = (self.view.constant(match.bound[name]) for name in match.channel_axis)
        size = next((value.size for value in constants if value is not None and value.size > 1), None)
        if size is None:
            raise _Refused("the number of channels is unknown")
        return int(size)

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
