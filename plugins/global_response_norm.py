"""GlobalResponseNorm: the normalisation inside the blocks of ConvNeXt V2."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from trtconvert.plugins.forms import response_norm

from trtconvert import kernels
from trtconvert.launch import Launch, Launches, Size, Tensor, Work, ceil_div, maximum, minimum, product
from trtconvert.op import Op, case
from trtconvert.pattern import Attr, Builder, Expr

THREADS = 256  # of a block
WARPS = THREADS // 32
VECTORS = 8  # that a thread reads, 16 bytes each: enough to be worth the start of a block
WIDEST = 32  # vectors of channels that a block takes; the fewer, the more positions, and the fewer sums in memory
SLICES = 512  # of a sample, at the most: one block adds their sums
BLOCKS = 264  # that share the work, if there is so much
GROUP = 8 << 20  # bytes of x whose norms are computed before their result: L2 holds several of them
STATE = 16  # bytes of the counters of a sample


class GlobalResponseNorm(Op):
    """y = scale * (x * nx) + bias + x, nx = g / (mean of g over the channels + epsilon), g the L2 norm over the positions.

    axis -1: x, y [N, ..., C] T; axis 1: [N, C, ...]. scale, bias [C] T; T in float32, float16, bfloat16, arithmetic in float32.
    Source: Woo et al., ConvNeXt V2, arXiv:2301.00808, as its authors, timm and transformers write it.
    """

    epsilon: float = 1e-6
    axis: int = -1
    pattern = "global-response-norm"
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
        if not (self.epsilon >= 0 and math.isfinite(self.epsilon)):
            return f"epsilon is {self.epsilon}; it takes a finite number, 0 or above"
        channels = x.shape[self.axis]
        for name, tensor in (("scale", scale), ("bias", bias)):
            if tensor.dtype != x.dtype:
                return f"{name} is {tensor.dtype}, x is {x.dtype}; it takes one dtype for both"
            if tensor.rank != 1 or not isinstance(tensor.shape[0], int):
                return f"{name} has shape {list(map(str, tensor.shape))}; it takes one known number of channels"
            if isinstance(channels, int) and tensor.shape[0] != channels:
                return f"{name} has {tensor.shape[0]} values, x has {channels} channels"
        return None

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
        """A part of a sample is a slice of the positions of a chunk of the channels."""
        n, positions, channels = x.shape[0], product(x.shape[1:-1]), int(scale.shape[0])
        vector = 16 // _bytes(x)
        vectors = -(-channels // vector)
        chunks = -(-vectors // WIDEST)  # of the channels
        width = -(-vectors // chunks)
        pitch = chunks * width * vector
        per_block = VECTORS * (THREADS // width)  # positions of a slice
        slices = ceil_div(positions, maximum(per_block, ceil_div(positions, SLICES)))
        per_slice = maximum(ceil_div(positions, maximum(slices, 1)), 1)  # the same in all slices
        slices = ceil_div(positions, per_slice)
        samples, grid = _schedule(x, slices * chunks)
        most = n * minimum(ceil_div(positions, per_block), SLICES)  # slices of all samples, for all that are not larger
        states = _states(n)
        norms = Work(n * pitch * 4, states.size)
        squares = Work(most * pitch * 4, states.size + norms.size)
        sizes = (n, samples, positions, channels, chunks, slices, per_slice)
        defines = (("LAST", "1"), ("X", str(width)))
        args = (x, scale, bias, states, norms, squares, y, *sizes, self.epsilon)
        return (
            _start(n, states, defines),
            Launch("global_response_norm", (grid, 1, 1), (THREADS, 1, 1), args, defines=defines),
        )

    def _first(self, x: Tensor, scale: Tensor, bias: Tensor, y: Tensor) -> Launches:
        """A part of a sample is some of its channels, a row of positions each; few where otherwise there were few blocks."""
        n, positions, channels = x.shape[0], product(x.shape[2:]), int(scale.shape[0])
        filling = VECTORS * 32 * 16 // _bytes(x)  # positions that keep a warp busy
        rows = minimum(ceil_div(filling, maximum(positions, 1)), n * channels // (WARPS * BLOCKS))
        per_block = WARPS * maximum(rows, 1)
        parts = ceil_div(channels, per_block) * minimum(positions, 1)  # nothing to do without positions
        samples, grid = _schedule(x, parts)
        states = _states(n)
        norms = Work(n * channels * 4, states.size)
        sizes = (n, samples, positions, channels, parts, per_block)
        defines = (("LAST", "0"),)
        args = (x, scale, bias, states, norms, y, *sizes, self.epsilon)
        return (
            _start(n, states, defines),
            Launch("global_response_norm", (grid, 1, 1), (THREADS, 1, 1), args, defines=defines),
        )


def _bytes(x: Tensor) -> int:
    """Of an element."""
    return 4 if x.dtype == "float32" else 2


def _schedule(x: Tensor, parts: Size) -> tuple[Size, Size]:
    """Samples of a group; blocks: two for each part of each sample of each group, of which the last may have samples too many."""
    n, sample = x.shape[0], product(x.shape[1:]) * _bytes(x)
    samples = maximum(minimum(GROUP // maximum(sample, 1), n), 1)
    return samples, 2 * parts * samples * ceil_div(n, samples)


def _states(n: Size) -> Work:
    """The counters of each sample, and one more for the tickets."""
    return Work((n + 1) * STATE)


def _start(n: Size, states: Work, defines: tuple[tuple[str, str], ...]) -> Launch:
    """Lent memory holds anything; counters start at 0. Threads for n + 1 states, and none for an empty batch."""
    blocks = ceil_div(2 * n, THREADS)
    return Launch("global_response_norm_start", (blocks, 1, 1), (THREADS, 1, 1), (states, n + 1), defines=defines)
