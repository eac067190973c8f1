"""Matches the nodes that a pattern names: means, Transposes, Reshapes and calls, with their attributes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from onnx import NodeProto

from trtconvert.graph import GraphView, Shape
from trtconvert.lowering.quantization import DOMAINS, scale_of
from trtconvert.matching.algebra import MOST_IN_A_ROW, MOVERS, RESHAPES, axis_of, passes
from trtconvert.matching.arithmetic import Arithmetic, Match, States, Unlike
from trtconvert.model import STANDARD_DOMAINS
from trtconvert.pattern import (
    ATTRIBUTE_INPUTS,
    Attr,
    Call,
    Expr,
    Grouped,
    Mean,
    MoveAxis,
    Number,
    Quantized,
    Rearranged,
    Reshaped,
    Var,
)

_PER_CHANNEL = frozenset(("InstanceNormalization", "BatchNormalization"))
_COMMUTATIVE = frozenset(("Max", "Min", "And", "Or", "Xor"))


class NodeMatcher(Arithmetic):
    """The matcher's part for single nodes."""

    def bind(self, name: str, value: Any, state: Match) -> States:
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            self.fail(state, f"{name} is {value}")
        elif state.attributes.get(name, value) == value:
            yield state._replace(attributes=state.attributes | {name: value})
        else:
            self.fail(state, f"{name} is {state.attributes[name]} in one place, {value} in another")

    def bind_all(self, values: dict[str, Any], state: Match) -> States:
        """Attributes of the op get these values, if they have no other ones yet."""
        if not values:
            yield state
            return
        (name, value), *rest = values.items()
        for bound in self.bind(name, value, state):
            yield from self.bind_all(dict(rest), bound)

    def mean(self, expr: Mean, tensor: str, state: Match) -> States:
        """A mean over the axis."""
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

    def rearranged(self, expr: Rearranged, tensor: str, state: Match) -> States:
        """x behind nodes that only move elements."""
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

    def reshape(self, expr: Reshaped | Grouped, tensor: str, state: Match) -> States:
        """A Reshape of x."""
        index, shape = self.graph.producers.get(tensor), self.graph.info(tensor).shape
        node = None if index is None else self.graph.nodes[index]
        if node is None or index is None or node.op_type not in RESHAPES or node.domain not in STANDARD_DOMAINS:
            self.fail(state, Unlike(tensor, "a Reshape"))
            return
        before, state = self.graph.info(node.input[0]).shape, state.with_nodes(frozenset((index,)))
        if not shape or not before or None in (*shape, *before):
            self.fail(state, f"the shape of {tensor} is not known")
        elif isinstance(expr, Grouped):
            if len(shape) != 2 + expr.rest or shape[0] != before[0] or not isinstance(shape[1], int):
                self.fail(state, f"{tensor} has shape {list(shape)}, not {[before[0], 'groups', *['...'] * expr.rest]}")
                return
            for bound in self.bind(expr.groups.name, shape[1], state):
                yield from self.match(expr.x, node.input[0], bound)
        else:
            yield from self._reshaped(expr, tensor, node.input[0], shape, before, state)

    def _reshaped(self, expr: Reshaped, tensor: str, source: str, shape: Shape, before: Shape, state: Match) -> States:
        """To a shape that follows from that of x, or back to that of an input of the op: each size the same number, or of
        the same name, which shape inference gives to sizes that are always equal."""
        sizes = tuple(size for size in before if isinstance(size, int))
        if expr.shape is not None and (len(sizes) < len(before) or shape != expr.shape(sizes)):
            wanted = list(expr.shape(sizes)) if len(sizes) == len(before) else "one that is known"
            self.fail(state, f"{tensor} has shape {list(shape)}, not {wanted}")
            return
        for found in self.match(expr.x, source, state):
            like = expr.like
            if like is None or (isinstance(like, Var) and self.graph.info(found.bound[like.name]).shape == shape):
                yield found
            else:
                self.fail(found, f"{tensor} has shape {list(shape)}, which is not that of the data")

    def node(self, expr: Expr, tensor: str, state: Match) -> States:
        """A node of that type, or the Transpose that moves one axis."""
        if isinstance(expr, Quantized):
            yield from self._quantized(expr, tensor, state)
            return
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

    def _quantized(self, expr: Quantized, tensor: str, state: Match) -> States:
        """A QuantizeLinear or DequantizeLinear whose scale is the op's attribute."""
        index = self.graph.producers.get(tensor)
        node = None if index is None else self.graph.nodes[index]
        if node is None or index is None or node.op_type != expr.op_type or node.domain not in DOMAINS:
            self.fail(state, Unlike(tensor, expr.op_type))
            return
        for found in self.match(expr.x, node.input[0], state.with_nodes(frozenset((index,)))):
            scale = scale_of(self.graph, node)
            if isinstance(scale, str):
                self.fail(found, scale)
            else:
                yield from self.bind(expr.scale.name, scale, found)

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
        """The attributes that the pattern asks for; one named axis counts from the end, as Mean has it, several from the
        front."""
        rank = self.graph.rank(inputs[0]) if inputs else None
        bound = {}
        for name, wanted in expr.attributes.items():
            got = values.get(name)
            if name == "axis" and isinstance(got, int) and got >= 0:
                got = None if rank is None or got >= rank else got - rank
            if name == "axes" and got is not None and rank is not None:
                got = tuple(sorted(axis % rank for axis in got))
            if callable(wanted):
                wanted = "not known" if rank is None else wanted(rank)
            if isinstance(wanted, Attr):
                bound[wanted.name] = got
            elif got != wanted:
                shown = ["unknown" if v is None else list(v) if isinstance(v, tuple) else v for v in (got, wanted)]
                self.fail(state, f"{node.op_type} {node.name}: {name} is {shown[0]}, not {shown[1]}")
                return
        yield from self.bind_all(bound, state)


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
