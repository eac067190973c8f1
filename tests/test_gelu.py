"""The GELU of kernels/common.cuh: its polynomials against the formula, in float32 arithmetic as a GPU does it."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from numpy.typing import NDArray

from trtconvert import kernels

_Array = NDArray[np.float32]
_erfc = np.frompyfunc(math.erfc, 1, 1)


def _coefficients(name: str) -> list[np.float32]:
    (body,) = re.findall(rf"constexpr float {name}\[\] = {{([^}}]*)}}", kernels.read("common.cuh"))
    return [np.float32(number.strip().rstrip("f")) for number in body.split(",")]


def _fma(a: _Array, b: _Array | np.float32, c: _Array | np.float32) -> _Array:
    with np.errstate(all="ignore"):
        return (a.astype(np.float64) * b + c).astype(np.float32)


def _gelu(name: str, x: _Array) -> _Array:
    a = np.abs(x)
    first, *others = _coefficients(name)
    p = np.full_like(a, first)
    for coefficient in others:
        p = _fma(p, a, coefficient)
    phi = np.exp2(p.astype(np.float64)).astype(np.float32)
    return _fma(a, np.float32(0.5) - phi, np.float32(0.5) * x)


def _exact(x: _Array) -> NDArray[np.float64]:
    wide = x.astype(np.float64)
    return 0.5 * wide * _erfc(-wide / math.sqrt(2)).astype(np.float64)


@pytest.mark.parametrize(
    ("name", "absolute", "relative"), [("FULL", 3.4e-7, 1e-4), ("HALF", 1.4e-5, 1.4e-4), ("STEPS", 6e-5, 0.04)]
)
def test_errors_are_those_stated(name: str, absolute: float, relative: float) -> None:
    """Relative: where |y| is 1e-3 or more."""
    tiny = np.geomspace(1e-30, 1e30, 20_001)
    x = np.concatenate([np.linspace(-9, 9, 200_001), tiny, -tiny]).astype(np.float32)
    y = _exact(x)
    error, large = np.abs(_gelu(name, x) - y), np.abs(y) >= 1e-3
    assert error.max() <= absolute
    assert (error[large] / np.abs(y[large])).max() <= relative


@pytest.mark.parametrize("name", ["FULL", "HALF", "STEPS"])
def test_infinities_and_nan_are_as_in_the_formula(name: str) -> None:
    assert np.array_equal(_gelu(name, np.float32([np.inf, -np.inf, np.nan])), [np.inf, np.nan, np.nan], equal_nan=True)
