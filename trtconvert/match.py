"""Finds patterns in a graph: backtracking over spellings, operand orders and the trees of sums and products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from onnx import NodeProto

from trtconvert.algebra import MOST_IN_A_ROW, MOVERS, RESHAPES, Reading, axis_of, passes
from trtconvert.arithmetic import NO_FAILURE, Arithmetic, Failure, Match, States, Unlike, close, join
from trtconvert.graph import GraphView
from trtconvert.model import STANDARD_DOMAINS
from trtconvert.outline import Outline
from trtconvert.pattern import (
    ATTRIBUTE_INPUTS,
    Anything,
    Attr,
    Call,
    Either,
    Expr,
    Folded,
    Given,
    Mean,
    MoveAxis,
    Number,
    PerChannel,
    Product,
    Rearranged,
    Reshaped,
    Sum,
    Var,
)

_MAX_WAYS = 32  # in which one part of a pattern may match at one tensor
_MAX_REMEMBERED = 50_000  # parts and tensors: what one pattern needs lies close together in a graph
_PER_CHANNEL = frozenset(("InstanceNormalization", "BatchNormalization"))
_COMMUTATIVE = frozenset(("Max", "Min", "And", "Or", "Xor"))


class Matcher(Arithmetic):
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
            along = state.along if isinstance(expr.axis, Attr) else state.along | {expr.var.name: expr.axis}
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
                yield from self._bind_all(values, found)
        elif isinstance(expr, Product):
            yield from self.product(expr, tensor, state)
        elif isinstance(expr, Sum):
            yield from self.total(expr, tensor, state)
        elif isinstance(expr, Mean):
            yield from self._mean(expr, tensor, state)
        elif isinstance(expr, Rearranged):
            yield from self._rearranged(expr, tensor, state)
        elif isinstance(expr, Reshaped):
            yield from self._reshaped(expr, tensor, state)
        else:
            for name, nodes in self.reading.handed_on(tensor):
                yield from self._node(expr, name, state.with_nodes(nodes))

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

    def bind(self, name: str, value: Any, state: Match) -> States:
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            self.fail(state, f"{name} is {value}")
        elif state.attributes.get(name, value) == value:
            yield state._replace(attributes=state.attributes | {name: value})
        else:
            self.fail(state, f"{name} is {state.attributes[name]} in one place, {value} in another")

    def _bind_all(self, values: dict[str, Any], state: Match) -> States:
        if not values:
            yield state
            return
        (name, value), *rest = values.items()
        for bound in self.bind(name, value, state):
            yield from self._bind_all(dict(rest), bound)

    # --- nodes -----------------------------------------------------------------------------------------------------

    def _mean(self, expr: Mean, tensor: str, state: Match) -> States:
        for name, nodes in self.reading.handed_on(tensor):
            found = self.reading.mean(name)
            if found is None:
                self.fail(state, Unlike(name, "a mean"))
                continue
            here = state.with_nodes(nodes | found.nodes)
            where = f"{found.node.op_type} {found.node.name}".rstrip()
            axis = None if found.axes is None else axis_of(found.axes, self.graph.rank(found.x))
            if found.fault:
                self.fail(here, found.fault)
            elif axis is None:
                shown = "are not constant" if found.axes is None else f"are {list(found.axes)}"
                self.fail(here, f"{where}: its axes {shown}")
            elif isinstance(expr.axis, Attr):
                for bound in self.bind(expr.axis.name, axis, here):
                    yield from self.match(expr.x, found.x, bound)
            elif axis == expr.axis:
                yield from self.match(expr.x, found.x, here)
            else:
                self.fail(here, f"{where}: its axis is {axis}, not {expr.axis}")

    def _rearranged(self, expr: Rearranged, tensor: str, state: Match) -> States:
        moved: tuple[int, ...] = ()
        nodes = state.nodes
        while (index := self.graph.producers.get(tensor)) is not None and len(nodes) < MOST_IN_A_ROW:
            node = self.graph.nodes[index]
            if node.domain not in STANDARD_DOMAINS or not (node.op_type in MOVERS or passes(self.graph, node)):
                break
            nodes |= {index}
            moved, tensor = moved if passes(self.graph, node) else (index, *moved), node.input[0]
            if moved:
                yield from self.match(expr.x, tensor, state._replace(nodes=nodes, moved=moved))
        if not moved:
            self.fail(state, Unlike(tensor, "a Transpose or Reshape"))

    def _reshaped(self, expr: Reshaped, tensor: str, state: Match) -> States:
        index, shape = self.graph.producers[tensor], self.graph.info(tensor).shape
        node = self.graph.nodes[index]
        if node.op_type not in RESHAPES or node.domain not in STANDARD_DOMAINS:
            self.fail(state, Unlike(tensor, "a Reshape"))
            return
        before = self.graph.info(node.input[0]).shape
        if not all(isinstance(size, int) for size in (*(shape or (None,)), *(before or (None,)))):
            self.fail(state, f"the shape of {tensor} is not known")
            return
        sizes = tuple(size for size in before or () if isinstance(size, int))
        if expr.shape is not None and shape != expr.shape(sizes):
            self.fail(state, f"{tensor} has shape {list(shape or ())}, not {list(expr.shape(sizes))}")
            return
        for found in self.match(expr.x, node.input[0], state.with_nodes(frozenset((index,)))):
            like = expr.like
            if like is None or (isinstance(like, Var) and self.graph.info(found.bound[like.name]).shape == shape):
                yield found
            else:
                self.fail(found, f"{tensor} has shape {list(shape or ())}, which is not that of the data")

    def _node(self, expr: Expr, tensor: str, state: Match) -> States:
        op_type = "Transpose" if isinstance(expr, MoveAxis) else expr.op_type if isinstance(expr, Call) else ""
        domain = expr.domain if isinstance(expr, Call) else ""
        index = self.graph.producers.get(tensor)
        node = None if index is None else self.graph.nodes[index]
        if node is None or index is None or node.op_type != op_type or not _same_domain(node.domain, domain):
            self.fail(state, Unlike(tensor, op_type))
            return
        if node.output[0] != tensor:
            self.fail(state, f"{tensor} is not the first output of {op_type}")
            return
        state = state._replace(nodes=state.nodes | {index})
        values, inputs = _attribute_inputs(self.graph, node)
        if isinstance(expr, MoveAxis):
            perm = list(values.get("perm") or list(range(self.graph.rank(inputs[0]) or 0))[::-1])
            if not perm:
                self.fail(state, f"Transpose {node.name}: the rank of {inputs[0]} is unknown")
                return
            if perm != expr.perm(len(perm)):
                self.fail(state, f"Transpose {node.name} has perm {perm}, not {expr.perm(len(perm))}")
                return
            yield from self.match(expr.x, inputs[0], state)
            return
        assert isinstance(expr, Call)
        for bound in self._attributes(expr, node, values, inputs, state):
            if len(inputs) != len(expr.inputs):
                self.fail(bound, f"{op_type} {node.name} has {len(inputs)} inputs, not {len(expr.inputs)}")
                continue
            orders = itertools.permutations(inputs) if op_type in _COMMUTATIVE else [tuple(inputs)]
            for order in orders:
                yield from self._inputs(expr.inputs, order, bound, op_type not in _PER_CHANNEL)

    def _inputs(self, exprs: Sequence[Expr], tensors: Sequence[str], state: Match, broadcast: bool) -> States:
        """broadcast: numbers among the inputs are broadcast against the data, and could expand it."""
        if not exprs:
            yield state
            return
        for found in self.match(exprs[0], tensors[0], state):
            if not broadcast and isinstance(exprs[0], Number):
                found = found._replace(numbers=state.numbers)
            yield from self._inputs(exprs[1:], tensors[1:], found, broadcast)

    def _attributes(
        self, expr: Call, node: NodeProto, values: dict[str, Any], inputs: list[str], state: Match
    ) -> States:
        """The attributes that the pattern asks for; one named axis counts from the end, as Mean has it."""
        rank = self.graph.rank(inputs[0]) if inputs else None
        bound = {}
        for name, wanted in expr.attributes.items():
            got = values.get(name)
            if name == "axis" and isinstance(got, int) and got >= 0:
                got = None if rank is None or got >= rank else got - rank
            if isinstance(wanted, Attr):
                bound[wanted.name] = got
            elif got != wanted:
                shown = "unknown" if got is None else got
                self.fail(state, f"{node.op_type} {node.name}: {name} is {shown}, not {wanted}")
                return
        yield from self._bind_all(bound, state)


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
    }
    return expr.op_type if isinstance(expr, Call) else names.get(type(expr), "what the pattern has")


def _attribute_inputs(graph: GraphView, node: NodeProto) -> tuple[dict[str, Any], list[str]]:
    """The node's attributes, constant inputs that are attributes in other opsets among them; and its other inputs."""
    values, inputs = graph.attributes(node), []
    for i, name in enumerate(node.input):
        attribute = ATTRIBUTE_INPUTS.get((node.op_type, i))
        if attribute is None:
            inputs.append(name)
        elif name:
            constant = graph.constant(name)
            values[attribute] = None if constant is None else constant.reshape(-1).tolist()
    while inputs and not inputs[-1]:
        inputs.pop()
    return values, inputs


def _same_domain(domain: str, wanted: str) -> bool:
    return domain == wanted or (not wanted and domain in STANDARD_DOMAINS)
