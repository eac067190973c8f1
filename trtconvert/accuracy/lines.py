"""The rows of a result put together by output and inputs, so that a hundred samples are one line: the worst of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trtconvert.accuracy.results import OutputResult


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
