"""How the kernels of kernels/layer_norm.cuh are launched: which threads share a row or a position, by the sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trtconvert.launch import Launch, Size, Tensor, ceil_div, product

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
ACTIVATIONS = {"": 0, "none": 1, "tanh": 2}  # of layer_norm.cuh, by the attribute `approximate` of Gelu; "": no GELU
VALUES = 32  # of a row or of a position's channels that a thread keeps in registers
FULL = 2048  # groups of threads that keep a large GPU busy: with fewer, a row is shared by more threads


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
        args = (self.x, self.scale, self.bias, self.y, *sizes, self.epsilon, 1.0 / self.y_scale)
        named = tuple((name, str(value)) for name, value in defines.items())
        return Launch(kernel, (grid, 1, 1), (threads, 1, 1), args, defines=named)

    def _rows(self) -> Iterator[Launch]:
        first = self.axis if self.axis < 0 else -1
        channels, rows = product(self.x.shape[first:]), product(self.x.shape[:first])
        width = 16 // BYTES[self.x.dtype]
        known = channels if isinstance(channels, int) and channels <= 1024 * VALUES else 0
        groups = [g for g in (32, 64, 128, 256, 512, 1024) if known and g * VALUES >= known] or [1024]
        few = isinstance(rows, int) and rows * (groups[0] // 32) < FULL
        if few:  # one access a thread, so that the row is there at once
            groups = [g for g in groups if g * width < 2 * known] or groups
            groups.reverse()
        for group in groups[:3]:
            per_block = max(1, 128 // group)
            grid = ceil_div(rows, per_block)
            threads = group * per_block
            yield self._launch(
                "layer_norm_rows", grid, threads, (rows, channels), PLANES=0, GROUP=group, CHANNELS=known
            )

    def _planes(self) -> Iterator[Launch]:
        channels, positions, batch = self.x.shape[1], product(self.x.shape[2:]), self.x.shape[0]
        for lanes, width, group in self._tiles(channels, positions, batch):
            known = channels if isinstance(channels, int) and channels * width <= group * 2 * VALUES else 0
            grid = batch * ceil_div(positions, lanes * width)
            defines = {"PLANES": 1, "LANES": lanes, "WIDTH": width, "GROUP": group, "CHANNELS": known}
            yield self._launch("layer_norm_planes", grid, lanes * group, (positions, channels), **defines)

    def _tiles(self, channels: Size, positions: Size, batch: Size) -> Iterator[tuple[int, int, int]]:
        """Lanes along the positions, positions a lane, and threads that share a position's channels."""
        full = 16 // BYTES[self.x.dtype]
        for lanes, width, each in (
            (8, full, 8),
            (16, full, 8),
            (8, full // 2, 8),
            (32, 2, 16),
            (32, 1, 32),
            (16, 2, 16),
        ):
            if not isinstance(channels, int):
                yield lanes, width, 32
                continue
            group = 32 // min(lanes, 32)
            while group * each < channels and group * lanes < 1024:
                group *= 2
            yield max(lanes, 128 // group), width, group
