"""What a comparison found: errors of each output, the verdict and the rule behind it, and bounded evidence to look at."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtconvert.accuracy.finding import Finding

from trtconvert.feeds.roles import Role

NAN = float("nan")
# What is compared with what, in the order of the table.
FUSED = "fused model / source model"
CONVERTED = "converted model / source model"
ENGINE = "engine / source model"
ENGINE_CONVERTED = "engine / converted model"


def _writable(value: Any) -> Any:
    """JSON knows no NaN and no Inf: they become text."""
    if isinstance(value, dict):
        return {key: _writable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Element:
    """One element of an output: what came out and what should have."""

    index: tuple[int, ...]
    got: float
    expected: float


@dataclass(frozen=True)
class Channel:
    """The slice of an output at `index` of `axis`, whose relative L2 is the largest of that output's slices."""

    axis: int
    index: int
    rel_l2: float


@dataclass(frozen=True)
class Errors:
    """How far an array lies from the reference, over the elements that are finite in both. `metrics.measure` gives formulas.

    quantiles: of |got - expected|, by share ("0.5", ..., "0.999"). bias: by grouping ("value", "axis 1"), lower and upper
    bound of the relative L2 of the systematic part of the error, the one that the group of an element decides. channel: the
    worst slice along any axis.
    """

    elements: int = 0
    max_abs: float = NAN
    max_rel: float = NAN
    rel_l2: float = NAN
    cosine: float = NAN
    quantiles: dict[str, float] = field(default_factory=dict)
    bias: dict[str, tuple[float, float]] = field(default_factory=dict)
    channel: Channel | None = None


@dataclass(frozen=True)
class Evidence:
    """What a report draws, of bounded size: at most 64 bins, 1,024 points, 16 worst elements.

    edges, counts: histogram of log10 |got - expected| (exact elements: `exact`). expected, got: evenly taken elements.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    exact: int
    expected: tuple[float, ...]
    got: tuple[float, ...]
    worst: tuple[Element, ...]


@dataclass(frozen=True)
class OutputResult:
    """One output of one comparison on one set of inputs.

    shapes: label of the inputs. errors: against the reference. twin: the same of the same model in the same precision in
    onnxruntime, None where that did not run. tolerance: the largest relative L2 that passes; rule: how it came about.
    fault: empty if passed. first_bad: the first element that the rule does not allow. node: what makes the output, and
    which node is to blame where that is known.
    """

    comparison: str
    shapes: str
    output: str
    errors: Errors
    tolerance: float
    rule: str
    fault: str = ""
    twin: Errors | None = None
    first_bad: Element | None = None
    node: str = ""
    evidence: Evidence | None = field(default=None, compare=False, repr=False)

    @property
    def passed(self) -> bool:
        return not self.fault

    @property
    def max_abs(self) -> float:
        return self.errors.max_abs

    @property
    def max_rel(self) -> float:
        return self.errors.max_rel

    @property
    def rel_l2(self) -> float:
        return self.errors.rel_l2

    def as_dict(self, evidence: bool = True) -> dict[str, Any]:
        """For JSON. evidence: whether to include what a report draws."""
        found = dataclasses.asdict(self) | {"passed": self.passed}
        if not evidence:
            del found["evidence"]
        return {key: _writable(value) for key, value in found.items()}


@dataclass
class VerifyResult:
    """All comparisons. engine_skipped: why the engine was not run, empty if it was. rules: the rules in words, in the
    order of the checks. reference, twin: what the outputs were compared with. roles: what random inputs were taken for.
    first_wrong: the first wrong node, where it was asked for and found."""

    rows: list[OutputResult] = field(default_factory=list)
    engine_skipped: str = ""
    notices: list[str] = field(default_factory=list)
    precision: str = ""
    reference: str = ""
    twin: str = ""
    rules: list[str] = field(default_factory=list)
    roles: dict[str, Role] = field(default_factory=dict)
    first_wrong: Finding | None = None

    @property
    def passed(self) -> bool:
        return bool(self.rows) and all(row.passed for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: everything but what a report draws; roles as `inputs`."""
        found = {"passed": self.passed, **vars(self)}
        found["first_wrong"] = dataclasses.asdict(self.first_wrong) if self.first_wrong is not None else None
        inputs = {name: dataclasses.asdict(role) for name, role in found.pop("roles").items()}
        return found | {"inputs": inputs, "rows": [row.as_dict(evidence=False) for row in self.rows]}
