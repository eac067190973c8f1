"""GlobalResponseNorm: the normalisation inside the blocks of ConvNeXt V2."""

from __future__ import annotations

import typing
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from trtconvert.plugins.forms import not_an_epsilon, not_of_channels, response_norm

from trtconvert import kernels
from trtconvert.launch import Launch, Launches, Tensor, Work, ceil_div, maximum, minimum, product
from trtconvert.op import Op, case
from trtconvert.pattern import Attr, Builder, Expr

THREADS = 256  # of a block
BLOCKS = 1980  # that share the sums, if there is so much: fifteen for each multiprocessor of an H200
POSITIONS = 64  # of a slice, at the least
VECTORS = 16  # of channels, of 16 bytes each, that a block takes at most
KEPT = 24 << 20  # bytes of x that are still in L2 when they are read again; on an H200 16 or 32 MB are a percent slower


class GlobalResponseNorm(Op):
    """y = scale * (x * nx) + bias + x, nx = g / (mean of g over the channels + epsilon), g the L2 norm over the positions.

    axis -1: x, y [N, ..., C] T; axis 1: [N, C, ...]. scale, bias [C] T; T in float32, float16, bfloat16, arithmetic in float32.
    Source: Woo et al., ConvNeXt V2, arXiv:2301.00808, as its authors, timm and transformers write it.
    """

    epsilon: float = 1e-6
    axis: int = -1
    pattern = "global-response-norm"
    channels_last = True
    landmarks = ("ReduceL2", "ReduceSumSquare")
    source = kernels.read("global_response_norm.cu")
    cases = (
        case((2, 14, 14, 384), (384,), (384,)),
        case((1, 7, 7, 3072), (3072,), (3072,)),
        case((3, 5, 9, 40), (40,), (40,), epsilon=1e-12),
        case((2, 3, 5, 13), (13,), (13,)),
        case((2, 33, 8), (8,), (8,)),
        case((1, 1, 1, 1), (1,), (1,)),
        case((0, 4, 4, 16), (16,), (16,)),
        case((2, 64, 16, 16), (64,), (64,), axis=1),
        case((1, 300, 7, 7), (300,), (300,), axis=1),
        case((3, 5, 31, 33), (5,), (5,), axis=1, epsilon=1e-3),
    )

    def patterns(self, op: Builder, x: Expr, scale: Expr, bias: Expr) -> Iterator[Expr]:
        epsilon, axis = (
            typing.cast(Attr, self.epsilon),
            typing.cast(Attr, self.axis),
        )  # in patterns, attributes are symbols
        g, b = op.per_channel(scale, axis), op.per_channel(bias, axis)
        for channels in (-1, 1):
            nx = response_norm(op, x, epsilon, channels)
            yield op.given(op.either(x * nx * g + b + x, x * (nx * g + 1) + b), axis=channels)

    def accepts(self, x: Tensor, scale: Tensor, bias: Tensor) -> str | None:
        if self.axis not in (-1, 1) or x.rank < 3:
            return f"axis {self.axis} of a tensor of rank {x.rank}; it takes axis -1 or 1 of three dimensions or more"
        return not_an_epsilon(self.epsilon) or not_of_channels(x, self.axis, scale, bias)

    def output(self, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        return x

    def reference(
        self, x: NDArray[np.float64], scale: NDArray[np.float64], bias: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        last = x if self.axis == -1 else np.moveaxis(x, 1, -1)
        g = np.sqrt((last * last).sum(tuple(range(1, x.ndim - 1)), keepdims=True))
        y = scale * (last * (g / (g.mean(-1, keepdims=True) + self.epsilon))) + bias + last
        return y if self.axis == -1 else np.moveaxis(y, -1, 1)

    def launch(self, x: Tensor, scale: Tensor, bias: Tensor, y: Tensor) -> Launches:
        return (self._last if self.axis == -1 else self._first)(x, scale, bias, y)

    def _last(self, x: Tensor, scale: Tensor, bias: Tensor, y: Tensor) -> Launches:
        """Sums of slices; what the channels are multiplied with; the result. Many short slices keep the writes going."""
        n, positions, channels = x.shape[0], product(x.shape[1:-1]), int(scale.shape[0])
        vectors = -(-channels // (16 // np.dtype("f4" if x.dtype == "float32" else "f2").itemsize))
        chunks = -(-vectors // VECTORS)  # of the channels
        width = -(-vectors // chunks)
        shortest = ceil_div(positions, POSITIONS)
        wanted = maximum(minimum(shortest, ceil_div(BLOCKS, maximum(n * chunks, 1))), 1)
        per_slice = maximum(ceil_div(positions, wanted), 1)
        slices = ceil_div(positions, per_slice)
        most = minimum(n * shortest, n + -(-BLOCKS // chunks))  # slices of all samples, for all that are not larger
        squares, factors = Work(most * channels * 4, n * channels * 4), Work(n * channels * 4)
        kept = ceil_div(KEPT, per_slice * width * 16)
        block, defines = (THREADS, 1, 1), (("LAST", "1"), ("X", str(width)))
        return (
            Launch(
                "global_response_norm_squares",
                (n * slices * chunks, 1, 1),
                block,
                (x, squares, positions, channels, chunks, slices, per_slice, kept),
                defines=defines,
            ),
            Launch(
                "global_response_norm_factors",
                (n, 1, 1),
                (1024, 1, 1),
                (squares, factors, channels, slices, self.epsilon),
                defines=defines,
                overlaps=True,
            ),
            Launch(
                "global_response_norm_apply",
                (n * shortest * chunks, 1, 1),
                block,
                (x, scale, bias, factors, y, positions, channels, chunks, shortest, POSITIONS),
                defines=defines,
                overlaps=True,
            ),
        )

    def _first(self, x: Tensor, scale: Tensor, bias: Tensor, y: Tensor) -> Launches:
        """The norms; the result. A block takes so many channels that reading all norms, for their mean, is little beside."""
        n, positions, channels = x.shape[0], product(x.shape[2:]), int(scale.shape[0])
        per_block = 8 * ceil_div(channels, maximum(positions, 1))
        chunks = ceil_div(channels, per_block)
        norms, block, defines = Work(n * channels * 4), (THREADS, 1, 1), (("LAST", "0"),)
        rows = n * channels
        return (
            Launch(
                "global_response_norm_rows",
                (ceil_div(rows, 8), 1, 1),
                block,
                (x, norms, rows, positions),
                defines=defines,
            ),
            Launch(
                "global_response_norm_planes",
                (n * chunks, 1, 1),
                block,
                (x, scale, bias, norms, y, positions, channels, chunks, per_block, self.epsilon),
                defines=defines,
                overlaps=True,
            ),
        )
