"""The rows of a result put together by output and inputs, so that a hundred samples are one line: the worst of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trtconvert.accuracy.results import Element, Evidence, OutputResult


@dataclass(frozen=True)
class Line:
    """All samples of one output of one comparison on inputs of the same shapes. worst: the row that is nearest to failing, or
    furthest beyond. rows: all, in their order."""

    rows: Sequence[OutputResult]
    worst: OutputResult

    @property
    def passed(self) -> bool:
        return all(row.passed for row in self.rows)

    @property
    def inputs(self) -> str:
        """The label of the inputs."""
        return label(self.worst)

    @property
    def verdict(self) -> str:
        """`pass`, `FAIL`, or `3 of 100 FAIL`."""
        failed = sum(not row.passed for row in self.rows)
        return "pass" if not failed else "FAIL" if len(self.rows) == 1 else f"{failed} of {len(self.rows)} FAIL"


def label(row: OutputResult) -> str:
    """What the row was fed with, without the number of the sample."""
    return re.sub(r" #\d+$", "", row.shapes)


def severity(row: OutputResult) -> tuple[bool, float]:
    """A key that sorts rows by how near to failing they are: relative L2 over what is allowed, failed ones above."""
    ratio = row.rel_l2 / row.tolerance if row.tolerance else row.rel_l2
    return not row.passed, ratio if ratio == ratio else -1.0


def lines(rows: Iterable[OutputResult]) -> list[Line]:
    """The rows by comparison, inputs and output, in the order in which these first occur."""
    groups: dict[tuple[str, str, str], list[OutputResult]] = {}
    for row in rows:
        groups.setdefault((row.comparison, label(row), row.output), []).append(row)
    return [Line(group, max(group, key=severity)) for group in groups.values()]


@dataclass(frozen=True)
class Picture:
    """What is drawn of one output: the evidence of all its rows. got: what was compared with the reference, in a word. worst:
    elements with the inputs that they came of, the largest errors first."""

    output: str
    got: str
    evidence: Sequence[Evidence]
    worst: Sequence[tuple[str, Element]]


def pictures(rows: Sequence[OutputResult], most: int, elements: int) -> list[Picture]:
    """The `most` outputs nearest to failing, of the engine where it was run; `elements` worst elements of each."""
    drawn = [row for row in rows if row.evidence is not None]
    engine = [row for row in drawn if row.comparison.startswith("engine")]
    groups: dict[tuple[str, str], list[OutputResult]] = {}
    for row in engine or drawn:
        groups.setdefault((row.output, row.comparison.split(" / ")[0]), []).append(row)
    ranked = sorted(groups.items(), key=lambda item: max(map(severity, item[1])), reverse=True)[:most]
    found = []
    for (output, got), group in ranked:
        worst = [(row.shapes, each) for row in group if row.evidence for each in row.evidence.worst]
        worst.sort(key=lambda item: _size(item[1]), reverse=True)
        found.append(Picture(output, got, [row.evidence for row in group if row.evidence], worst[:elements]))
    return found


def _size(element: Element) -> float:
    """|got - expected|; what is not a number counts as infinite."""
    error = abs(element.got - element.expected)
    same = element.got == element.expected or (element.got != element.got and element.expected != element.expected)
    return 0.0 if same else error if error == error else float("inf")
