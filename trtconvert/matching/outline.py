"""What a pattern cannot do without: the type of its last node, and rare node types not far before it.

A cheap test before the matcher tries operands and spellings; it keeps the work in proportion to the number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from trtconvert.graph import GraphView
from trtconvert.matching.algebra import MEANS, MOVERS, PASSES, PRODUCTS, RESHAPES, SUMS
from trtconvert.pattern import (
    Call,
    Either,
    Expr,
    Given,
    Grouped,
    Mean,
    MoveAxis,
    Parts,
    Product,
    Quantized,
    Rearranged,
    Reshaped,
    Sum,
)

_ALONG = MOVERS | {"QuantizeLinear", "DequantizeLinear"}  # op types of whose inputs the first one counts
_ALGEBRA = PRODUCTS | SUMS | PASSES | _ALONG


@dataclass(frozen=True)
class Near:
    """One of these op types is the node itself, or lies before it with at most `room` sums and products of two tensors
    between."""

    kinds: frozenset[str]
    room: int = 0


@dataclass(frozen=True)
class Needs:
    """roots: op types of the last node; none: any. near: what must lie before it, the rarest first."""

    roots: frozenset[str] = frozenset()
    near: tuple[Near, ...] = ()


@lru_cache(maxsize=4096)
def needs(expr: Expr) -> Needs:
    """What the expression needs at the least."""
    if isinstance(expr, Either):
        options = [needs(option) for option in expr.options]
        alternatives = zip(*(option.near for option in options), strict=False)  # as many as each of them has
        near = tuple(Near(_union(n.kinds for n in some), max(n.room for n in some)) for some in alternatives)
        return Needs(_union(option.roots for option in options), near)
    if isinstance(expr, Given):
        return needs(expr.x)
    if isinstance(expr, Product):
        return _arithmetic(expr.factors, PRODUCTS)
    if isinstance(expr, Sum):
        return _arithmetic(expr.terms, SUMS)
    if isinstance(expr, Mean):
        return Needs(MEANS, (Near(MEANS - PRODUCTS | {"ReduceSum"}),))
    if isinstance(expr, MoveAxis):
        return Needs(frozenset(("Transpose",)), (Near(frozenset(("Transpose",))),))
    if isinstance(expr, Reshaped | Grouped):
        return Needs(RESHAPES, _rarest_first([Near(RESHAPES), *needs(expr.x).near]))
    if isinstance(expr, Rearranged):
        return Needs(MOVERS, (Near(MOVERS - PASSES),))
    kinds = frozenset((expr.op_type,)) if isinstance(expr, Call | Quantized) else frozenset[str]()
    return Needs(kinds, (Near(kinds),) if kinds else ())


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*sets)


def _arithmetic(parts: Parts, roots: frozenset[str]) -> Needs:
    """What the parts need; each further part takes one node that combines it with the others."""
    more = sum(max(1, int(abs(power))) for _, power in parts) - 1
    near = [Near(n.kinds, n.room + more) for part, _ in parts for n in needs(part).near]
    return Needs(roots, _rarest_first(near))


def _rarest_first(near: list[Near]) -> tuple[Near, ...]:
    return tuple(sorted(near, key=lambda n: len(n.kinds)))


class Outline:
    """Answers for one graph: what is necessary for a match, never what is sufficient."""

    def __init__(self, graph: GraphView) -> None:
        self._kinds: dict[str, str] = {}
        self._nodes: list[tuple[str, list[str], list[str]]] = []  # op type, inputs that are no numbers, outputs
        for node in graph.nodes:
            inputs = [name for name in node.input if graph.uniform(name) is None]
            inputs = inputs if node.op_type in _ALGEBRA or len(inputs) == 1 else []
            self._nodes.append((node.op_type, inputs[:1] if node.op_type in _ALONG else inputs, list(node.output)))
            self._kinds.update(dict.fromkeys(node.output, node.op_type))
        self._distances: dict[frozenset[str], dict[str, int]] = {}
        self._checks: dict[Expr, tuple[frozenset[str], list[tuple[dict[str, int], int]]]] = {}

    def possible(self, expr: Expr, tensor: str) -> bool:
        """Whether the node types that `expr` needs stand where they must for it to compute `tensor`."""
        if expr not in self._checks:
            wanted = needs(expr)
            roots = wanted.roots | PASSES if wanted.roots else wanted.roots
            self._checks[expr] = roots, [(self._distance(near.kinds), near.room) for near in wanted.near]
        roots, near = self._checks[expr]
        if roots and self._kinds.get(tensor) not in roots:
            return False
        for distances, room in near:  # noqa: SIM110  # the hottest lines of the search: a generator costs as much again
            if distances.get(tensor, room + 1) > room:
                return False
        return True

    def missing(self, expr: Expr, tensor: str) -> list[str]:
        """Op types of which one would have to lie before the tensor, if its last node is as `expr` needs it."""
        wanted = needs(expr)
        if wanted.roots and self._kinds.get(tensor) not in wanted.roots:
            return []
        return next((sorted(n.kinds) for n in wanted.near if not self.near(n.kinds, tensor, n.room)), [])

    def near(self, kinds: frozenset[str], tensor: str, room: int) -> bool:
        """Whether a node of these types lies before the tensor, with no more than `room` sums and products between."""
        return self._distance(kinds).get(tensor, room + 1) <= room

    def _distance(self, rare: frozenset[str]) -> dict[str, int]:
        """For each tensor behind one of these op types, how many nodes that combine two tensors lie between."""
        if rare not in self._distances:
            known = self._distances[rare] = {}
            for kind, inputs, outputs in self._nodes:
                if kind in rare:
                    known.update(dict.fromkeys(outputs, 0))
                elif inputs:
                    nearest = min((known[name] for name in inputs if name in known), default=None)
                    if nearest is not None:
                        known[outputs[0]] = nearest + len(inputs) - 1
        return self._distances[rare]
