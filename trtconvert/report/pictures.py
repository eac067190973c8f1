"""Which outputs are drawn, and what of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtconvert.accuracy.lines import severity
from trtconvert.accuracy.results import ENGINE, Element, Evidence, OutputResult


@dataclass(frozen=True)
class Picture:
    """What is drawn of one output: the evidence of all its rows. what: what was compared with what. worst:
    elements with the inputs that they came of, the largest errors first."""

    output: str
    what: str
    evidence: Sequence[Evidence]
    worst: Sequence[tuple[str, Element]]


def pictures(rows: Sequence[OutputResult], most: int, elements: int) -> list[Picture]:
    """The `most` outputs nearest to failing, of the engine where it was run and of what fails; `elements` worst elements of
    each."""
    drawn = [row for row in rows if row.evidence is not None]
    engine = of_engine(drawn)
    groups: dict[tuple[str, str], list[OutputResult]] = {}
    for row in [*engine, *(row for row in drawn if not row.passed and row not in engine)]:
        groups.setdefault((row.output, row.comparison), []).append(row)
    ranked = sorted(groups.items(), key=lambda item: max(map(severity, item[1])), reverse=True)[:most]
    found = []
    for (output, comparison), group in ranked:
        worst = [(row.shapes, each) for row in group if row.evidence for each in row.evidence.worst]
        worst.sort(key=lambda item: _size(item[1]), reverse=True)
        found.append(
            Picture(
                output,
                comparison.replace(" / source model", " against the reference").replace(" / ", " against "),
                [row.evidence for row in group if row.evidence],
                worst[:elements],
            )
        )
    return found


def of_engine(rows: Sequence[OutputResult]) -> Sequence[OutputResult]:
    """The rows that matter most: of the engine against the source model, all where it was not run."""
    return [row for row in rows if row.comparison == ENGINE] or rows


def _size(element: Element) -> float:
    """|got - expected|; what is not a number counts as infinite."""
    error = abs(element.got - element.expected)
    same = element.got == element.expected or (element.got != element.got and element.expected != element.expected)
    return 0.0 if same else error if error == error else float("inf")
