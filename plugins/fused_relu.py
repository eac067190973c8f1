"""FusedRelu: the smallest op there is, and the one to copy when writing your own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trtconvert import kernels
from trtconvert.launch import Launch, Tensor, ceil_div
from trtconvert.op import Op, case
from trtconvert.pattern import Builder, Expr


class FusedRelu(Op):
    """y = max(x, alpha), elementwise. x, y [...] T; T in float32, float16, bfloat16.

    Source: ONNX Max and Relu (opset 14); alpha 0 is Relu.
    """

    alpha: float = 0.0
    pattern = "fused-relu"
    opt_in = True  # TensorRT fuses a lone Relu into its neighbours by itself
    source = kernels.read("fused_relu.cu")
    cases = (case((1,)), case((3, 5, 7), alpha=0.1), case((2, 4096), alpha=-1.5), case((0, 4)))

    def patterns(self, op: Builder, x: Expr) -> Iterator[Expr]:
        yield op.Max(x, self.alpha)
        yield op.Clip(x, self.alpha)  # with a minimum only
        yield op.given(op.Relu(x), alpha=0.0)

    def output(self, x: Tensor) -> Tensor:
        return x

    def reference(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.maximum(x, self.alpha)

    def launch(self, x: Tensor, y: Tensor) -> Launch:
        per_block = 256 * (16 // np.dtype("f4" if x.dtype == "float32" else "f2").itemsize)
        return Launch("fused_relu", (ceil_div(x.size, per_block), 1, 1), (256, 1, 1), (x, y, x.size, self.alpha))
