"""Sub-expressions that several ops share, each in the spellings that exporters write."""

from __future__ import annotations

import math

from trtconvert.pattern import Attr, Builder, Expr


def gelu(op: Builder, x: Expr, approximate: str) -> Expr:
    """Gaussian error linear unit. Source: ONNX Gelu, opset 20; Hendrycks and Gimpel, arXiv:1606.08415."""
    node = op.Gelu(x, approximate=approximate)
    if approximate == "tanh":
        inner = op.either(
            math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x), math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)
        )
        return op.either(node, 0.5 * x * (1 + op.Tanh(inner)))
    erf = op.Erf(x / math.sqrt(2))
    return op.either(node, 0.5 * x * (1 + erf), 0.5 * x + 0.5 * x * erf, x * (0.5 + 0.5 * erf))


def layer_norm(op: Builder, x: Expr, scale: Expr, bias: Expr, epsilon: Attr, axis: int) -> Expr:
    """(x - mean) / sqrt(var + epsilon) * scale + bias over one axis; scale, bias or both may be missing.

    Source: ONNX LayerNormalization, opset 17; Ba et al., arXiv:1607.06450; channel-first: LayerNorm2d of
    segment-anything; the batch-norm spelling: Keras and tf.nn.batch_normalization.
    """
    g, b = op.per_channel(scale, axis), op.per_channel(bias, axis)
    mean = _mean(op, x, axis)
    d = x - mean
    rstd = 1 / op.Sqrt(_mean(op, d * d, axis) + epsilon)
    node = (
        op.LayerNormalization(x, g, b, axis=-1, epsilon=epsilon),
        op.LayerNormalization(x, g, axis=-1, epsilon=epsilon),
    )
    batch_norm = x * (rstd * g) + (b - mean * (rstd * g))
    spelled = (d * rstd * g + b, d * rstd * g, d * rstd + b, d * rstd, batch_norm)
    return op.either(*node, *spelled) if axis == -1 else op.either(*spelled)


def _mean(op: Builder, x: Expr, axis: int) -> Expr:
    mean = op.ReduceMean(x, axes=(axis,), keepdims=1)
    # tf2onnx writes the last-axis mean of a rank-3 tensor as GlobalAveragePool.
    return op.either(mean, op.GlobalAveragePool(x, rank=3)) if axis == -1 else mean
