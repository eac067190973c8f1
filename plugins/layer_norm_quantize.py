"""LayerNormQuantize: layer normalisation to int8 in one pass over memory."""

from __future__ import annotations

import typing
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from trtconvert.plugins import references
from trtconvert.plugins.normalized import Normalized
from trtconvert.plugins.quantized import ToInt8, quantize, quantized

from trtconvert import kernels
from trtconvert.launch import Launch, Tensor
from trtconvert.op import case
from trtconvert.pattern import Attr, Builder, Expr


class LayerNormQuantize(ToInt8):
    """y = saturate(round(((x - mean(x)) / sqrt(var(x) + epsilon) * scale + bias) / y_scale)), to nearest even, int8.

    x, scale, bias, axis: see LayerNorm; y int8, symmetric, one scale above 0 for the tensor.
    Source: ONNX LayerNormalization (opset 17) and QuantizeLinear (opset 21).
    """

    pattern = "layernorm-quantize"
    source = kernels.read("layer_norm_quantize.cu")
    cases = (
        case((197, 768), (768,), (768,), y_scale=0.04),
        case((2, 40001), (40001,), (40001,), y_scale=0.01),
        case((2, 64, 16, 16), (64,), (64,), axis=1, epsilon=1e-6, y_scale=0.03),
        case((4, 48), (48,), (48,), axis=1, y_scale=1.0),
        case((3, 5, 24), (5, 24), (5, 24), axis=-2, y_scale=0.03),
    )

    def patterns(self, op: Builder, x: Expr, scale: Expr, bias: Expr) -> Iterator[Expr]:
        _, moved, folded = self.norms(op, x, scale, bias)
        for norm in (moved, folded):
            yield quantized(op, norm, typing.cast(Attr, self.y_scale))

    def reference(
        self, x: NDArray[np.float64], scale: NDArray[np.float64], bias: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        return quantize(references.layer_norm(x, scale, bias, self.axis, self.epsilon), self.y_scale)

    def launch(self, x: Tensor, scale: Tensor, bias: Tensor, y: Tensor) -> Iterator[Launch]:
        return Normalized(x, scale, bias, y, self.axis, self.epsilon, y_scale=self.y_scale).launches()
