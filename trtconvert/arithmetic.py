"""Matches sums and products: the graph's terms and factors, in whatever tree they stand, against the pattern's."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from trtconvert.algebra import Opened, Parts, Reading
from trtconvert.pattern import Expr, Folded, PerChannel, Product, Sum, Var
from trtconvert.pattern import Parts as Wanted


class Match(NamedTuple):
    """What a pattern covers in a graph.

    nodes: indices. bound: tensor for each input of the op. attributes: values of the op's. along: inputs that lie along
    one axis as [C]. folded: constants to fold into inputs, each with power or sign. moved: the nodes, first to last, that
    only move elements and go behind the op. numbers: tensors that stand for numbers.
    """

    nodes: frozenset[int] = frozenset()
    bound: dict[str, str] = {}  # noqa: RUF012  # never changed in place
    attributes: dict[str, Any] = {}  # noqa: RUF012
    along: dict[str, int] = {}  # noqa: RUF012
    folded: dict[Folded, tuple[str, float]] = {}  # noqa: RUF012
    moved: tuple[int, ...] = ()
    numbers: frozenset[str] = frozenset()

    def with_nodes(self, nodes: frozenset[int]) -> Match:
        """The match and these nodes."""
        return Match(self.nodes | nodes, *self[1:]) if nodes else self


def join(one: Match, other: Match) -> Match | str:
    """Both together; where they contradict each other, the contradiction."""
    for name, tensor in other.bound.items():
        if one.bound.get(name, tensor) != tensor:
            return f"{tensor} stands where {one.bound[name]} is expected"
    for name, value in other.attributes.items():
        if one.attributes.get(name, value) != value:
            return f"{name} is {one.attributes[name]} in one place, {value} in another"
    if any(one.folded.get(fold, constant) != constant for fold, constant in other.folded.items()):
        return "two constants are applied to it"
    if one.moved and other.moved and one.moved != other.moved:
        return "its parts are rearranged in different ways"
    return Match(
        one.nodes | other.nodes,
        one.bound | other.bound,
        one.attributes | other.attributes,
        one.along | other.along,
        one.folded | other.folded,
        one.moved or other.moved,
        one.numbers | other.numbers,
    )


Reason: TypeAlias = str | tuple[str, Expr | str]
"""A sentence; or a tensor, and what it is not made by."""
Failure: TypeAlias = tuple[frozenset[int], Reason]
"""The nodes that matched, and why it went no further."""
NO_FAILURE: tuple[frozenset[int], str] = (frozenset(), "")
States: TypeAlias = Iterator[Match]
Numbers: TypeAlias = tuple[tuple[float, float], ...]
"""Values, each with its relative rounding."""

# Relative: four decimal digits in float32 (0.7071 for the root of 1/2), and the rounding of products in 16-bit types.
EXACT, _TOLERANCE = 1e-4, {"float16": 1e-3, "bfloat16": 4e-3}
_MAX_OPENED = 12  # nodes of one product or sum; real spellings need at most 8


def close(got: float, want: float, tolerance: float) -> bool:
    """Equal within the relative tolerance."""
    return math.isclose(got, want, rel_tol=tolerance, abs_tol=1e-12)


class Arithmetic(ABC):
    """The matcher's part for sums and products; remembers how far the best failure came."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self.graph = reading, reading.view
        self.furthest: Failure = NO_FAILURE

    @abstractmethod
    def match(self, expr: Expr, tensor: str, state: Match) -> States:
        """Every way in which `expr` computes `tensor`, going on from `state`."""

    @abstractmethod
    def bind(self, name: str, value: Any, state: Match) -> States:
        """The op's attribute gets the value, if it has no other one yet."""

    def fail(self, state: Match, reason: Reason) -> None:
        """Remember why it goes no further, if it came further than before."""
        if len(state.nodes) > len(self.furthest[0]) or not self.furthest[1]:
            self.furthest = (state.nodes, reason)

    def unlike(self, state: Match, tensor: str, wanted: Expr | str) -> None:
        """Fail because the tensor is not made by what the pattern wants."""
        if len(state.nodes) > len(self.furthest[0]) or not self.furthest[1]:
            self.furthest = (state.nodes, (tensor, wanted))

    def scalar(self, tensor: str) -> tuple[float, float] | None:
        """Value and relative rounding of a constant that is the same number in every element."""
        value = self.graph.uniform(tensor)
        return None if value is None else (value[0], _TOLERANCE.get(value[1], EXACT))

    def product(self, expr: Product, tensor: str, state: Match, sign: float = 1.0) -> States:
        """sign times the product."""
        opened = self.reading.product(tensor)
        if opened is None:
            self.unlike(state, tensor, "a product")
        else:
            known = ((opened[1], 0.0),)
            wanted = expr.coefficient * sign
            yield from self._factors(expr.factors, wanted, opened[2], known, _with(state, opened), _MAX_OPENED)

    def total(self, expr: Sum, tensor: str, state: Match) -> States:
        """The sum."""
        opened = self.reading.total(tensor)
        if opened is None:
            self.unlike(state, tensor, "a sum")
        else:
            yield from self._terms(expr, expr.terms, opened[2], (), _with(state, opened), _MAX_OPENED)

    def folded(self, expr: Folded, tensor: str, power: float, state: Match) -> States:
        """A constant to be folded into inputs."""
        if self.graph.constant(tensor) is not None and expr not in state.folded:
            yield state._replace(folded=state.folded | {expr: (tensor, power)})

    def _unknown(self, frontier: Parts) -> int:
        """How many of the graph's parts are no numbers: each takes up at least one part of the pattern."""
        return sum(self.graph.uniform(tensor) is None for tensor, _ in frontier)

    def _factors(
        self, factors: Wanted, want: float, frontier: Parts, numbers: Numbers, state: Match, left: int
    ) -> States:
        """Each of the graph's factors is one of the pattern's, a number, or opens."""
        if not frontier:
            got, tolerance = math.prod(n for n, _ in numbers), max(EXACT, *(t for _, t in numbers))
            if not factors and close(got, want, tolerance):
                yield state
            elif not factors:
                self.fail(state, f"the constant factors multiply to {got:g}, not {want:g}")
            return
        if self._unknown(frontier) > sum(max(1, int(abs(e))) for _, e in factors):
            return
        (tensor, power), rest = frontier[0], frontier[1:]
        for i, (factor, _) in enumerate(factors):
            remaining = _without(factors, i, power)
            if remaining is None:
                continue
            if isinstance(factor, Folded):
                matched = self.folded(factor, tensor, power, state)
            else:
                matched = self.match(factor, tensor, state)
            for found in matched:
                yield from self._factors(remaining, want, rest, numbers, found, left)
        number = self.scalar(tensor)
        if number is not None:
            if number[0] > 0 or (number[0] and power == int(power)):
                known = state._replace(numbers=state.numbers | {tensor})
                yield from self._factors(factors, want, rest, (*numbers, (number[0] ** power, number[1])), known, left)
        elif left and (seen := self.reading.product(tensor)):
            _, coefficient, parts = seen
            if power == int(power) or (len(parts) == 1 and parts[0][1] == 1.0):  # sqrt(a b) is not sqrt(a) sqrt(b)
                inner = tuple((t, e * power) for t, e in parts)
                known_numbers = (*numbers, (coefficient**power, 0.0))
                yield from self._factors(factors, want, (*inner, *rest), known_numbers, _with(state, seen), left - 1)
        elif power not in (1.0, -1.0):
            self.fail(state, f"{tensor} stands to the power of {power:g}, which the pattern has not")
        else:
            self.fail(state, f"{tensor} is a factor that the pattern has not")

    def _terms(self, expr: Sum, terms: Wanted, frontier: Parts, numbers: Numbers, state: Match, left: int) -> States:
        """Each of the graph's terms is one of the pattern's, a number, or opens."""
        if not frontier:
            if not terms:
                yield from self._finish(expr, numbers, state)
            return
        if self._unknown(frontier) > len(terms):
            if not terms:
                self.fail(state, f"{expr.attr.name} is not a constant" if expr.attr else "it has one more term")
            return
        (tensor, sign), rest = frontier[0], frontier[1:]
        for i, (term, s) in enumerate(terms):
            for found in self._term(term, s * sign, tensor, state):
                yield from self._terms(expr, (*terms[:i], *terms[i + 1 :]), rest, numbers, found, left)
        number = self.scalar(tensor)
        if number is not None:
            known = state._replace(numbers=state.numbers | {tensor})
            yield from self._terms(expr, terms, rest, (*numbers, (sign * number[0], number[1])), known, left)
        elif left and (seen := self.reading.total(tensor)):
            inner = tuple((t, s * sign) for t, s in seen[2])
            yield from self._terms(expr, terms, (*inner, *rest), numbers, _with(state, seen), left - 1)
        else:
            self.fail(state, f"{tensor} is a term that the pattern has not")

    def _term(self, term: Expr, sign: float, tensor: str, state: Match) -> States:
        if isinstance(term, Folded):
            yield from self.folded(term, tensor, sign, state)
        elif sign > 0:
            yield from self.match(term, tensor, state)
        elif isinstance(term, Product):
            yield from self.product(term, tensor, state, -1.0)
        elif not isinstance(term, Var | PerChannel):  # -(-bias) is not written
            yield from self.product(Product(1.0, ((term, 1.0),)), tensor, state, -1.0)

    def _finish(self, expr: Sum, numbers: Numbers, state: Match) -> States:
        value = sum(number for number, _ in numbers)
        if expr.attr is None:
            if close(value, expr.offset, max((rounding for _, rounding in numbers), default=EXACT)):
                yield state
            else:
                self.fail(state, f"the constant terms add up to {value:g}, not {expr.offset:g}")
        elif numbers:
            yield from self.bind(expr.attr.name, value - expr.offset, state)
        else:
            self.fail(state, f"{expr.attr.name} is missing")


def _with(state: Match, opened: Opened) -> Match:
    return Match(state.nodes | {opened[0]}, *state[1:])


def _without(factors: Wanted, i: int, power: float) -> Wanted | None:
    """The factors less `power` of the i-th; None if it does not hold that much."""
    factor, e = factors[i]
    if isinstance(factor, Folded):
        return (*factors[:i], *factors[i + 1 :]) if abs(power) == 1.0 else None
    if e == power:
        return (*factors[:i], *factors[i + 1 :])
    part = power == int(power) and e == int(e) and e * power > 0 and abs(power) < abs(e)
    return (*factors[:i], (factor, e - power), *factors[i + 1 :]) if part else None
