"""What a shared library says of itself in its ELF header: the machine it is for and the libraries that it needs."""

from __future__ import annotations

import mmap
import platform
import struct
from dataclasses import dataclass
from pathlib import Path

from trtconvert.errors import ConvertError

MAGIC = b"\x7fELF"
_MACHINES = {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 21: "ppc64", 243: "riscv64"}
_SHARED = 3  # e_type
_LOAD, _DYNAMIC = 1, 2  # p_type
_NEEDED, _STRTAB = 1, 5  # d_tag


@dataclass(frozen=True)
class Library:
    """machine: as `uname -m` names it. needed: its NEEDED entries, in order."""

    machine: str
    needed: tuple[str, ...]


def read(path: Path) -> Library:
    """Read a 64-bit little-endian shared library. ConvertError if the file is none, or is for another machine."""
    with path.open("rb") as file:
        start = file.read(12)
        if not start.startswith(MAGIC):
            raise ConvertError(
                f"not a shared library: the file begins with {start!r}, not with ELF's mark",
                where=str(path),
                fix="give the .so that the compiler made, or a .py file that defines an Op",
            )
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        return _read(data, path)
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise ConvertError(
            "the shared library is damaged or cut short", where=str(path), fix="copy or build it again"
        ) from error


def _read(data: mmap.mmap, path: Path) -> Library:
    bits = {1: 32, 2: 64}.get(data[4], data[4])
    kind, number = struct.unpack_from("<HH" if data[5] == 1 else ">HH", data, 16)
    machine = _MACHINES.get(number, f"machine {number}")
    if (bits, data[5]) != (64, 1) or machine != platform.machine():
        raise ConvertError(
            f"the library is built for {machine} ({bits} bits), this machine is {platform.machine()}",
            where=str(path),
            fix="build it on this kind of machine, or take the library for it",
        )
    if kind != _SHARED:
        raise ConvertError(
            "an ELF file, but not a shared library", where=str(path), fix="link it with g++ -shared -fPIC"
        )
    (offset,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<IIQQQQ", data, offset + i * size) for i in range(count)]
    loads = [(h[3], h[2], h[5]) for h in headers if h[0] == _LOAD]  # address, place in the file, bytes in the file
    entries = [
        struct.unpack_from("<qQ", data, h[2] + at) for h in headers if h[0] == _DYNAMIC for at in range(0, h[5], 16)
    ]
    table = next((value for tag, value in entries if tag == _STRTAB), None)
    place = next((table - a + at for a, at, n in loads if table is not None and a <= table < a + n), 0)
    return Library(machine, tuple(_text(data, place + value) for tag, value in entries if tag == _NEEDED))


def _text(data: mmap.mmap, start: int) -> str:
    end = data.find(b"\0", start)
    if not 0 < start < end:
        raise IndexError(start)
    return data[start:end].decode()
