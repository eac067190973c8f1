"""What several ops share: sub-expressions in the spellings that exporters write, and why attributes and inputs are refused."""

from __future__ import annotations

import math
from collections.abc import Iterator

from trtconvert.launch import Tensor
from trtconvert.pattern import Anything, Attr, Builder, Expr


def gelu(op: Builder, x: Expr) -> Expr:
    """Gaussian error linear unit; gives the attribute `approximate`: "none" (erf) or "tanh".

    Source: ONNX Gelu, opset 20; Hendrycks and Gimpel, arXiv:1606.08415; com.microsoft Gelu and FastGelu of onnxruntime.
    """
    erf = op.Erf(x / math.sqrt(2))
    tanh, logistic = op.Tanh(_argument(op, x, 1)), op.Sigmoid(_argument(op, x, 2))
    spelled_erf = (*_halves(x, erf), 0.5 * x * (1 - op.Erf(-x / math.sqrt(2))))
    return op.either(
        op.given(op.either(op.Gelu(x, approximate="none"), *spelled_erf, op.contrib("Gelu", x)), approximate="none"),
        op.given(
            op.either(op.Gelu(x, approximate="tanh"), *_halves(x, tanh), x * logistic, op.contrib("FastGelu", x)),
            approximate="tanh",
        ),
        name="a GELU",
    )


def not_a_gelu(approximate: str) -> str | None:
    """Why the value of `approximate` names no GELU; None if it does."""
    return None if approximate in ("none", "tanh") else f'approximate is {approximate!r}; it takes "none" or "tanh"'


def not_an_epsilon(epsilon: float) -> str | None:
    """Why the number is no epsilon; None if it is one."""
    good = epsilon >= 0 and math.isfinite(epsilon)
    return None if good else f"epsilon is {epsilon}; it takes a finite number, 0 or above"


def not_of_channels(x: Tensor, axis: int, scale: Tensor, bias: Tensor) -> str | None:
    """Why scale and bias are not one value, of x's dtype, for each of its channels along `axis`; None if they are."""
    channels = x.shape[axis]
    for name, tensor in (("scale", scale), ("bias", bias)):
        if tensor.dtype != x.dtype:
            return f"{name} is {tensor.dtype}, x is {x.dtype}; it takes one dtype for both"
        if tensor.rank != 1 or not isinstance(tensor.shape[0], int):
            return f"{name} has shape {list(map(str, tensor.shape))}; it takes one known number of channels"
        if isinstance(channels, int) and tensor.shape[0] != channels:
            return f"{name} has {tensor.shape[0]} values, x has {channels} channels"
    return None


def _argument(op: Builder, x: Expr, times: int) -> Expr:
    """times sqrt(2 / pi) (x + 0.044715 x^3), multiplied out or not."""
    root, cubic = times * math.sqrt(2 / math.pi), 0.044715
    return op.either(
        root * (x + cubic * x * x * x),
        root * x * (1 + cubic * x * x),
        x * (root + root * cubic * x * x),
        root * x + root * cubic * x * x * x,
        name="the argument of a tanh GELU",
    )


def biased_gelu(op: Builder, x: Expr, bias: Expr) -> Expr:
    """GELU(x + bias) as one node. Source: com.microsoft BiasGelu and FastGelu of onnxruntime."""
    return op.either(
        op.given(op.contrib("BiasGelu", x, bias), approximate="none"),
        op.given(op.contrib("FastGelu", x, bias), approximate="tanh"),
    )


def _halves(x: Expr, s: Expr) -> Iterator[Expr]:
    """x times half of 1 + s, multiplied out or not."""
    yield 0.5 * x * (1 + s)
    yield 0.5 * x + 0.5 * x * s
    yield x * (0.5 + 0.5 * s)


def layer_norm(op: Builder, x: Expr, scale: Expr, bias: Expr, epsilon: Attr, axis: Attr | int) -> Expr:
    """(x - mean) / sqrt(var + epsilon) * scale + bias over `axis` (see Builder.mean); scale, bias or both may be missing.

    Source: ONNX LayerNormalization, opset 17; Ba et al., arXiv:1607.06450; channel-first: LayerNorm2d of
    segment-anything; the batch-norm spelling: Keras and tf.nn.batch_normalization; E[x^2] - E[x]^2: flax.
    """
    g, b = op.per_channel(scale, axis), op.per_channel(bias, axis)
    mean, d, std = _moments(op, x, epsilon, axis)
    nodes = [
        node
        for make in (op.LayerNormalization, lambda *i, **a: op.contrib("LayerNormalization", *i, **a))
        for node in (make(x, g, b, axis=axis, epsilon=epsilon), make(x, g, axis=axis, epsilon=epsilon))
    ]
    return op.either(
        *nodes,
        d / std * g + b,
        d / std * g,
        d / std + b,
        d / std,
        x * (g / std) + (b - mean * (g / std)),
        x * (g / std) - mean * (g / std),
        x / std + (b - mean / std),
        x / std - mean / std,
        *_by_other_norms(op, x, scale, bias, epsilon, axis),
        name="a LayerNorm",
    )


def _moments(op: Builder, x: Expr, epsilon: Attr, axis: Attr | int) -> tuple[Expr, Expr, Expr]:
    """Mean, deviation from it, and sqrt(var + epsilon) with the biased variance."""
    mean = op.mean(x, axis)
    d, e = x - mean, mean - x
    moments = op.mean(x * x, axis) - mean * mean
    squares = op.mean(d * d, axis), op.mean(e * e, axis), op.mean(d * x, axis)
    var = op.either(*squares, moments, op.Max(moments, 0), op.Clip(moments, 0), op.Relu(moments))
    return mean, d, op.Sqrt(op.either(var + epsilon, op.given(var, epsilon=0.0)))


def _by_other_norms(op: Builder, x: Expr, scale: Expr, bias: Expr, epsilon: Attr, axis: Attr | int) -> Iterator[Expr]:
    """GroupNorm of one group, which normalises all axes but the first; and Keras' BatchNormalization that is training, of
    rows put where it has its channels. Source: torch.nn.GroupNorm as PyTorch exports it; keras 2 LayerNormalization."""
    g, b = op.per_channel(scale, axis), op.per_channel(bias, axis)
    one_group = op.reshaped(x, lambda shape: (shape[0], 1, math.prod(shape[1:])))
    group = op.given(
        op.reshaped_like(op.InstanceNormalization(one_group, 1, 0, epsilon=epsilon), x), axis=lambda rank: 1 - rank
    )
    channels = op.reshaped(x, lambda shape: (1, math.prod(shape[:-1]), shape[-1], 1))
    any_mean, any_var = Anything(), Anything()
    batch = op.BatchNormalization(channels, 1, 0, any_mean, any_var, epsilon=epsilon, training_mode=1)
    rows = op.given(op.reshaped_like(batch, x), axis=-1)
    for norm in (group, rows):
        yield from (norm * g + b, norm * g, norm + b)
    whole = op.GroupNormalization(x, op.vector(scale, 1), op.vector(bias, 1), num_groups=1, epsilon=epsilon)
    yield op.given(whole, axis=lambda rank: 1 - rank)


def group_norm(op: Builder, x: Expr, scale: Expr, bias: Expr, num_groups: Attr, epsilon: Attr) -> Expr:
    """(x - mean) / sqrt(var + epsilon) * scale + bias, mean and biased variance over the channels of a group and all positions;
    x [N, C, ...], groups of C / num_groups neighbouring channels, scale and bias [C] or missing.

    Source: ONNX GroupNormalization, opset 21 and 18 (scale and bias a group); Wu and He, arXiv:1803.08494; torch.nn.GroupNorm
    as PyTorch exports it, and written out; com.microsoft GroupNorm.
    """
    g, b = op.per_channel(scale, 1), op.per_channel(bias, 1)
    grouped = op.grouped(x, num_groups)
    ones, zeros = op.filled(1.0, num_groups), op.filled(0.0, num_groups)
    spelled: list[Expr] = [op.InstanceNormalization(grouped, ones, zeros, epsilon=epsilon)]
    for rest in (1, 3):  # [N, groups, all] and [N, groups, C / groups, H, W]
        parts = op.grouped(x, num_groups, rest)
        mean, d, std = _moments(op, parts, epsilon, -rest)
        spelled += [d / std, parts / std - mean / std]
    norm = op.reshaped_like(op.either(*spelled, name="the norm of a group"), x)
    along = [op.vector(v, 1, groups=num_groups) for v in (scale, bias)]
    return op.either(
        norm * g + b,
        norm * g,
        norm + b,
        norm,
        op.GroupNormalization(x, *along, num_groups=num_groups, epsilon=epsilon),
        contrib_group_norm(op, x, scale, bias, num_groups, epsilon, activation=0),
        name="a GroupNorm",
    )


def contrib_group_norm(
    op: Builder, x: Expr, scale: Expr, bias: Expr, num_groups: Attr, epsilon: Attr, activation: int
) -> Expr:
    """GroupNorm, activation 0, or GroupNorm and SiLU, activation 1, between Transposes. Source: com.microsoft GroupNorm."""
    inputs = op.move_axis(x, 1, -1), op.vector(scale, 1), op.vector(bias, 1)
    values = {"groups": num_groups, "epsilon": epsilon, "activation": activation, "channels_last": 1}
    return op.move_axis(op.contrib("GroupNorm", *inputs, **values), -1, 1)


def silu(op: Builder, x: Expr) -> Expr:
    """x * sigmoid(x).

    Source: Elfwing et al., arXiv:1702.03118; ONNX Swish (opset 24) with alpha 1; com.microsoft QuickGelu with alpha 1.
    """
    return op.either(
        x * op.Sigmoid(x),
        op.Swish(x, alpha=1.0),
        op.contrib("QuickGelu", x, alpha=1.0),
        x / (1 + op.Exp(-x)),
        name="a SiLU",
    )


def response_norm(op: Builder, x: Expr, epsilon: Attr, axis: int) -> Expr:
    """g / (mean of g over the channels + epsilon), g the L2 norm over all positions; the channels are the last axis (-1) or
    axis 1. Source: GRN of ConvNeXt V2, arXiv:2301.00808; timm's GlobalResponseNorm, transformers' ConvNextV2GRN."""

    def positions(rank: int) -> tuple[int, ...]:
        return tuple(range(1, rank - 1)) if axis == -1 else tuple(range(2, rank))

    g = op.either(
        op.ReduceL2(x, axes=positions, keepdims=1),
        op.Sqrt(op.ReduceSum(x * x, axes=positions, keepdims=1)),
        op.Sqrt(op.ReduceSumSquare(x, axes=positions, keepdims=1)),
        name="the norm over all positions",
    )
    return g / (op.mean(g, axis) + epsilon)
