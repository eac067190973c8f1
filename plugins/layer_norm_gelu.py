"""LayerNormGelu: layer normalisation and GELU in one pass over memory."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from trtconvert.plugins.forms import biased_gelu, gelu, layer_norm
from trtconvert.plugins.normalized import Normalized

from trtconvert import kernels
from trtconvert.launch import Dim, Launch, Size, Tensor
from trtconvert.op import Op, case
from trtconvert.pattern import Attr, Builder, Expr

_erf = np.frompyfunc(math.erf, 1, 1)


class LayerNormGelu(Op):
    """y = GELU((x - mean(x)) / sqrt(var(x) + epsilon) * scale + bias), mean and biased variance over `axis`.

    axis -1, -2, ...: the last one, two, ... axes, as ONNX LayerNormalization has it; 1: the channels of [N, C, ...] alone.
    x, y T; scale, bias T, of the shape of the normalised axes; T in float32, float16, bfloat16, arithmetic in float32.
    approximate: "none" (erf) or "tanh". Source: ONNX LayerNormalization (opset 17) and Gelu (opset 20).
    """

    epsilon: float = 1e-5
    axis: int = -1
    approximate: str = "none"
    pattern = "layernorm-gelu"
    defaults = MappingProxyType({"scale": 1.0, "bias": 0.0})
    landmarks = (
        "LayerNormalization",
        "ReduceMean",
        "GlobalAveragePool",
        "GroupNormalization",
        "InstanceNormalization",
        "BatchNormalization",
    )
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
        epsilon, axis = (
            typing.cast(Attr, self.epsilon),
            typing.cast(Attr, self.axis),
        )  # in patterns, attributes are symbols
        norm = layer_norm(op, x, scale, bias, epsilon, axis)
        moved = op.move_axis(layer_norm(op, op.move_axis(x, 1, -1), scale, bias, epsilon, -1), -1, 1)
        factor, shift = op.folded(scale, bias)
        yield gelu(op, op.either(norm, norm + shift, norm * factor, norm * factor + shift, name="a LayerNorm"))
        yield gelu(op, op.given(moved, axis=1))
        yield gelu(op, op.rearranged(norm))  # GELU is elementwise: it moves before any Transpose or Reshape
        yield biased_gelu(op, norm, shift)

    def accepts(self, x: Tensor, scale: Tensor, bias: Tensor) -> str | None:
        if self.axis >= 0 and (self.axis != 1 or x.rank < 2):
            return f"axis {self.axis} of a tensor of rank {x.rank}; it takes the last axes, or axis 1 alone"
        if self.axis < -x.rank:
            return f"axis {self.axis} of a tensor of rank {x.rank}"
        if self.approximate not in ("none", "tanh"):
            return f'approximate is {self.approximate!r}; it takes "none" or "tanh"'
        if not (self.epsilon >= 0 and math.isfinite(self.epsilon)):
            return f"epsilon is {self.epsilon}; it takes a finite number, 0 or above"
        wanted = self._normalized(x)
        for name, tensor in (("scale", scale), ("bias", bias)):
            if tensor.dtype != x.dtype:
                return f"{name} is {tensor.dtype}, x is {x.dtype}; it takes one dtype for both"
            fits = [
                isinstance(w, Dim) or isinstance(t, Dim) or w == t for w, t in zip(wanted, tensor.shape, strict=False)
            ]
            if tensor.rank != len(wanted) or not all(fits):
                return f"{name} has shape {list(map(str, tensor.shape))}; it takes {list(map(str, wanted))}"
        return None

    def _normalized(self, x: Tensor) -> tuple[Size, ...]:
        """Shape of the normalised axes."""
        return x.shape[self.axis :] if self.axis < 0 else (x.shape[self.axis],)

    def output(self, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        return x

    def reference(
        self, x: NDArray[np.float64], scale: NDArray[np.float64], bias: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        axes = tuple(range(self.axis, 0)) if self.axis < 0 else (self.axis,)
        if self.axis > 0:
            scale, bias = (v.reshape([-1] + [1] * (x.ndim - 1 - self.axis)) for v in (scale, bias))
        d = x - x.mean(axes, keepdims=True)
        z = d / np.sqrt((d * d).mean(axes, keepdims=True) + self.epsilon) * scale + bias
        if self.approximate == "tanh":
            return np.asarray(0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))))
        return np.asarray(0.5 * z * (1 + _erf(z / math.sqrt(2)).astype(np.float64)))

    def launch(self, x: Tensor, scale: Tensor, bias: Tensor, y: Tensor) -> Iterator[Launch]:
        return Normalized(x, scale, bias, y, self.axis, self.epsilon, self.approximate).launches()
