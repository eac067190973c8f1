"""The first node at which an engine leaves the reference, found with few engines in which more tensors are outputs.

A place between two nodes is bad if a tensor that passes it lies too far from the reference, or if the reference, continued from
the engine's tensors there, ends too far from its own outputs: so a small error counts that only a later node amplifies, and
what no output feels may not. The first bad place is searched with several places an engine, each of which goes on where the
last one was good. Since the time to build an engine grows as the square of its nodes, a large model is searched stretch by
stretch. Marking a tensor as an output changes what TensorRT fuses: whether the error is still there is checked in each of these
engines, and what is found once more in one that runs from the inputs, or the start of its stretch, with no other output.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, TypeAlias

from numpy.typing import NDArray

from trtconvert.accuracy.cuts import MARKABLE, Cut, cuts
from trtconvert.accuracy.parts import NOTHING, Arrays, Parts, cut_out
from trtconvert.accuracy.shares import Trial
from trtconvert.accuracy.wrong import Distance, NothingWrongError, Suspect, Wrong
from trtconvert.errors import ConvertError
from trtconvert.model import numpy_dtype

WIDTH = 8  # places that one engine shows
STRETCH, STRETCHES = 800, 4  # nodes of an engine, if the model has not more of these stretches
BEYOND = 1 + 1e-6  # of what is wrong by no figure
_STEP = 3.0  # a node is to blame for an error at the outputs if it multiplies it by this
Learnt: TypeAlias = "tuple[Parts, dict[str, NDArray[Any]]]"
"""A model, and what is known of its tensors."""


def bisect(
    suspect: Suspect,
    reference: Parts,
    twins: Sequence[Parts],
    feeds: Arrays,
    distance: Distance,
    most: int | None = None,
) -> Wrong:
    """The first nodes that are wrong on these inputs. most: engines that may be made, by default log2(nodes) + 3.

    reference: the model that is right; twins: the same with the roundings that engines may have, of which the nearest counts,
    tensor by tensor. NothingWrongError if the outputs in question are good.
    """
    return _Search(suspect, reference, twins, feeds, distance, most).result()


class _Search:
    """Places are known by their index in `cuts`; -1 is before the first node, where all is well."""

    def __init__(
        self,
        suspect: Suspect,
        reference: Parts,
        twins: Sequence[Parts],
        feeds: Arrays,
        distance: Distance,
        most: int | None,
    ) -> None:
        self.suspect, self.reference = suspect, reference
        self.feeds, self.distance = feeds, distance
        nodes = len(suspect.model.graph.node)
        self.cuts = cuts(suspect.model.graph, self._can_be_seen)
        self.end = len(self.cuts) - 1
        self.most = most if most is not None else int(math.log2(max(nodes, 1))) + 3
        self.builds, self.width = 0, WIDTH
        self.values: dict[int, Arrays] = {self.end: suspect.final}
        self.latest: dict[int, Arrays] = {-1: {}, self.end: suspect.final}  # neighbours here are of one engine
        self.stretch = max(STRETCH, -(-nodes // STRETCHES))
        self.starts = [-1]  # of the stretches so far
        self.hiding: set[int] = set()  # places that hide the error when their tensors are outputs
        self.expected: dict[str, NDArray[Any]] = {}
        self.twins: list[Learnt] = [(twin, {}) for twin in twins]
        self.alike: list[Learnt] = []
        self.directs: dict[int, dict[str, float]] = {}
        self.effects: dict[int, float] = {-1: 0.0}

    def _can_be_seen(self, name: str) -> bool:
        dtypes = (self.suspect.dtypes.get(name, ""), self.reference.dtypes.get(name, ""))
        return name in self.reference.made and all(dtype in MARKABLE for dtype in dtypes)

    # --- how bad a place is

    def _learn(self, names: Iterable[str], low: int = -1) -> None:
        """What reference, twins and others have there; they go on from what they have at `low`."""
        asked = dict.fromkeys(names)
        known = self.cuts[low].tensors if low >= 0 else ()
        for parts, learnt in ((self.reference, self.expected), *self.twins, *self.alike):
            if new := [name for name in asked if name in parts.made and name not in learnt]:
                learnt |= parts.run(new, self.feeds, {name: learnt[name] for name in known if name in learnt})

    def _distances(self, values: Arrays) -> dict[str, float]:
        self._learn(values)
        twins, alike = ([learnt for _, learnt in models] for models in (self.twins, self.alike))
        return {name: self._far(name, value, self.expected, twins, alike) for name, value in values.items()}

    def _far(
        self, name: str, value: NDArray[Any], want: Arrays, twins: Sequence[Arrays], alike: Sequence[Arrays]
    ) -> float:
        """The distance with the nearest twin; BEYOND if that is allowed, but the tensor has a known error."""
        rounded = [twin.get(name) for twin in twins] or [None]
        far = [self.distance(value, want[name], twin) for twin in rounded]
        least = min(far)
        known = least <= 1 and alike and _has(value, name, want[name], rounded[far.index(least)], alike)
        return BEYOND if known else least

    def direct(self, place: int) -> float:
        """How far the worst of the tensors there is from the reference."""
        if place not in self.directs:
            self.directs[place] = self._distances(self.values[place])
        return max(self.directs[place].values(), default=0.0)

    def effect(self, place: int) -> float:
        """How far the outputs in question are, if the reference goes on from the tensors there."""
        if place not in self.effects:
            self.effects[place] = self._effect(self.values[place]) if place != self.end else self.direct(place)
        return self.effects[place]

    def _effect(self, values: Arrays) -> float:
        self._learn(values)
        if any(value.shape != self.expected[name].shape for name, value in values.items()):
            return math.inf
        return max(self._distances(self.reference.run(self.blamed, self.feeds, values)).values())

    # --- the search

    def result(self) -> Wrong:
        self.measurable = self.direct(self.end) > 1
        if not self.measurable and not self.suspect.wrong:
            raise NothingWrongError("the outputs are as close to the reference as they have to be on these inputs")
        self.alike = self._known()
        self.blamed = [name for name, far in self.directs[self.end].items() if far > 1] or [*self.suspect.wrong]
        found = self._narrow(effects_only=False)
        single = self._is_to_blame(*found)
        if self.measurable and not (single and (self.alike or self.effect(found[1]) > 1)):
            felt = self._narrow(effects_only=True)  # what is wrong there is not what the outputs show
            if felt != found and self._is_to_blame(*felt):
                found, single = felt, True
        return self._told(*found, single)

    def _known(self) -> list[tuple[Parts, dict[str, NDArray[Any]]]]:
        """The known errors that the outputs have; all of them if these are wrong in no other way, but not on these inputs."""
        found = []
        for parts in self.suspect.alike:
            learnt = parts.run(self.cuts[self.end].tensors, self.feeds)
            twin = self.twins[0][1] if self.twins else {}
            if any(_has(self.suspect.final[n], n, self.expected[n], twin.get(n), [learnt]) for n in learnt):
                found.append((parts, learnt))
        return found if found or self.measurable else [(parts, {}) for parts in self.suspect.alike]

    def _narrow(self, effects_only: bool) -> tuple[int, int]:
        """A good place and the first bad one behind it, as near to each other as the engines show."""
        low, high = -1, self.end
        while True:
            inside = [place for place in sorted(self.values) if low < place < high]
            if not inside:
                reach = self._reach(low, high)
                marks = self._marks(low, reach)
                stretch = reach < high
                if not (marks or stretch) or self.builds >= self.most - (not self.hiding):  # the last one is to confirm
                    return low, high
                if not self._show(marks, low, reach, stretch) and high == self.end and low in self.starts[1:]:
                    low = self._start_again()  # it hid in one of the stretches before
                continue
            good = self._good(inside, effects_only)
            low, high = (good[-1] if good else low), (inside[len(good)] if len(good) < len(inside) else high)

    def _good(self, places: Sequence[int], effects_only: bool) -> Sequence[int]:
        """Those before the first bad one. Behind a place from which the outputs go wrong they do from every place, so that
        few effects are computed."""
        near = places if effects_only else [*takewhile(lambda place: self.direct(place) <= 1, places)]
        if not near or not self.measurable or self.effect(near[-1]) <= 1:
            return near
        return near[: bisect_left(near, True, key=lambda place: self.effect(place) > 1)]

    def _reach(self, low: int, high: int) -> int:
        """How far the next engine goes: to the end of the stretch, or to `high`."""
        if self.width == 1:
            return high
        end = (self.cuts[low].place if low >= 0 else 0) + self.stretch
        within = [place for place in range(low + 1, high) if self.cuts[place].place <= end]
        return high if self.cuts[high].place <= end or not within else within[-1]

    def _marks(self, low: int, high: int) -> list[int]:
        """Places to look at next, evenly spread."""
        free = [place for place in range(low + 1, high) if place not in self.hiding]
        count = min(self.width, len(free))
        return [free[(len(free) * (2 * i + 1)) // (2 * count)] for i in range(count)] if count else []

    def _start_again(self) -> int:
        """With whole engines, as if there had been no stretches."""
        self.starts = [-1]
        self._only_ends(self.values)
        self._only_ends(self.latest)
        self._only_ends(self.directs)
        self._only_ends(self.effects)
        return -1

    def _only_ends(self, known: dict[int, Any]) -> None:
        for place in [place for place in known if place not in (-1, self.end)]:
            del known[place]

    def _show(self, marks: Sequence[int], low: int, high: int, stretch: bool) -> bool:
        """Learn the values at these places, from an engine from `low` to `high`; False if the error hides in it. stretch: `high`
        is the end of a stretch, where it need not be yet."""
        gentle = self.width == 1  # the whole engine, since its ends may matter as well
        end, given = (self.end, NOTHING) if gentle else (high, self.latest[low])
        places = [*marks, end]
        names = [name for place in places for name in self.cuts[place].tensors]
        found = self._outputs_of(names, given)
        self._learn(names, low)
        if found is not None and (stretch or self._is_there(end, self._at(end, found))):
            self.latest |= {place: self._at(place, found) for place in places}
            self.values |= {place: self.latest[place] for place in (places if stretch else marks)}
            self.starts += [high] * stretch
            return True
        if gentle:
            self.hiding.update(marks)
        else:
            self.width = 1
        return False

    def _outputs_of(self, names: Sequence[str], given: Arrays) -> Arrays | None:
        """What an engine with these outputs makes of the inputs and of given tensors. None if there can be no such engine."""
        given = {name: self._typed(name, value) for name, value in given.items()}
        asked = [name for name in dict.fromkeys(names) if name not in given]
        model = cut_out(self.suspect.model, asked, given, self.suspect.dtypes)
        self.builds += 1
        try:
            return {**given, **self.suspect.run(model, given)}
        except ConvertError:
            return None

    def _typed(self, name: str, value: NDArray[Any]) -> NDArray[Any]:
        """As the model has it, but for float64, which engines have as float32."""
        dtype = self.suspect.dtypes.get(name, "")
        return value if dtype in ("", "float64") else value.astype(numpy_dtype(dtype), copy=False)

    def _at(self, place: int, found: Arrays) -> Arrays:
        return {name: found[name] for name in self.cuts[place].tensors}

    def _is_there(self, place: int, values: Arrays) -> bool:
        """Whether the error shows at that place, where it did before, if it can."""
        if place == self.end and not self.measurable:
            return True
        if max(self._distances(values).values()) > 1:
            return True
        return place != self.end and self._effect(values) > 1

    # --- what was found

    def _local(self, low: int, high: int) -> dict[str, float]:
        """How far the tensors behind are from what the reference makes of those before."""
        given = self.latest[low]
        new = {name: value for name, value in self.latest[high].items() if name not in given}

        def made(parts: Parts) -> Arrays:
            return parts.run([name for name in new if name in parts.made], self.feeds, given)

        want = made(self.reference)
        twins, alike = ([made(parts) for parts, _ in models] for models in (self.twins, self.alike))
        return {name: self._far(name, value, want, twins, alike) for name, value in new.items()}

    def _is_to_blame(self, low: int, high: int) -> bool:
        """Whether the nodes between make the error: more than what they got explains, or felt at the outputs all at once.
        Integers at the outputs show no steps: rounding flips them all at once as well."""
        if max(self._local(low, high).values(), default=0.0) > 1:
            return True
        steps = self.measurable and all(self.expected[name].dtype.kind not in "iub" for name in self.blamed)
        return steps and self.effect(high) > 1 and self.effect(high) > _STEP * self.effect(low)

    def _told(self, low: int, high: int, single: bool) -> Wrong:
        local = self._local(low, high)
        direct = self.directs[high] if self.direct(high) > 1 else {}
        far = {name: max(value, direct.get(name, 0.0)) for name, value in local.items()} or self.directs[high]
        wrong = tuple(name for name, value in far.items() if value > 1) or (max(far, key=far.__getitem__),)
        before = self.cuts[low] if low >= 0 else Cut(0, ())
        places = sorted(self.values)
        confirmed = single and self._confirmed(high, wrong)
        return Wrong(
            nodes=range(before.place, self.cuts[high].place),
            before=before.tensors,
            behind=self.cuts[high].tensors,
            wrong=wrong,
            got={name: self.values[high][name] for name in wrong},
            expected={name: self.expected[name] for name in wrong},
            single=single,
            confirmed=confirmed,
            builds=self.builds,
            fused_across=tuple(name for place in sorted(self.hiding) for name in self.cuts[place].tensors),
            errors=tuple((self.cuts[place].tensors[-1], self.direct(place)) for place in places),
        )

    def _confirmed(self, high: int, wrong: Sequence[str]) -> bool:
        """Whether an engine from the inputs, or the start of the stretch, to there shows it with no other outputs."""
        if high == self.end:
            return True  # it was seen in the engine in question
        start = max(place for place in self.starts if place < high)
        found = self._outputs_of(wrong, self.latest[start]) if self.builds < self.most else None
        return found is not None and (max(self._distances(found).values()) > 1 or self._effect(found) > 1)


def _has(
    value: NDArray[Any], name: str, want: NDArray[Any], rounded: NDArray[Any] | None, alike: Sequence[Arrays]
) -> bool:
    """Whether the tensor has one of the errors of models that are wrong in a known way, whatever noise there is."""
    if value.dtype.kind in "iub":
        return False
    trial = Trial(len(alike))
    trial.hear(value, want, rounded, [other.get(name, want) for other in alike])
    return any(trial.found())
