"""GroupNormSilu: group normalisation and SiLU, as the residual blocks of diffusion models have it."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from functools import partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from trtconvert.plugins.forms import contrib_group_norm, group_norm, not_an_epsilon, not_of_channels, silu

from trtconvert import kernels
from trtconvert.launch import Launch, Launches, Size, Tensor, Work, ceil_div, maximum, minimum, product
from trtconvert.op import Op, case
from trtconvert.pattern import Attr, Builder, Expr

HELD = 6  # vectors that each of 1,024 threads can keep in registers
CLUSTER = 8  # blocks that work on one group together
THREADS = 256  # of a block that works on a slice
SLICES = 128  # of a group, at the most
MOST_SHARED = 227 * 1024  # bytes of a block, on devices that have most (compute capability 9.0 and 10.0)


class GroupNormSilu(Op):
    """y = v * sigmoid(v), v = (x - mean) / sqrt(var + epsilon) * scale + bias, mean and biased variance of each group.

    x, y [N, C, ...] T; scale, bias [C] T; T in float32, float16, bfloat16, arithmetic in float32. A group is C / num_groups
    neighbouring channels of one sample, at all positions. Source: ONNX GroupNormalization (opset 21), Swish (opset 24).
    """

    num_groups: int = 32
    epsilon: float = 1e-5
    pattern = "groupnorm-silu"
    defaults = MappingProxyType({"scale": 1.0, "bias": 0.0})
    parameter_axis = 1
    landmarks = ("InstanceNormalization", "GroupNormalization", "GroupNorm")
    source = kernels.read("group_norm_silu.cu")
    cases = (
        case((2, 64, 16, 16), (64,), (64,)),
        case((1, 8, 5, 7), (8,), (8,), num_groups=2),
        case((2, 12, 4, 6), (12,), (12,), num_groups=4, epsilon=1e-12),
        case((3, 8, 1), (8,), (8,), num_groups=8),
        case((2, 6, 1, 1), (6,), (6,), num_groups=1),
        case((1, 32, 33, 31), (32,), (32,), num_groups=2),
        case((1, 64, 96, 80), (64,), (64,), num_groups=2),
        case((0, 64, 4, 4), (64,), (64,)),
    )

    def patterns(self, op: Builder, x: Expr, scale: Expr, bias: Expr) -> Iterator[Expr]:
        groups, epsilon = (
            typing.cast(Attr, self.num_groups),
            typing.cast(Attr, self.epsilon),
        )  # in patterns, attributes are symbols
        yield silu(op, group_norm(op, x, scale, bias, groups, epsilon))
        yield contrib_group_norm(op, x, scale, bias, groups, epsilon, activation=1)

    def accepts(self, x: Tensor, scale: Tensor, bias: Tensor) -> str | None:
        if x.rank < 2:
            return f"x has {x.rank} dimensions; it takes [N, C, ...]"
        reason = not_an_epsilon(self.epsilon) or not_of_channels(x, 1, scale, bias)
        if reason is not None:
            return reason
        if self.num_groups < 1 or int(scale.shape[0]) % self.num_groups:
            return f"{scale.shape[0]} channels do not divide into {self.num_groups} groups"
        return None

    def output(self, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        return x

    def reference(
        self, x: NDArray[np.float64], scale: NDArray[np.float64], bias: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        if x.size == 0:
            return x
        grouped = x.reshape(x.shape[0], self.num_groups, -1)
        d = grouped - grouped.mean(-1, keepdims=True)
        normed = (d / np.sqrt((d * d).mean(-1, keepdims=True) + self.epsilon)).reshape(x.shape)
        along = [-1] + [1] * (x.ndim - 2)
        v = normed * scale.reshape(along) + bias.reshape(along)
        return np.asarray(v / (1 + np.exp(-v)))

    def launch(self, x: Tensor, scale: Tensor, bias: Tensor, y: Tensor) -> Iterator[Launch | Launches]:
        """A group that fits into the registers of one block is read once; else, or where only run time knows its length, two
        kernels share the work."""
        vector = 16 // np.dtype("f4" if x.dtype == "float32" else "f2").itemsize
        per_group, spatial = int(scale.shape[0]) // self.num_groups, product(x.shape[2:])
        length = per_group * spatial
        sliced = self._sliced(x, scale, bias, y, length, spatial, vector)
        if not isinstance(length, int) or not isinstance(spatial, int) or length == 0:
            yield sliced
            return
        vectors = -(-length // vector)
        whole = partial(self._whole, x, scale, bias, y, length, spatial, vectors)
        fits = vectors <= HELD * 1024
        yield from (whole(HELD), sliced) if fits else (sliced,)
        if CLUSTER * 64 <= vectors <= CLUSTER * 2 * HELD * 512:
            yield whole(2 * HELD, blocks=CLUSTER, most_threads=256, resident=2)
            yield whole(HELD, blocks=CLUSTER, most_threads=256, resident=3)
        if not fits:
            yield whole(HELD, most_threads=512)
        if vectors > 2048:
            yield whole(0, most_threads=512)

    def _whole(
        self,
        x: Tensor,
        scale: Tensor,
        bias: Tensor,
        y: Tensor,
        length: int,
        spatial: int,
        vectors: int,
        held: int,
        blocks: int = 1,
        most_threads: int = 1024,
        resident: int = 1,
    ) -> Launch:
        """`blocks` a group, up to `held` vectors of a thread in registers; further ones in shared memory, as much as there is."""
        share = -(-vectors // blocks)
        threads = next((t for t in (32, 64, 128, 256, 512) if share <= 2 * t or t == most_threads), 1024)
        rounds = -(-share // threads)
        values = {"WHOLE": 1, "THREADS": threads, "HELD": min(held, rounds), "CLUSTER": blocks, "RESIDENT": resident}
        defines = values | {"LENGTH": length, "SPATIAL": spatial}
        return Launch(
            "group_norm_silu_whole",
            (x.shape[0] * self.num_groups * blocks, 1, 1),
            (threads, 1, 1),
            (x, scale, bias, y, self.num_groups, self.epsilon),
            shared=min(max(0, rounds - held) * threads * 16, MOST_SHARED),
            defines=tuple((name, str(value)) for name, value in defines.items()),
        )

    def _sliced(
        self, x: Tensor, scale: Tensor, bias: Tensor, y: Tensor, length: Size, spatial: Size, vector: int
    ) -> Launches:
        """Statistics of each slice, then what follows from them."""
        all_tiles = ceil_div(length, 4 * vector * THREADS)
        tiles = maximum(ceil_div(all_tiles, SLICES), 1)  # of a slice
        slices, groups = ceil_div(all_tiles, tiles), x.shape[0] * self.num_groups
        statistics = Work(
            groups * minimum(all_tiles, SLICES) * 8
        )  # not `slices`: that is not largest for the largest x
        grid, block = (groups * slices, 1, 1), (THREADS, 1, 1)
        defines = (("WHOLE", "0"), ("THREADS", str(THREADS)))
        sizes = (length, spatial, self.num_groups, slices, tiles)
        return (
            Launch("group_norm_silu_statistics", grid, block, (x, statistics, length, slices, tiles), defines=defines),
            Launch(
                "group_norm_silu_apply",
                grid,
                block,
                (x, scale, bias, statistics, y, *sizes, self.epsilon),
                defines=defines,
                overlaps=True,
            ),
        )
