"""How the kernels of kernels/layer_norm.cuh are launched: which threads share a row or a position, by the sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trtconvert.launch import Launch, Size, Tensor, ceil_div, product

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
ACTIVATIONS = {"": 0, "none": 1, "tanh": 2}  # of layer_norm.cuh, by the attribute `approximate` of Gelu; "": no GELU
ACCESS = 16  # bytes of one access
LINE = 128  # bytes of a cache line
GROUPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # threads that share a row
VALUES = 32  # of a row that a thread keeps in registers at most
COARSE = 2.0**-7  # steps of y from here on hide what a GELU of 16 bits in fewer instructions is off; see common.cuh
BLOCKS = 264  # two for each multiprocessor of a large GPU: fewer leave it idle


@dataclass(frozen=True)
class Normalized:
    """A layer norm to launch. activation: a key of ACTIVATIONS. y_scale: of an int8 y."""

    x: Tensor
    scale: Tensor
    bias: Tensor
    y: Tensor
    axis: int
    epsilon: float
    activation: str = ""
    y_scale: float = 1.0

    def launches(self) -> Iterator[Launch]:
        """The way for these sizes first, then others that may be faster on some GPU."""
        return self._planes() if self.axis == 1 and self.x.rank > 2 else self._rows()

    def _launch(self, kernel: str, grid: Size, threads: int, sizes: tuple[Size, Size], **defines: int) -> Launch:
        defines["ACTIVATION"] = ACTIVATIONS[self.activation]
        if self.y.dtype == "int8" and BYTES[self.x.dtype] == 2 and self.y_scale >= COARSE:
            defines["COARSE"] = 1
        args = (self.x, self.scale, self.bias, self.y, *sizes, self.epsilon, 1.0 / self.y_scale)
        named = tuple((name, str(value)) for name, value in defines.items())
        return Launch(kernel, (grid, 1, 1), (threads, 1, 1), args, defines=named)

    def _rows(self) -> Iterator[Launch]:
        """A row has as few threads as read it well and keep it in registers; more where there are few rows, so that each is
        read at once. Measured on an H200."""
        first = self.axis if self.axis < 0 else -1
        channels, rows = product(self.x.shape[first:]), product(self.x.shape[:first])
        width = _width(channels, self.x.dtype)
        known = channels if isinstance(channels, int) and channels <= 1024 * VALUES else 0
        groups = [g for g in GROUPS if known and g * _share(known, width, BYTES[self.x.dtype]) >= known] or [1024]
        if isinstance(rows, int) and rows * groups[0] < BLOCKS * 256:
            groups = [g for g in groups if g * width < 2 * known][::-1] or groups
        for group in groups[:2]:
            per_block = max(1, 128 // group)
            grid, threads = ceil_div(rows, per_block), group * per_block
            defines = {"PLANES": 0, "GROUP": group, "WIDTH": width, "CHANNELS": known}
            yield self._launch("layer_norm_rows", grid, threads, (rows, channels), **defines)

    def _planes(self) -> Iterator[Launch]:
        """Blocks that take a cache line of positions, each thread 8 to 32 of the channels of some; two blocks of 512 threads
        or four of 256 share a multiprocessor. Large 16-bit data of many channels: half a line, and 16 of the channels a thread.
        Measured on an H200."""
        channels, positions, batch = self.x.shape[1], product(self.x.shape[2:]), self.x.shape[0]
        width = _width(positions, self.x.dtype)
        if width == 8 and BYTES[self.y.dtype] == 2 and isinstance(channels, int) and 512 <= channels <= 1024:
            tiles = batch * ceil_div(positions, 4 * width)
            if isinstance(tiles, int) and tiles >= 4 * BLOCKS:
                yield self._tiles(4, width, next(g for g in GROUPS if 16 * g >= channels), 640, channels)
        lanes = min(32, LINE // BYTES[self.x.dtype] // width)
        group, known, most = 32 // lanes, 0, 1024
        if isinstance(channels, int):
            while group * lanes < channels:  # 8 channels a thread at full width
                group *= 2
            # Channels that are shared unevenly, and 16 bits in full width, take more registers than 1024 threads have.
            crowded = channels % group or (width == 8 and channels <= 1024)
            if channels & (channels - 1) if width == 1 else crowded and group * lanes > 512:
                most = 512
            while group * lanes > most and lanes > 2:
                lanes //= 2
            group = min(group, most // lanes)
            known = channels if channels <= group * min(32, LINE // BYTES[self.x.dtype] // width) else 0
        lanes = max(lanes, 128 // group)
        if isinstance(batch, int) and isinstance(positions, int):
            while width > 1 and batch * ceil_div(positions, lanes * width) < BLOCKS:
                width //= 2
        for resident in dict.fromkeys((most, 512)):
            yield self._tiles(lanes, width, group, resident, known)

    def _tiles(self, lanes: int, width: int, group: int, resident: int, known: int) -> Launch:
        """resident: threads on a multiprocessor, if a block has not more. known: channels, 0 where only run time knows them."""
        channels, positions, batch = self.x.shape[1], product(self.x.shape[2:]), self.x.shape[0]
        defines = {"PLANES": 1, "LANES": lanes, "WIDTH": width, "GROUP": group, "CHANNELS": known}
        grid, threads = batch * ceil_div(positions, lanes * width), lanes * group
        sizes = positions, channels
        return self._launch("layer_norm_planes", grid, threads, sizes, **defines, RESIDENT=max(resident, threads))


def _share(channels: int, width: int, size: int) -> int:
    """Values of a row for each of its threads: 64 bytes, and 32 of what is short, so that neighbours read one cache line. In
    narrow accesses a warp reads a row together."""
    if width * size < ACCESS:
        return min(VALUES, ceil_div(channels, 32))
    return (64 if channels * size > LINE else 32) // size


def _width(size: Size, dtype: str) -> int:
    """Elements of one access: as many as ACCESS bytes hold, if lines of `size` elements start where such accesses may."""
    width = ACCESS // BYTES[dtype]
    return math.gcd(width, size) if isinstance(size, int) else width
