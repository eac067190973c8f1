"""LayerNormGelu: layer normalisation and GELU in one pass over memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from trtconvert.plugins.forms import gelu, layer_norm

from trtconvert import kernels
from trtconvert.launch import Launch, Size, Tensor, ceil_div, product
from trtconvert.op import Op, case
from trtconvert.pattern import Attr, Builder, Expr, Pattern

_erf = np.frompyfunc(math.erf, 1, 1)
VALUES = 32  # of a row that a thread keeps in registers


class LayerNormGelu(Op):
    """y = GELU((x - mean(x)) / sqrt(var(x) + epsilon) * scale + bias), mean and biased variance over `axis`.

    x, y [..., C] (axis -1) or [N, C, ...] (axis 1) T; scale, bias [C] T; T in float32, float16, bfloat16, arithmetic in
    float32. approximate: "none" (erf) or "tanh". Source: ONNX LayerNormalization (opset 17) and Gelu (opset 20).
    """

    epsilon: float = 1e-5
    axis: int = -1
    approximate: str = "none"
    pattern = "layernorm-gelu"
    defaults = MappingProxyType({"scale": 1.0, "bias": 0.0})
    landmarks = ("LayerNormalization", "ReduceMean", "GlobalAveragePool")
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
    )

    def patterns(self, op: Builder, x: Expr, scale: Expr, bias: Expr) -> Iterator[Expr | Pattern]:
        epsilon: Attr = self.epsilon  # type: ignore[assignment]  # while matching, attributes are symbols
        last = layer_norm(op, x, scale, bias, epsilon, axis=-1)
        first = layer_norm(op, x, scale, bias, epsilon, axis=1)
        moved = layer_norm(op, op.move_axis(x, 1, -1), scale, bias, epsilon, axis=-1)
        for approximate in ("none", "tanh"):
            yield op.pattern(gelu(op, last, approximate), axis=-1, approximate=approximate)
            yield op.pattern(gelu(op, op.move_axis(moved, -1, 1), approximate), axis=1, approximate=approximate)
            yield op.pattern(gelu(op, first, approximate), axis=1, approximate=approximate)
            # GELU is elementwise: it moves before any other Transpose.
            yield op.pattern(
                gelu(op, op.Transpose(last, perm=op.any("perm")), approximate),
                after=lambda op, y, captured: op.Transpose(y, perm=captured["perm"]),
                axis=-1,
                approximate=approximate,
            )

    def accepts(self, x: Tensor, scale: Tensor, bias: Tensor) -> str | None:
        if self.axis not in (-1, 1) or x.rank < (2 if self.axis == 1 else 1):
            return f"axis {self.axis} of a tensor of rank {x.rank}; it takes the last axis (-1), or 1"
        if self.approximate not in ("none", "tanh"):
            return f'approximate is {self.approximate!r}; it takes "none" or "tanh"'
        if not (self.epsilon >= 0 and math.isfinite(self.epsilon)):
            return f"epsilon is {self.epsilon}; it takes a finite number, 0 or above"
        channels = x.shape[self.axis]
        for name, tensor in (("scale", scale), ("bias", bias)):
            if tensor.dtype != x.dtype:
                return f"{name} is {tensor.dtype}, x is {x.dtype}; it takes one dtype for both"
            if tensor.rank != 1 or (isinstance(channels, int) and tensor.shape[0] not in (channels,)):
                return f"{name} has shape {list(map(str, tensor.shape))}; it takes [{channels}], one value a channel"
        return None

    def output(self, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        return x

    def reference(
        self, x: NDArray[np.float64], scale: NDArray[np.float64], bias: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        shape = [-1] + [1] * (x.ndim - 2) if self.axis == 1 else [-1]
        d = x - x.mean(self.axis, keepdims=True)
        z = d / np.sqrt((d * d).mean(self.axis, keepdims=True) + self.epsilon) * scale.reshape(shape) + bias.reshape(
            shape
        )
        if self.approximate == "tanh":
            return np.asarray(0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))))
        return np.asarray(0.5 * z * (1 + _erf(z / math.sqrt(2)).astype(np.float64)))

    def launch(self, x: Tensor, scale: Tensor, bias: Tensor, y: Tensor) -> Launch:
        if self.axis == 1 and x.rank > 2:
            return self._planes(x, scale, bias, y)
        channels, rows = x.shape[-1], product(x.shape[:-1])
        group, known = _group(channels, (32, 128, 256, 512, 1024))
        per_block = max(1, 128 // group)
        return Launch(
            "layer_norm_gelu_rows",
            (ceil_div(rows, per_block), 1, 1),
            (group * per_block, 1, 1),
            (x, scale, bias, y, rows, channels, self.epsilon),
            defines=self._defines(0, group, known),
        )

    def _planes(self, x: Tensor, scale: Tensor, bias: Tensor, y: Tensor) -> Launch:
        channels, positions = x.shape[1], product(x.shape[2:])
        group, known = _group(channels, (8, 16, 32))
        return Launch(
            "layer_norm_gelu_planes",
            (x.shape[0] * ceil_div(positions, 32), 1, 1),
            (32, group, 1),
            (x, scale, bias, y, positions, channels, self.epsilon),
            defines=self._defines(1, group, known),
        )

    def _defines(self, planes: int, group: int, channels: int) -> tuple[tuple[str, str], ...]:
        approximate = "true" if self.approximate == "tanh" else "false"
        values = {"PLANES": planes, "GROUP": group, "CHANNELS": channels, "TANH": approximate}
        return tuple((name, str(value)) for name, value in values.items())


def _group(channels: Size, groups: tuple[int, ...]) -> tuple[int, int]:
    """Threads a row, and the channel count to compile in; 0 when it is unknown or no group holds a row in registers."""
    if isinstance(channels, int):
        for group in groups:
            if channels <= group * VALUES:
                return group, channels
    return groups[-1], 0
