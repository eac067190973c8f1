"""LayerNormGelu: layer normalisation and GELU in one pass over memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from trtconvert.plugins import references
from trtconvert.plugins.forms import biased_gelu, gelu, not_a_gelu
from trtconvert.plugins.layer_norm import LayerNorm
from trtconvert.plugins.normalized import Normalized

from trtconvert import kernels
from trtconvert.launch import Launch, Tensor
from trtconvert.op import case
from trtconvert.pattern import Builder, Expr


class LayerNormGelu(LayerNorm):
    """y = GELU((x - mean(x)) / sqrt(var(x) + epsilon) * scale + bias), mean and biased variance over `axis`.

    x, scale, bias, axis: see LayerNorm; y T. approximate: "none" (erf) or "tanh".
    Source: ONNX LayerNormalization (opset 17) and Gelu (opset 20).
    """

    approximate: str = "none"
    pattern = "layernorm-gelu"
    source = kernels.read("layer_norm_gelu.cu")
    cases = (
        case((197, 768), (768,), (768,)),
        case((2, 7, 192), (192,), (192,), approximate="tanh"),
        case((3, 5, 33), (33,), (33,), epsilon=1e-12),
        case((1, 1), (1,), (1,)),
        case((5, 4100), (4100,), (4100,)),
        case((2, 40001), (40001,), (40001,)),
        case((0, 64), (64,), (64,)),
        case((2, 64, 16, 16), (64,), (64,), axis=1, epsilon=1e-6),
        case((3, 31, 17), (31,), (31,), axis=1, approximate="tanh"),
        case((1, 512, 99), (512,), (512,), axis=1),
        case((2, 1300, 5), (1300,), (1300,), axis=1),
        case((4, 48), (48,), (48,), axis=1),
        case((3, 5, 24), (5, 24), (5, 24), axis=-2),
        case((2, 6, 7, 9), (6, 7, 9), (6, 7, 9), axis=-3, approximate="tanh"),
    )

    def patterns(self, op: Builder, x: Expr, scale: Expr, bias: Expr) -> Iterator[Expr]:
        norm, moved, folded = self.norms(op, x, scale, bias)
        _, shift = op.folded(scale, bias)
        yield gelu(op, folded)
        yield gelu(op, moved)
        yield gelu(op, op.rearranged(norm))  # GELU is elementwise: it moves before any Transpose or Reshape
        yield biased_gelu(op, norm, shift)

    def accepts(self, x: Tensor, scale: Tensor, bias: Tensor) -> str | None:
        return super().accepts(x, scale, bias) or not_a_gelu(self.approximate)

    def output(self, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        return x

    def reference(
        self, x: NDArray[np.float64], scale: NDArray[np.float64], bias: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        return references.gelu(references.layer_norm(x, scale, bias, self.axis, self.epsilon), self.approximate)

    def launch(self, x: Tensor, scale: Tensor, bias: Tensor, y: Tensor) -> Iterator[Launch]:
        return Normalized(x, scale, bias, y, self.axis, self.epsilon, self.approximate).launches()
