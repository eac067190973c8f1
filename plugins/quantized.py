"""What the ops with int8 tensors share: a base, the pattern, the scales that they take, and the specification."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from trtconvert.plugins.layer_norm import LayerNorm

from trtconvert.launch import Tensor
from trtconvert.pattern import Attr, Builder, Expr

_LEAST = float(np.finfo(np.float32).tiny)  # below it the kernels' reciprocal would not be exact, or infinite


class ToInt8(LayerNorm):
    """Base of ops that begin with a layer normalisation and end in QuantizeLinear: y int8, symmetric, one scale above 0."""

    y_scale: float = 1.0

    def accepts(self, x: Tensor, scale: Tensor, bias: Tensor) -> str | None:
        return super().accepts(x, scale, bias) or not_a_scale("y_scale", self.y_scale)

    def output(self, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        return Tensor("int8", x.shape)


def quantized(op: Builder, y: Expr, scale: Attr) -> Expr:
    """y as int8. QuantizeLinear is elementwise: it moves before any Transpose or Reshape."""
    return op.quantize(op.either(y, op.rearranged(y)), scale)


def not_a_scale(name: str, scale: float) -> str | None:
    """Why the number is no scale; None if it is one."""
    good = _LEAST <= scale < math.inf
    return None if good else f"{name} is {scale:g}; it takes a finite number, {_LEAST:.2g} or above"


def quantize(y: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """y / scale, to nearest even, within -128 and 127. Source: ONNX QuantizeLinear (opset 21), int8, zero point 0."""
    return np.asarray(np.clip(np.rint(y / scale), -128, 127))
