"""The shapes and values at which an exported plan is first run: what its profile calls opt."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from trtconvert.deploy.triton_config import shape_tensor_names
from trtconvert.errors import ConvertError
from trtconvert.manifest import IO, Manifest

_BITS = {
    "bool": 8,
    "uint8": 8,
    "int8": 8,
    "int32": 32,
    "int64": 64,
    "float16": 16,
    "bfloat16": 16,
    "float32": 32,
    "float8_e4m3fn": 8,
    "int4": 4,
    "float4_e2m1fn": 4,
}


@dataclass(frozen=True)
class Point:
    """An input at opt. dynamic: whether the engine takes other shapes too. values: of an input that decides shapes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    dynamic: bool
    values: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """The size of the input's data."""
        return (prod(self.shape) * _BITS[self.dtype] + 7) // 8


def points(described: Manifest) -> list[Point]:
    """The engine's inputs at opt, in order. ConvertError if the manifest lacks one."""
    deciding = shape_tensor_names(described)
    return [_point(described, io, io.name in deciding) for io in described.engine_inputs]


def _point(described: Manifest, io: IO, decides: bool) -> Point:
    sizes = io.shape or []
    dynamic = any(size == -1 for size in sizes)
    try:
        shape = described.profile[io.name]["opt"] if dynamic else [int(size or 0) for size in sizes]
        values = described.values[io.name]["opt"] if decides else []
    except KeyError as error:
        raise ConvertError(
            f"the manifest lacks the {'profile' if dynamic else 'values'} of input {io.name!r}",
            fix="build the plan again",
        ) from error
    return Point(io.name, io.dtype, tuple(shape), dynamic, tuple(values))
