"""What the specifications of several ops share: numpy, float64."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_erf = np.frompyfunc(math.erf, 1, 1)


def layer_norm(x: Array, scale: Array, bias: Array, axis: int, epsilon: float) -> Array:
    """(x - mean) / sqrt(var + epsilon) * scale + bias, biased variance; axis -k: the last k axes, 1: that one alone."""
    axes = tuple(range(axis, 0)) if axis < 0 else (axis,)
    if axis > 0:
        scale, bias = (v.reshape([-1] + [1] * (x.ndim - 1 - axis)) for v in (scale, bias))
    d = x - x.mean(axes, keepdims=True)
    return np.asarray(d / np.sqrt((d * d).mean(axes, keepdims=True) + epsilon) * scale + bias)


def gelu(x: Array, approximate: str) -> Array:
    """Gaussian error linear unit. approximate: "none" (erf) or "tanh", as ONNX Gelu has it."""
    if approximate == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + _erf(x / math.sqrt(2)).astype(np.float64)))
