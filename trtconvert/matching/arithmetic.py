"""Matches sums and products: the graph's terms and factors, in whatever tree they stand, against the pattern's."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias, TypeVar

from trtconvert.matching.algebra import EXACT, Known, Opened, Parts, Reading
from trtconvert.pattern import Expr, Folded, PerChannel, Product, Sum, Var
from trtconvert.pattern import Parts as Wanted


class Match(NamedTuple):
    """What a pattern covers in a graph.

    nodes: indices. bound: tensor for each input of the op. attributes: values of the op's. along: inputs that lie along
    one axis as [C], and how. folded: constants to fold into inputs, each with power or sign. moved: the nodes, first to last,
    that only move elements and go behind the op. numbers: tensors that stand for numbers. chosen: of each Either in the pattern
    the option; wherever it occurs, it is that one.
    """

    nodes: frozenset[int] = frozenset()
    bound: dict[str, str] = {}  # noqa: RUF012  # never changed in place
    attributes: dict[str, Any] = {}  # noqa: RUF012
    along: dict[str, PerChannel] = {}  # noqa: RUF012
    folded: dict[Folded, tuple[str, float]] = {}  # noqa: RUF012
    moved: tuple[int, ...] = ()
    numbers: frozenset[str] = frozenset()
    chosen: dict[Expr, int] = {}  # noqa: RUF012

    def with_nodes(self, nodes: frozenset[int]) -> Match:
        """The match and these nodes."""
        return Match(self.nodes | nodes, *self[1:]) if nodes else self


def join(one: Match, other: Match) -> Match | str:
    """Both together; where they contradict each other, the contradiction."""
    if (name := _contradiction(one.bound, other.bound)) is not None:
        return f"{other.bound[name]} stands where {one.bound[name]} is expected"
    if (name := _contradiction(one.attributes, other.attributes)) is not None:
        return f"{name} is {one.attributes[name]} in one place, {other.attributes[name]} in another"
    if _contradiction(one.chosen, other.chosen) is not None:
        return "its parts differ in scale, bias or a constant factor"
    if _contradiction(one.folded, other.folded) is not None:
        return "two constants are applied to it"
    if one.moved and other.moved and one.moved != other.moved:
        return "its parts are rearranged in different ways"
    return Match(
        one.nodes | other.nodes,
        one.bound | other.bound,
        one.attributes | other.attributes,
        one.along | other.along if other.along else one.along,
        one.folded | other.folded if other.folded else one.folded,
        one.moved or other.moved,
        one.numbers | other.numbers,
        one.chosen | other.chosen,
    )


def _contradiction(one: dict[K, Any], other: dict[K, Any]) -> K | None:
    """A key under which both have different values."""
    if one and other:
        for key, value in other.items():
            if key in one and one[key] != value:
                return key
    return None


class Unlike(NamedTuple):
    """A tensor that is not what is wanted there."""

    tensor: str
    wanted: Expr | str


Reason: TypeAlias = str | Unlike
"""A sentence on a value, or a tensor that is made by something else."""
Failure: TypeAlias = tuple[frozenset[int], Reason]
"""The nodes that matched, and why it went no further."""
NO_FAILURE: tuple[frozenset[int], str] = (frozenset(), "")
K = TypeVar("K")
States: TypeAlias = Iterator[Match]
Numbers: TypeAlias = tuple[Known, ...]
_MAX_OPENED = 12  # nodes of one product or sum; real spellings need at most 8


def close(got: float, want: float, tolerance: float) -> bool:
    """Equal within the relative tolerance."""
    return math.isclose(got, want, rel_tol=tolerance, abs_tol=1e-12)


def raised(value: float, power: float) -> float:
    """value**power; infinite where that is too large."""
    try:
        return float(value**power)
    except OverflowError:
        return math.inf


class Arithmetic(ABC):
    """The matcher's part for sums and products. explain: remember how far the best failure came, and why no further."""

    def __init__(self, reading: Reading, explain: bool) -> None:
        self.reading, self.graph, self.explain = reading, reading.view, explain
        self.furthest: Failure = NO_FAILURE

    @abstractmethod
    def match(self, expr: Expr, tensor: str, state: Match) -> States:
        """Every way in which `expr` computes `tensor`, going on from `state`."""

    @abstractmethod
    def bind(self, name: str, value: Any, state: Match) -> States:
        """The op's attribute gets the value, if it has no other one yet."""

    def fail(self, state: Match, reason: Reason) -> None:
        """Remember why it goes no further, if it came further than before. A value that differs says more than a node that
        does; that a constant stands where something computed is expected says nothing."""
        if not self.explain or (isinstance(reason, Unlike) and self.graph.constant(reason.tensor) is not None):
            return
        before = (isinstance(self.furthest[1], str) and bool(self.furthest[1]), len(self.furthest[0]))
        if (isinstance(reason, str), len(state.nodes)) > before or not self.furthest[1]:
            self.furthest = (state.nodes, reason)

    def described(self, tensor: str) -> str:
        """What the tensor is: for messages."""
        node = self.graph.producer(tensor)
        constant = "a constant" if self.graph.constant(tensor) is not None else "an input"
        return f"made by {node.op_type}" if node and node.op_type != "Constant" else constant

    def product(self, expr: Product, tensor: str, state: Match, sign: float = 1.0) -> States:
        """sign times the product."""
        opened = self.reading.product(tensor)
        if opened is None:
            self.fail(state, Unlike(tensor, "a product"))
            return
        wanted, state = expr.coefficient * sign / opened.coefficient, _with(state, opened)
        yield from self._factors(expr.factors, wanted, opened.parts, opened.numbers, state, _MAX_OPENED)

    def total(self, expr: Sum, tensor: str, state: Match) -> States:
        """The sum."""
        opened = self.reading.total(tensor)
        if opened is None:
            self.fail(state, Unlike(tensor, "a sum"))
            return
        yield from self._terms(expr, expr.terms, opened.parts, opened.numbers, _with(state, opened), _MAX_OPENED)

    def folded(self, expr: Folded, tensor: str, power: float, state: Match) -> States:
        """A constant to be folded into inputs."""
        if self.graph.constant(tensor) is not None and expr not in state.folded:
            yield state._replace(folded=state.folded | {expr: (tensor, power)})

    def _factor(self, factor: Expr, tensor: str, power: float, state: Match) -> States:
        if isinstance(factor, Folded):
            return self.folded(factor, tensor, power, state)
        return self.match(factor, tensor, state)

    def _factors(
        self, factors: Wanted, want: float, frontier: Parts, numbers: Numbers, state: Match, left: int
    ) -> States:
        """Each of the graph's factors is one of the pattern's or opens; numbers are left over for the coefficient."""
        if len(frontier) > sum(max(1, int(abs(e))) for _, e in factors):
            return  # each factor that is no number takes up at least one of the pattern's
        if not frontier:
            yield from self._coefficient(factors, want, numbers, state)
            return
        (tensor, power), rest = frontier[0], frontier[1:]
        fits = False
        for i, (factor, _) in enumerate(factors):
            remaining = _without(factors, i, power)
            if remaining is None:
                continue
            fits = True
            for found in self._factor(factor, tensor, power, state):
                yield from self._factors(remaining, want, rest, numbers, found, left)
        opened = self.reading.product(tensor) if left else None
        if opened is not None:
            whole = all(e == int(e) for _, e in opened.parts)
            alone = len(opened.parts) == 1 and abs(opened.parts[0][1]) == 1.0 and not opened.numbers
            # sqrt(a b) is not sqrt(a) sqrt(b), sqrt(-a) not sqrt(a), and the square of sqrt(a) is a only where a >= 0.
            if abs(power) == 1.0 or (power == int(power) and whole) or (alone and opened.coefficient == 1.0):
                inner = tuple((t, e * power) for t, e in opened.parts)
                more = tuple(n._replace(power=n.power * power) for n in opened.numbers)
                known, inside = (*numbers, *more), _with(state, opened)
                wanted = want / raised(opened.coefficient, power)
                yield from self._factors(factors, wanted, (*inner, *rest), known, inside, left - 1)
        elif self.explain and not fits and power not in (1.0, -1.0):
            self.fail(state, f"{tensor} stands to the power of {power:g}, which the pattern has not")
        elif self.explain:
            self.fail(state, Unlike(tensor, "no further factor"))

    def _coefficient(self, factors: Wanted, want: float, numbers: Numbers, state: Match) -> States:
        """Inputs of the op may be numbers, too; all other numbers make the coefficient."""
        if factors:
            for i, number in enumerate(numbers):
                if (remaining := _without(factors, 0, number.power)) is not None:
                    for found in self._factor(factors[0][0], number.tensor, number.power, state):
                        yield from self._coefficient(remaining, want, (*numbers[:i], *numbers[i + 1 :]), found)
            return
        if not all(n.value > 0 or (n.value and n.power == int(n.power)) for n in numbers):
            return
        got = math.prod(raised(n.value, n.power) for n in numbers)
        if close(got, want, max((n.rounding for n in numbers), default=EXACT)):
            yield state._replace(numbers=state.numbers | {n.tensor for n in numbers})
        elif self.explain:
            self.fail(state, f"the constant factors multiply to {got:g}, not {want:g}")

    def _terms(self, expr: Sum, terms: Wanted, frontier: Parts, numbers: Numbers, state: Match, left: int) -> States:
        """Each of the graph's terms is one of the pattern's or opens; numbers are left over for the offset."""
        if len(frontier) > len(terms):
            if self.explain and expr.attr is not None and not numbers:
                differs = self.graph.constant(frontier[-1][0]) is not None
                what = (
                    "differs from element to element"
                    if differs
                    else f"is {self.described(frontier[-1][0])}, not a constant"
                )
                self.fail(state, f"{expr.attr.name} {what}")
            return
        if not frontier:
            yield from self._offset(expr, terms, numbers, state)
            return
        (tensor, sign), rest = frontier[0], frontier[1:]
        for i, (term, s) in enumerate(terms):
            for found in self._term(term, s * sign, tensor, state):
                yield from self._terms(expr, (*terms[:i], *terms[i + 1 :]), rest, numbers, found, left)
        opened = self.reading.total(tensor) if left else None
        if opened is not None:
            inner = tuple((t, s * sign) for t, s in opened.parts)
            more = tuple(n._replace(power=n.power * sign) for n in opened.numbers)
            yield from self._terms(expr, terms, (*inner, *rest), (*numbers, *more), _with(state, opened), left - 1)
        elif self.explain:
            self.fail(state, Unlike(tensor, "no further term"))

    def _term(self, term: Expr, sign: float, tensor: str, state: Match) -> States:
        if isinstance(term, Folded):
            yield from self.folded(term, tensor, sign, state)
        elif sign > 0:
            yield from self.match(term, tensor, state)
        elif isinstance(term, Product):
            yield from self.product(term, tensor, state, -1.0)
        elif not isinstance(term, Var | PerChannel):  # -(-bias) is not written
            yield from self.product(Product(1.0, ((term, 1.0),)), tensor, state, -1.0)

    def _offset(self, expr: Sum, terms: Wanted, numbers: Numbers, state: Match) -> States:
        """Inputs of the op may be numbers, too; all other numbers add up to the offset, or to the attribute."""
        if terms:
            (term, s), rest = terms[0], terms[1:]
            for i, number in enumerate(numbers):
                for found in self._term(term, s * number.power, number.tensor, state):
                    yield from self._offset(expr, rest, (*numbers[:i], *numbers[i + 1 :]), found)
            return
        value = sum(n.value * n.power for n in numbers)
        state = state._replace(numbers=state.numbers | {n.tensor for n in numbers})
        if expr.attr is None:
            if close(value, expr.offset, max((n.rounding for n in numbers), default=EXACT)):
                yield state
            elif self.explain:
                self.fail(state, f"the constant terms add up to {value:g}, not {expr.offset:g}")
        elif numbers:
            yield from self.bind(expr.attr.name, value - expr.offset, state)
        else:
            self.fail(state, f"{expr.attr.name} is missing")


def _with(state: Match, opened: Opened) -> Match:
    return Match(state.nodes | {opened.node}, *state[1:])


def _without(factors: Wanted, i: int, power: float) -> Wanted | None:
    """The factors less `power` of the i-th; None if it does not hold that much."""
    factor, e = factors[i]
    if isinstance(factor, Folded):
        return (*factors[:i], *factors[i + 1 :]) if abs(power) == 1.0 else None
    if e == power:
        return (*factors[:i], *factors[i + 1 :])
    part = power == int(power) and e == int(e) and e * power > 0 and abs(power) < abs(e)
    return (*factors[:i], (factor, e - power), *factors[i + 1 :]) if part else None
