"""How far a kernel's or a function body's result may lie from the float64 specification."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Relative L2 of float results, by dtype: rounding of the output, and of the inputs where a body computes in them.
KERNEL_TOLERANCE = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}
BODY_TOLERANCE = 1e-5
# Share of int8 results that may be one step off, because the quotient lies between two steps; by the dtype of the data,
# which decides how exact the kernel's functions are.
STEPS_OFF = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 1e-2, "int8": 1e-3}


def difference(got: NDArray[Any], want: NDArray[Any]) -> float:
    """Relative L2 of floats. Of integers the share that differs, infinite if int8 does by more than one step. Infinite if
    the shapes differ."""
    a, b = np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64)
    if a.shape != b.shape or a.size == 0:
        return 0.0 if a.shape == b.shape else math.inf
    if got.dtype.kind not in "iub":
        return float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1.0))
    if got.dtype == np.int8 and np.abs(a - b).max() > 1:
        return math.inf
    return float((a != b).mean())


def allowed(got: NDArray[Any], dtype: str, tolerance: float | None = None) -> float:
    """The largest `difference` that is good: of integers other than int8 none; of int8 a single element in any case.

    dtype: of the data. tolerance: relative L2 of float results, instead of a kernel's.
    """
    if got.dtype == np.int8:
        return max(STEPS_OFF.get(dtype, 0.0), 1 / max(got.size, 1))
    if got.dtype.kind in "iub":
        return 0.0
    return KERNEL_TOLERANCE[dtype] if tolerance is None else tolerance
