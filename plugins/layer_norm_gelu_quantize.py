"""LayerNormGeluQuantize: layer normalisation and GELU to int8 in one pass over memory."""

from __future__ import annotations

import typing
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from trtconvert.plugins.layer_norm_gelu import LayerNormGelu
from trtconvert.plugins.normalized import Normalized
from trtconvert.plugins.quantized import ToInt8, quantize, quantized

from trtconvert import kernels
from trtconvert.launch import Launch, Tensor
from trtconvert.op import case
from trtconvert.pattern import Attr, Builder, Expr


class LayerNormGeluQuantize(ToInt8, LayerNormGelu):
    """y = saturate(round(LayerNormGelu(x, scale, bias) / y_scale)), to nearest even, within -128 and 127.

    x, scale, bias, axis, approximate: see LayerNormGelu; y int8, symmetric, one scale above 0 for the tensor.
    Source: ONNX LayerNormalization (opset 17), Gelu (opset 20) and QuantizeLinear (opset 21).
    """

    pattern = "layernorm-gelu-quantize"
    source = kernels.read("layer_norm_gelu_quantize.cu")
    cases = (
        case((197, 768), (768,), (768,), y_scale=0.03),
        case((2, 7, 192), (192,), (192,), approximate="tanh", y_scale=0.03),
        case((3, 5, 33), (33,), (33,), epsilon=1e-12, y_scale=0.002),
        case((0, 64), (64,), (64,)),
        case((2, 64, 16, 16), (64,), (64,), axis=1, epsilon=1e-6, y_scale=0.03),
        case((3, 31, 17), (31,), (31,), axis=1, approximate="tanh", y_scale=0.03),
    )

    def patterns(self, op: Builder, x: Expr, scale: Expr, bias: Expr) -> Iterator[Expr]:
        for y in super().patterns(op, x, scale, bias):
            yield quantized(op, y, typing.cast(Attr, self.y_scale))

    def reference(
        self, x: NDArray[np.float64], scale: NDArray[np.float64], bias: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        return quantize(super().reference(x, scale, bias), self.y_scale)

    def launch(self, x: Tensor, scale: Tensor, bias: Tensor, y: Tensor) -> Iterator[Launch]:
        made = Normalized(x, scale, bias, y, self.axis, self.epsilon, self.approximate, self.y_scale)
        return made.launches()
