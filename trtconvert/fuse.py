"""Matches become plugin nodes that carry their own meaning as a function body; near misses come with a reason."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from onnx import ModelProto, NodeProto

from trtconvert import model as onnx_model
from trtconvert import registry
from trtconvert.bodies import Writing, is_ours, spellings_of
from trtconvert.files import check_outputs
from trtconvert.graph import GraphView, views
from trtconvert.lowering.functions import inline_local
from trtconvert.matching.accept import Refused, Site, accept
from trtconvert.matching.algebra import Reading
from trtconvert.matching.arithmetic import NO_FAILURE
from trtconvert.matching.layout import channels_last
from trtconvert.matching.match import Matcher
from trtconvert.matching.outline import Outline, needs
from trtconvert.matching.rewrite import Fusion, Rewriter
from trtconvert.op import Op
from trtconvert.pattern import Expr

Keep: TypeAlias = Callable[[tuple[str, str]], bool]
"""Whether a fusion of that `Fusion.key` may be made."""
_MAX_BETWEEN = 4  # sums and products between a near miss and one of the op's landmarks


@dataclass(frozen=True)
class NearMiss:
    """A subgraph that resembles a pattern, and the first difference. complete: it is the pattern, but must not be fused."""

    pattern: str
    node: str
    reason: str
    matched: int
    complete: bool = False


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


def fuse_model(model: ModelProto, folder: Path, ops: Sequence[type[Op]], keep: Keep = lambda _: True) -> FuseResult:
    """Fuse in place what may be kept. `folder` is where the model's external data lies.

    Local functions are opened if that lets something be fused; otherwise they stay. Where a fusion is not kept, another
    one may take part of its nodes.
    """
    opened = opened_for_fusing(model)
    result = _fuse_graphs(opened, folder, ops, keep)
    if opened is not model and result.fusions:
        model.CopyFrom(opened)
    result.model = model
    return result


def opened_for_fusing(model: ModelProto) -> ModelProto:
    """The model as the search sees it: itself, or a copy in which its local functions are opened."""
    if all(is_ours(f.domain) for f in model.functions):
        return model
    return inline_local(onnx_model.copy(model), lambda f: not is_ours(f.domain))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's cycle collector: the search makes many small tuples and no cycles, and at each of its rounds the
    collector would walk the whole graph."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_uncollected()
def _fuse_graphs(model: ModelProto, folder: Path, ops: Sequence[type[Op]], keep: Keep) -> FuseResult:
    result = FuseResult(model)
    spellings = [Spelling(op, expr, needs(expr).roots) for op in ops for expr in spellings_of(op, None)]
    writing = Writing(model)
    orphans: dict[int, set[str]] = {}  # of graphs inside, by the id of the view around them
    for view in reversed(views(model, folder)):  # a graph's nodes are written anew, with the graphs in them
        finder = _Finder(view, spellings, writing, keep)
        sites = finder.sites()
        result.near_misses += finder.near_misses(sites)
        writer = Rewriter(writing, view)
        writer.orphans |= orphans.pop(id(view), set())
        result.fusions[:0] = [writer.replace(site) for site in sites]
        if writer.orphans:
            writer.finish()
            if view.parent is not None:
                orphans.setdefault(id(view.parent), set()).update(writer.orphans)
    result.near_misses.sort(key=_distance)
    return result


def _distance(miss: NearMiss) -> tuple[bool, int]:
    return not miss.complete, -miss.matched


@dataclass(frozen=True)
class Spelling:
    """A pattern of an op, and the op types that its last node can have."""

    op: type[Op]
    expr: Expr
    roots: frozenset[str]


class _Finder:
    """Looks for the spellings in one graph."""

    def __init__(self, view: GraphView, spellings: Sequence[Spelling], writing: Writing, keep: Keep) -> None:
        self.view, self.writing, self.reading, self.keep = view, writing, Reading(view), keep
        self.outline = Outline(view)
        self.matcher = Matcher(self.reading, self.outline)
        self.refusals: list[tuple[NearMiss, frozenset[int]]] = []
        self.by_root: dict[str, list[Spelling]] = {}
        for spelling in spellings:
            for op_type in spelling.roots:
                self.by_root.setdefault(op_type, []).append(spelling)

    def sites(self) -> list[Site]:
        """Matches in graph order, no two sharing a node. The search goes backwards, so that of two matches the one that
        reaches further is found first."""
        found: list[Site] = []
        taken: set[int] = set()
        for index, node in reversed(list(enumerate(self.view.nodes))):
            if index not in taken and node.output and (site := self._site_at(node, taken)) is not None:
                found.append(self._shortest(site, taken))
                taken |= found[-1].nodes
        self.refusals.reverse()
        return sorted(found, key=lambda site: max(site.nodes))

    def _shortest(self, site: Site, taken: set[int]) -> Site:
        """Of matches of one op that end one behind the other, as where a product with 1 follows, the one that ends first."""
        refusals = list(self.refusals)
        inside = (self.view.nodes[index] for index in sorted(site.nodes))
        sites = (self._site_at(n, taken, type(site.op)) for n in inside if n.output and n.output[0] != site.output)
        shortest = next((inner for inner in sites if inner is not None), site)
        self.refusals = refusals
        return shortest

    def _site_at(self, node: NodeProto, taken: set[int], only: type[Op] | None = None) -> Site | None:
        refused: dict[type[Op], tuple[NearMiss, frozenset[int]]] = {}
        for spelling in self.by_root.get(node.op_type, ()):
            op, output = spelling.op, node.output[0]
            if only not in (None, op):
                continue
            if not self.outline.possible(spelling.expr, output):
                continue
            for match in self.matcher.find(spelling.expr, output):
                try:
                    if match.nodes & taken:
                        raise Refused("part of it belongs to another fusion")
                    site = channels_last(self.view, accept(self.view, op, match, output))
                    if not self.writing.writable(op, site.op.values()):
                        raise Refused(f"its function body cannot be written in opset {self.view.opset}")
                    if not self.keep((op.name, self.view.path + site.output)):
                        break
                    return site
                except Refused as refusal:
                    miss = NearMiss(op.pattern, self._path(node), str(refusal), len(match.nodes), complete=True)
                    refused.setdefault(op, (miss, match.nodes))
        self.refusals += reversed(refused.values())
        return None

    def _path(self, node: NodeProto) -> str:
        return self.view.path + (node.name or f"{node.op_type} that makes {node.output[0]}")

    def near_misses(self, sites: list[Site]) -> list[NearMiss]:
        """Refusals, then partial matches, nearest first; of those that share nodes with a fusion or with each other only
        the nearest."""
        covered = {index for site in sites for index in site.nodes}
        known = covered | {index for _, nodes in self.refusals for index in nodes}
        self.explainer = Matcher(self.reading, self.outline, explain=True)
        partial = [self._partial(node) for i, node in enumerate(self.view.nodes) if i not in known and node.output]
        found = [*self.refusals, *(miss for misses in partial for miss in misses)]
        kept = []
        for miss, nodes in sorted(found, key=lambda one: _distance(one[0])):
            if not nodes & covered:
                kept.append(miss)
                covered |= nodes
        return kept

    def _partial(self, node: NodeProto) -> list[tuple[NearMiss, frozenset[int]]]:
        """How far each op's best failure at this node came, where it came past one of the op's landmarks."""
        best: dict[type[Op], tuple[frozenset[int], str]] = {}
        for spelling in self.by_root.get(node.op_type, ()):
            if not self.outline.near(frozenset(spelling.op.landmarks), node.output[0], _MAX_BETWEEN):
                continue
            failure = self.explainer.failure(spelling.expr, node.output[0])
            if len(failure[0]) > len(best.get(spelling.op, NO_FAILURE)[0]):
                best[spelling.op] = failure
        return [
            (NearMiss(op.pattern, self._path(node), reason, len(nodes)), nodes)
            for op, (nodes, reason) in best.items()
            if {self.view.nodes[i].op_type for i in nodes} & set(op.landmarks)
        ]
