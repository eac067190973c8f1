"""Which errors are wrong. Each check compares an output's errors with those of its twin, so that nothing is a matter of taste:

    relative L2         <= 2 x the twin's + floor (1 + 4 / sqrt(elements))     the primary rule; never above `most`
    worst slice         <= 4 x the twin's + 5 floor                            one wrong channel of many
    largest error       <= 4 x the twin's + 10 floor x largest element         one wrong element
    systematic part     <= 2 x the twin's + bias floor, for each grouping      what is off on average, below the noise
    NaN, Inf            where the reference has them
    integers, booleans  equal, but where twin and reference differ: there either may come out
    quantized integers  off by one step at most, and the checks above

What they cannot see: an error below the floors, and one that hides in the noise, which is neither of one slice, nor of one
range of values, nor of an index. `suspects` looks there for the errors that engines are known for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtconvert.accuracy import metrics
from trtconvert.accuracy.results import NAN, Element, Errors

TIMES, SLICE_TIMES, PEAK_TIMES = 2.0, 4.0, 4.0
SLICE, PEAK = 5.0, 10.0  # floors of a slice and of a single element, in floors of the whole
FEW = 4.0  # floors that an output of a single element gets on top, since its twin may be right by luck
TINY = 1e-30


@dataclass(frozen=True)
class Rule:
    """Floors by compute type: relative L2, and that of the systematic part. most: the relative L2 that no twin excuses, since
    what lies beyond is not the same result. origin: where the figures come from."""

    name: str
    floor: float
    bias: float
    origin: str
    most: float = math.inf


MIXED = "int8+fp16"
_MEASURED = "tests/bench/results/error_distributions.md"
RULES = {
    "float64": Rule("float64 as float32", 1e-5, 1e-5, "TensorRT computes float64 as float32", 0.05),
    "float32": Rule("float32", 1e-5, 1e-5, _MEASURED, 0.05),
    "tf32": Rule("float32, TF32 products", 1e-4, 1e-4, _MEASURED, 0.05),
    "float16": Rule("float16", 5e-4, 2e-4, _MEASURED, 0.1),
    "bfloat16": Rule("bfloat16", 4e-3, 2e-3, _MEASURED, 0.3),
    "int8": Rule("int8", 5e-3, 2e-3, _MEASURED, 0.5),
    # What 16-bit floats are off before they are quantized flips steps: 0.015 where the twin has 0.0012, on an H200
    MIXED: Rule("int8, 16-bit floats between", 1.5e-2, 5e-3, _MEASURED, 0.5),
}
# Source and fused model, both widened to fp32: what is left is the rounding of constants, and in int8 of values between steps.
SAME_MATHS = {
    "float64": 1e-5,
    "float32": 1e-5,
    "tf32": 1e-5,
    "float16": 2e-3,
    "bfloat16": 2e-2,
    "int8": 2e-2,
    MIXED: 2e-2,
}
# What a conversion may cost, as relative L2; a model that loses more is not to be shipped in that precision without a look.
COSTS = {
    "float64": 1e-3,
    "float32": 1e-3,
    "tf32": 5e-3,
    "float16": 1e-2,
    "bfloat16": 5e-2,
    "int8": 0.2,
    MIXED: 0.2,
}


@dataclass(frozen=True)
class Verdict:
    """What `judge` finds of one output. limit: of the relative L2; fault: empty if it passes."""

    errors: Errors
    limit: float
    fault: str = ""
    twin: Errors | None = None
    first_bad: Element | None = None


@dataclass(frozen=True)
class Limits:
    """The largest relative L2, slice, single error and systematic part that pass."""

    rel_l2: float
    slice: float
    peak: float
    bias: dict[str, float]


def limits(rule: Rule, expected: NDArray[Any], twin: Errors | None, tolerance: float | None = None) -> Limits:
    """By the twin's errors and the rule's floors; by a tolerance alone if one is given."""
    finite = np.abs(expected[np.isfinite(expected)].astype(np.float64))
    scale = float(finite.max()) if finite.size else 0.0
    if tolerance is not None:
        return Limits(tolerance, math.inf, PEAK * tolerance * scale + TINY, {})
    own = twin or Errors(max_abs=0.0, rel_l2=0.0)
    worst = own.channel.rel_l2 if own.channel else 0.0
    return Limits(
        rel_l2=min(TIMES * own.rel_l2 + rule.floor * (1 + FEW / math.sqrt(max(finite.size, 1))), rule.most),
        slice=SLICE_TIMES * worst + SLICE * rule.floor,
        peak=PEAK_TIMES * own.max_abs + PEAK * rule.floor * scale + TINY,
        bias={name: TIMES * high + rule.bias for name, (_, high) in own.bias.items()},
    )


def judge(
    got: NDArray[Any] | None,
    expected: NDArray[Any],
    twin: NDArray[Any] | None,
    rule: Rule,
    tolerance: float | None = None,
    quantized: bool = False,
    overflows: bool = False,
    of_twin: Errors | None = None,
) -> Verdict:
    """Check an output against the reference and its twin's output, by the rules above.

    quantized: the integers stand for a scale's steps. overflows: NaN and Inf of the twin are the model's own. of_twin:
    its errors, if they are known.
    """
    unlike = "the output is missing" if got is None else ""
    if got is not None and got.shape != expected.shape:
        unlike = f"shape {list(got.shape)}, expected {list(expected.shape)}"
    if got is None or unlike:
        return Verdict(Errors(), NAN, unlike)
    twin = twin if twin is not None and twin.shape == expected.shape else None
    if expected.dtype.kind in "iub" and not quantized:
        return _exact(got, expected, twin)
    strange = _non_finite(got, expected, twin if overflows else None)
    measured = metrics.measure(got, expected)
    if of_twin is None and twin is not None:
        of_twin = metrics.measure(twin, expected)
    allowed = limits(rule, expected, of_twin, tolerance)
    if strange is not None:
        return Verdict(measured, allowed.rel_l2, strange[0], of_twin, metrics.element(got, expected, strange[1]))
    fault = _fault(measured, allowed, rule, of_twin, tolerance, quantized)
    bad = _first_bad(got, expected, measured, allowed) if fault else None
    return Verdict(measured, allowed.rel_l2, fault, of_twin, bad)


def _exact(got: NDArray[Any], expected: NDArray[Any], twin: NDArray[Any] | None) -> Verdict:
    differs = got != expected
    off = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    norm = metrics.norm(expected.astype(np.float64)) or 1.0
    errors = Errors(expected.size, float(off.max(initial=0.0)), NAN, metrics.norm(off) / norm)
    wrong = differs if twin is None else differs & ((twin == expected) | (got != twin))
    if not wrong.any():
        return Verdict(errors, 0.0)
    bad = metrics.element(got, expected, metrics.first(wrong))
    return Verdict(errors, 0.0, f"{int(wrong.sum())} of {expected.size} elements differ", None, bad)


def _non_finite(got: NDArray[Any], expected: NDArray[Any], twin: NDArray[Any] | None) -> tuple[str, int] | None:
    """What is wrong about NaN and Inf, and where first; None if both have them in the same places."""
    a, b = got.astype(np.float64), expected.astype(np.float64)
    wrong = _kind(a) != _kind(b)
    if twin is not None:
        wrong &= _kind(a) != _kind(twin.astype(np.float64))
    if not wrong.any():
        return None
    new = wrong & ~np.isfinite(a)
    place = metrics.first(new if new.any() else wrong)
    if new.any():
        return f"{int(new.sum())} of {b.size} elements are NaN or Inf where the reference is not", place
    return f"{int(wrong.sum())} of {b.size} elements are finite where the reference is NaN or Inf", place


def _kind(array: NDArray[Any]) -> NDArray[Any]:
    """0 of a number, 1 of NaN, 2 of Inf, 3 of -Inf."""
    kinds: NDArray[Any] = np.isnan(array) + 2 * np.isposinf(array) + 3 * np.isneginf(array)
    return kinds


def _fault(
    errors: Errors, allowed: Limits, rule: Rule, twin: Errors | None, tolerance: float | None, quantized: bool
) -> str:
    """The first check that fails, in words."""
    if quantized and errors.max_abs > 1:
        return f"off by {errors.max_abs:g} quantization steps"
    if errors.rel_l2 > allowed.rel_l2:
        how = "--tolerance" if tolerance is not None else describe(rule, twin)
        return f"relative L2 {errors.rel_l2:.2g} > {allowed.rel_l2:.2g} ({how})"
    if errors.max_abs > allowed.peak and not quantized:
        return f"largest error {errors.max_abs:.2g} > {allowed.peak:.2g}"
    worst = errors.channel
    if worst is not None and worst.rel_l2 > allowed.slice and errors.max_abs > TINY and not quantized:
        return f"index {worst.index} of axis {worst.axis}: relative L2 {worst.rel_l2:.2g} > {allowed.slice:.2g}"
    for name, (low, _) in errors.bias.items():
        if low > allowed.bias.get(name, math.inf):
            return f"systematic error by {name}: relative L2 {low:.2g} > {allowed.bias[name]:.2g}"
    return ""


def describe(rule: Rule, twin: Errors | None) -> str:
    """The primary rule in a few words."""
    capped = f", at most {rule.most:g}" if twin and TIMES * twin.rel_l2 > rule.most else ""
    return f"{f'{TIMES:g} x twin {twin.rel_l2:.2g} + ' if twin else ''}{rule.floor:g}{capped}, {rule.name}"


def _first_bad(got: NDArray[Any], expected: NDArray[Any], errors: Errors, allowed: Limits) -> Element:
    """The first element whose error is beyond what single elements may have, or half the largest where none is."""
    off = np.nan_to_num(np.abs(got.astype(np.float64) - expected.astype(np.float64)), nan=0.0, posinf=0.0)
    return metrics.element(got, expected, metrics.first(off >= min(allowed.peak, errors.max_abs / 2)))


def in_words(rule: Rule, cost: float | None = None) -> list[str]:
    """The rules as they apply, for a report. cost: that a conversion may have."""
    of_conversion = [] if cost is None else [f"converted model: relative L2 <= {cost:g}"]
    return [
        f"relative L2 <= {TIMES:g} x twin + {rule.floor:g} (1 + {FEW:g} / sqrt(elements)), at most {rule.most:g}",
        f"worst slice along any axis <= {SLICE_TIMES:g} x twin + {SLICE * rule.floor:g}",
        f"largest error <= {PEAK_TIMES:g} x twin + {PEAK * rule.floor:g} x largest element",
        f"systematic error, by value and by index along any axis <= {TIMES:g} x twin + {rule.bias:g}",
        "no error of a known kind below that: GELU by tanh for erf, another epsilon",
        "NaN and Inf where the reference has them; integers and booleans equal; quantized ones at most a step off",
        *of_conversion,
        f"floors: {rule.name}, {rule.origin}",
    ]
