"""DequantizeGeluQuantize: GELU between int8 tensors, as quantized networks have it, in one pass over memory."""

from __future__ import annotations

import typing
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from trtconvert.plugins import references
from trtconvert.plugins.forms import gelu, not_a_gelu
from trtconvert.plugins.quantized import not_a_scale, quantize, quantized

from trtconvert import kernels
from trtconvert.launch import Launch, Size, Tensor, ceil_div, minimum
from trtconvert.op import Op, case
from trtconvert.pattern import Attr, Builder, Expr

MOST_BLOCKS = 1024  # about two rounds of what fits a large GPU at once: each block fills in a table first
FULL = 1 << 22  # elements that keep a large GPU busy with four loads a thread


class DequantizeGeluQuantize(Op):
    """y = saturate(round(GELU(x * x_scale) / y_scale)), to nearest even, within -128 and 127.

    x, y [...] int8; scales above 0. approximate: "none" (erf) or "tanh".
    Source: ONNX DequantizeLinear, Gelu, QuantizeLinear (opset 20).
    """

    x_scale: float = 1.0
    y_scale: float = 1.0
    approximate: str = "none"
    pattern = "dequantize-gelu-quantize"
    dtypes = ("int8",)
    landmarks = ("DequantizeLinear",)
    source = kernels.read("dequantize_gelu_quantize.cu")
    cases = (
        case((197, 3072), x_scale=0.05, y_scale=0.025),
        case((2, 7, 193), x_scale=0.03, y_scale=0.03, approximate="tanh"),
        case((1,), x_scale=0.1, y_scale=0.1),
        case((15,), x_scale=2.0, y_scale=1.0),
        case((3, 16391), x_scale=0.01, y_scale=0.0025),
        case((5, 1000003), x_scale=0.07, y_scale=0.05),
        case((0, 64)),
        case((256, 1), x_scale=1e-6, y_scale=1e-8),
        case((256, 2), x_scale=100.0, y_scale=1e-3, approximate="tanh"),
    )

    def patterns(self, op: Builder, x: Expr) -> Iterator[Expr]:
        x_scale, y_scale = typing.cast(Attr, self.x_scale), typing.cast(Attr, self.y_scale)  # symbols, in patterns
        yield quantized(op, gelu(op, op.dequantize(x, x_scale)), y_scale)

    def accepts(self, x: Tensor) -> str | None:
        scales = not_a_scale("x_scale", self.x_scale) or not_a_scale("y_scale", self.y_scale)
        return scales or not_a_gelu(self.approximate)

    def output(self, x: Tensor) -> Tensor:
        return x

    def reference(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return quantize(references.gelu(x * self.x_scale, self.approximate), self.y_scale)

    def launch(self, x: Tensor, y: Tensor) -> Iterator[Launch]:
        ways = [(512, 4), (256, 4), (256, 1)]
        if isinstance(x.size, int) and x.size < FULL:  # more blocks, so that every multiprocessor has one
            ways.reverse()
        for threads, loads in ways:
            blocks: Size = minimum(ceil_div(x.size, threads * loads * 16), MOST_BLOCKS)
            defines = (("THREADS", str(threads)), ("LOADS", str(loads)), ("TANH", str(int(self.approximate == "tanh"))))
            args = (x, y, x.size, self.x_scale, self.y_scale)
            yield Launch("dequantize_gelu_quantize", (blocks, 1, 1), (threads, 1, 1), args, defines=defines)
