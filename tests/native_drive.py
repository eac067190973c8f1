"""The C++ library run without TensorRT and without a GPU: tests/native/drive.cpp executes a plugin, a fake driver prints the
launches, and `launches` says what they should be, computed as the Python reader does."""

from __future__ import annotations

import functools
import os
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.native_libraries import COMPILER, SOURCE, shared_library
from trtconvert import launch, native
from trtconvert.launch import Launches, Tensor, Work

FIRST, STEP = 0x100000, 0x100000  # where the fake driver's memory lies
MOST_SHARED = 101376 - 1024  # bytes that a block may have there, less what the kernel declares


@functools.cache
def program() -> Path:
    """The compiled drive.cpp."""
    assert COMPILER is not None
    path = Path(tempfile.mkdtemp(prefix="trtconvert-drive-")) / "drive"
    source = SOURCE.with_name("drive.cpp")
    subprocess.run([COMPILER, "-std=c++17", "-O2", "-Wall", "-Wextra", "-o", path, source, "-ldl"], check=True)
    return path


@functools.cache
def fake_driver(arch: int) -> Path:
    """The folder of a libcuda.so.1 that claims this compute capability."""
    return shared_library(SOURCE.with_name("fake_driver.cpp"), f"-DARCH={arch}", name="libcuda.so.1").parent


def write_fields(path: Path, fields: Mapping[str, bytes]) -> Path:
    """A file of plugin fields, as drive.cpp reads it and tests/golden keeps them."""
    path.write_bytes(b"".join(f"{name} {len(data)}\n".encode() + data for name, data in fields.items()))
    return path


def read_fields(path: Path) -> dict[str, bytes]:
    """What `write_fields` wrote."""
    rest, fields = path.read_bytes(), {}
    while rest:
        header, rest = rest.split(b"\n", 1)
        name, size = header.decode().split()
        fields[name], rest = rest[: int(size)], rest[int(size) :]
    return fields


def drive(
    plugin: str, fields: Path, tensors: Sequence[str], arch: int | None = 86, times: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run it. tensors: as drive.cpp takes them. arch: of the fake driver; None for the real one."""
    environment = {**os.environ, **({"LD_LIBRARY_PATH": str(fake_driver(arch))} if arch is not None else {})}
    command = [program(), native.library(), plugin, fields, str(times), *tensors]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def tensors(inputs: Sequence[Sequence[int]], outputs: int, work: int = 1) -> list[str]:
    """Arguments for drive.cpp: inputs of these shapes, so many outputs, and memory to lend."""
    return [
        *(f"in:{'x'.join(map(str, shape))}:1" for shape in inputs),
        *("out::1" for _ in range(outputs)),
        f"work:1:{work}",
    ]


def image(described: Launches, first: str = "an image") -> bytes:
    """An image of these kernels for the fake driver, which prints its first line."""
    return "".join([f"{first}\n", *(f"{one.kernel} {len(one.args)}\n" for one in described)]).encode()


def launches(described: Launches, shapes: Sequence[Sequence[int]], outputs: int, overlap: bool = False) -> list[str]:
    """The fake driver's lines for these launches, in `tensors` of these shapes. overlap: those that may, do."""
    lines: list[str] = []
    for one in described:
        sizes = [launch.evaluate(size, shapes) for size in (*one.grid, *one.block, one.shared)]
        if 0 in sizes[:3]:
            continue
        sizes[6] = min(sizes[6], MOST_SHARED) if sizes[6] > 32 * 1024 else sizes[6]
        grid, block = (" ".join(map(str, part)) for part in (sizes[:3], sizes[3:6]))
        words = [_word(a, shapes, outputs) for a in one.args]
        how = "overlap" if overlap and one.overlaps and lines else "launch"
        lines.append(f"{how} {one.kernel} grid {grid} block {block} shared {sizes[6]} stream 1" + "".join(words))
    return lines


def _word(argument: launch.Argument, shapes: Sequence[Sequence[int]], outputs: int) -> str:
    if isinstance(argument, Tensor):
        side, index = argument.slot.split()
        value = FIRST + STEP * (int(index) + (len(shapes) if side == "out" else 0))
    elif isinstance(argument, Work):
        value = FIRST + STEP * (len(shapes) + outputs) + launch.evaluate(argument.offset, shapes)
    elif isinstance(argument, float):
        (value,) = struct.unpack("<I", struct.pack("<f", argument))
    else:
        value = launch.evaluate(argument, shapes) % 2**64
    return f" {value:x}"
