"""What the ops that begin with a layer normalisation have in common."""

from __future__ import annotations

import typing
from types import MappingProxyType

from trtconvert.plugins.forms import layer_norm, not_an_epsilon

from trtconvert.launch import Dim, Size, Tensor
from trtconvert.op import Op
from trtconvert.pattern import Attr, Builder, Expr


class LayerNorm(Op):
    """Base of ops on (x - mean(x)) / sqrt(var(x) + epsilon) * scale + bias, mean and biased variance over `axis`.

    axis -1, -2, ...: the last one, two, ... axes, as ONNX LayerNormalization has it; 1: the channels of [N, C, ...] alone.
    x T; scale, bias T, of the shape of the normalised axes; T in float32, float16, bfloat16, arithmetic in float32.
    Source: ONNX LayerNormalization (opset 17).
    """

    epsilon: float = 1e-5
    axis: int = -1
    defaults = MappingProxyType({"scale": 1.0, "bias": 0.0})
    channels_last = True
    landmarks = (
        "LayerNormalization",
        "ReduceMean",
        "GlobalAveragePool",
        "GroupNormalization",
        "InstanceNormalization",
        "BatchNormalization",
    )

    def norms(self, op: Builder, x: Expr, scale: Expr, bias: Expr) -> tuple[Expr, Expr, Expr]:
        """The normalisation; over axis 1 between two Transposes; and with constants behind it that go into scale and
        bias."""
        epsilon, axis = typing.cast(Attr, self.epsilon), typing.cast(Attr, self.axis)  # symbols, in patterns
        norm = layer_norm(op, x, scale, bias, epsilon, axis)
        moved = op.move_axis(layer_norm(op, op.move_axis(x, 1, -1), scale, bias, epsilon, -1), -1, 1)
        factor, shift = op.folded(scale, bias)
        folded = op.either(norm, norm + shift, norm * factor, norm * factor + shift, name="a LayerNorm")
        return norm, op.given(moved, axis=1), folded

    def accepts(self, x: Tensor, scale: Tensor, bias: Tensor) -> str | None:
        if self.axis >= 0 and (self.axis != 1 or x.rank < 2):
            return f"axis {self.axis} of a tensor of rank {x.rank}; it takes the last axes, or axis 1 alone"
        if self.axis < -x.rank:
            return f"axis {self.axis} of a tensor of rank {x.rank}"
        wanted = x.shape[self.axis :] if self.axis < 0 else (x.shape[self.axis],)
        for name, tensor in (("scale", scale), ("bias", bias)):
            if tensor.dtype != x.dtype:
                return f"{name} is {tensor.dtype}, x is {x.dtype}; it takes one dtype for both"
            if not _same(tensor.shape, wanted):
                return f"{name} has shape {list(map(str, tensor.shape))}; it takes {list(map(str, wanted))}"
        return not_an_epsilon(self.epsilon)


def _same(one: tuple[Size, ...], other: tuple[Size, ...]) -> bool:
    """Whether the shapes agree, as far as they are known."""
    known = (isinstance(a, Dim) or isinstance(b, Dim) or a == b for a, b in zip(one, other, strict=False))
    return len(one) == len(other) and all(known)
