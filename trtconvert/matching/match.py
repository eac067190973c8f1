"""Finds patterns in a graph: backtracking over spellings, operand orders and the trees of sums and products."""

from __future__ import annotations

import itertools

from trtconvert.matching.algebra import Reading
from trtconvert.matching.arithmetic import NO_FAILURE, Failure, Match, States, Unlike, close, join
from trtconvert.matching.nodes import NodeMatcher
from trtconvert.matching.outline import Outline
from trtconvert.pattern import (
    Anything,
    Attr,
    Call,
    Either,
    Expr,
    Folded,
    Given,
    Grouped,
    Mean,
    MoveAxis,
    Number,
    PerChannel,
    Product,
    Quantized,
    Rearranged,
    Reshaped,
    Sum,
    Var,
)

_MAX_WAYS = 32  # in which one part of a pattern may match at one tensor
_MAX_REMEMBERED = 50_000  # parts and tensors: what one pattern needs lies close together in a graph
_PER_CHANNEL = frozenset(("InstanceNormalization", "BatchNormalization"))
_COMMUTATIVE = frozenset(("Max", "Min", "And", "Or", "Xor"))


class Matcher(NodeMatcher):
    """Matches expressions at tensors of one graph by backtracking over what each part of a pattern can be there.

    What a part matches at a tensor does not depend on the rest of the pattern, so it is found once and remembered; parts
    go together if they agree on the op's inputs and attributes. What cannot match by its node types alone (see outline.py)
    is left aside at once.
    """

    def __init__(self, reading: Reading, outline: Outline, explain: bool = False) -> None:
        super().__init__(reading, explain)
        self.outline = outline
        self._whole: set[Expr] = set()
        self._found: dict[tuple[Expr, str, bool], tuple[list[Match], Failure]] = {}

    def find(self, expr: Expr, tensor: str) -> list[Match]:
        """Every way in which `expr` computes `tensor`."""
        return self._remembered(expr, tensor)[0]

    def failure(self, expr: Expr, tensor: str) -> tuple[frozenset[int], str]:
        """How far the best attempt came, and the first difference. The pattern itself, not its parts, is tried in any case,
        for a reason's sake. Only of a matcher that explains."""
        todo = [expr]
        while todo:
            self._whole.add(todo[-1])
            one = todo.pop()
            todo += one.options if isinstance(one, Either) else (one.x,) if isinstance(one, Given) else ()
        nodes, reason = self._remembered(expr, tensor)[1]
        return nodes, self._unlike(reason) if isinstance(reason, Unlike) else reason

    def _unlike(self, reason: Unlike) -> str:
        tensor, wanted = reason
        missing = [] if isinstance(wanted, str) else self.outline.missing(wanted, tensor)
        if missing:
            what = f"no {' or '.join(missing)}" if len(missing) < 4 else "nothing that the pattern has there"
            return f"{tensor} is {self.described(tensor)}, but {what} leads to it"
        return f"{tensor} is {self.described(tensor)}, where {wanted if isinstance(wanted, str) else _kind(wanted)} is expected"

    def _remembered(self, expr: Expr, tensor: str) -> tuple[list[Match], Failure]:
        key = (expr, tensor, expr in self._whole)
        if key not in self._found:
            if len(self._found) > _MAX_REMEMBERED:
                self._found.clear()
            self._found[key] = [], NO_FAILURE  # a cycle matches nothing
            before, self.furthest = self.furthest, NO_FAILURE
            found = list(itertools.islice(self._composite(expr, tensor, Match()), _MAX_WAYS))
            self._found[key] = found, self.furthest
            self.furthest = before
        return self._found[key]

    def match(self, expr: Expr, tensor: str, state: Match) -> States:
        if isinstance(expr, Var):
            yield from self._variable(expr, tensor, state)
        elif isinstance(expr, PerChannel):
            told = expr.vector or (isinstance(expr.axis, int) and expr.axis < 0)
            along = state.along | {expr.var.name: expr} if told else state.along
            yield from self._variable(expr.var, tensor, state._replace(along=along))
        elif isinstance(expr, Number | Attr):
            yield from self._number(expr, tensor, state)
        elif isinstance(expr, Anything):
            yield state
        elif isinstance(expr, Folded):
            yield from self.folded(expr, tensor, 1.0, state)
        elif expr not in self._whole and not self.outline.possible(expr, tensor):
            self.fail(state, Unlike(tensor, expr))
        else:
            ways, (nodes, reason) = self._remembered(expr, tensor)
            if self.explain and reason and not ways:
                self.fail(state.with_nodes(nodes), reason)
            for way in ways:
                joined = join(state, way)
                if isinstance(joined, Match):
                    yield joined
                elif self.explain:
                    self.fail(state.with_nodes(way.nodes), joined)

    def _composite(self, expr: Expr, tensor: str, state: Match) -> States:
        if isinstance(expr, Either):
            for number, option in enumerate(expr.options):
                ways = list(self.match(option, tensor, state))
                if ways:
                    yield from (way._replace(chosen=way.chosen | {expr: number}) for way in ways)
                    return
        elif isinstance(expr, Given):
            rank = self.graph.rank(tensor)
            values = {k: (rank and v(rank)) if callable(v) else v for k, v in expr.attributes.items()}
            for found in self.match(expr.x, tensor, state):
                yield from self.bind_all(values, found)
        elif isinstance(expr, Product):
            yield from self.product(expr, tensor, state)
        elif isinstance(expr, Sum):
            yield from self.total(expr, tensor, state)
        elif isinstance(expr, Mean):
            yield from self.mean(expr, tensor, state)
        elif isinstance(expr, Rearranged):
            yield from self.rearranged(expr, tensor, state)
        elif isinstance(expr, Reshaped | Grouped):
            for name, nodes in self.reading.handed_on(tensor):
                yield from self.reshape(expr, name, state.with_nodes(nodes))
        else:
            for name, nodes in self.reading.handed_on(tensor):
                yield from self.node(expr, name, state.with_nodes(nodes))

    # --- leaves --------------------------------------------------------------------------------------------------

    def _variable(self, expr: Var, tensor: str, state: Match) -> States:
        """The tensor itself, or what it was before an Identity or a Cast."""
        bound = state.bound.get(expr.name)
        for name, nodes in self.reading.handed_on(tensor):
            if bound is None or bound == name:
                yield Match(state.nodes | nodes, state.bound | {expr.name: name}, *state[2:])
        if bound is not None and bound != tensor:
            self.fail(state, f"{tensor} stands where {bound} is expected")

    def _number(self, expr: Number | Attr, tensor: str, state: Match) -> States:
        number = self.reading.scalar(tensor)
        if number is None:
            self.fail(state, f"{tensor} is not a constant")
        elif isinstance(expr, Number):
            if close(number[0], expr.value, number[1]):
                yield state._replace(numbers=state.numbers | {tensor})
            else:
                self.fail(state, f"{tensor} is {number[0]:g}, not {expr.value:g}")
        else:
            yield from self.bind(expr.name, number[0], state._replace(numbers=state.numbers | {tensor}))


def _kind(expr: Expr) -> str:
    """What a part of a pattern is, for messages."""
    if isinstance(expr, Either):
        return expr.name or _kind(expr.options[0])
    if isinstance(expr, Given):
        return _kind(expr.x)
    names = {
        Product: "a product",
        Sum: "a sum",
        Mean: "a mean",
        MoveAxis: "a Transpose",
        Rearranged: "a Transpose or Reshape",
        Reshaped: "a Reshape",
        Grouped: "a Reshape",
    }
    return expr.op_type if isinstance(expr, Call | Quantized) else names.get(type(expr), "what the pattern has")
