"""CUDA text to machine code by NVRTC, for any architecture, on any machine; cached by content."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from trtconvert.errors import ConvertError
from trtconvert.files import cache_dir, write_file
from trtconvert.kernels import headers

CPP_TYPES = {
    "float32": "float",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "int8": "signed char",
    "int32": "int",
    "int64": "long long",
    "bool": "bool",
}
# What kernels must compile for: whatever TensorRT and TensorRT-RTX run on.
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "sm_121")


@dataclass(frozen=True)
class Program:
    """What is compiled. dtypes: of the first input and the first output, for the macros IO and OUT. name: for messages."""

    name: str
    source: str
    defines: tuple[tuple[str, str], ...]
    dtypes: tuple[str, str]

    @property
    def macros(self) -> tuple[tuple[str, str], ...]:
        types = (CPP_TYPES[dtype] for dtype in self.dtypes)
        return (*zip(("IO", "OUT"), types, strict=True), *self.defines)


@dataclass(frozen=True)
class Usage:
    """What a kernel takes: registers a thread, bytes of spilled registers (stored and loaded) and of stack a thread, bytes
    of static shared memory a block."""

    registers: int
    spills: int
    stack: int
    shared: int


def compile_kernel(program: Program, arch: str) -> bytes:
    """Compile for one architecture: "sm_86" gives a cubin, "compute_120" gives PTX.

    Raises ConvertError with NVRTC's first message when the source does not compile.
    """
    return _compiled(program, arch)[0]


def usage(program: Program, arch: str) -> dict[str, Usage]:
    """By kernel, what the compiler says of it; arch as "sm_86"."""
    log = _compiled(program, arch)[1].decode(errors="replace")
    return {
        name: Usage(int(registers), int(stores) + int(loads), int(stack), int((_SHARED.search(rest) or "00")[1]))
        for name, stack, stores, loads, registers, rest in _REPORT.findall(log)
    }


# ptxas -v, of each kernel
_REPORT = re.compile(
    r"Function properties for (\S+)\s*\n.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\s*\n"
    r".*?Used (\d+) registers(.*)"
)
_SHARED = re.compile(r"(\d+) bytes smem")


def _compiled(program: Program, arch: str) -> tuple[bytes, bytes]:
    """Image and compiler's log, from the cache if they are there."""
    parts = (_nvrtc_version(), program.source, sorted(headers().items()), program.macros, arch)
    key = hashlib.sha256(repr(parts).encode()).hexdigest()
    path = cache_dir() / "kernels" / f"{key}.{'cubin' if arch.startswith('sm_') else 'ptx'}"
    log = path.with_suffix(".log")
    with suppress(OSError):
        return path.read_bytes(), log.read_bytes()
    image, text = _compile(program, arch)
    with suppress(OSError, ConvertError):  # a cache that cannot be written is no reason to fail
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, image)
        write_file(log, text)
    return image, text


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc  # imported only where something is compiled
    except ImportError as error:
        raise _missing(str(error)) from error
    return nvrtc


def _missing(reason: str) -> ConvertError:
    return ConvertError(
        f"the kernel compiler NVRTC is missing: {reason}",
        fix="pip install cuda-bindings nvidia-cuda-nvrtc nvidia-cuda-runtime",
    )


@lru_cache(maxsize=1)
def _nvrtc_version() -> tuple[int, int]:
    try:
        _, major, minor = _nvrtc().nvrtcVersion()
    except RuntimeError as error:
        raise _missing(str(error).splitlines()[0]) from error
    return int(major), int(minor)


def version() -> str:
    """NVRTC's version; ConvertError when it is not there."""
    return ".".join(map(str, _nvrtc_version()))


@lru_cache(maxsize=1)
def include_dir() -> str:
    """Folder of cuda_fp16.h and its like."""
    from cuda.pathfinder import find_nvidia_header_directory

    found = find_nvidia_header_directory("cudart")
    if found is None:
        raise ConvertError("the CUDA runtime headers are missing", fix="pip install nvidia-cuda-runtime")
    return str(found)


def _compile(program: Program, arch: str) -> tuple[bytes, bytes]:
    nvrtc, file = _nvrtc(), f"{program.name}.cu".encode()
    names, texts = ([text.encode() for text in side] for side in zip(*headers().items(), strict=True))
    _, handle = nvrtc.nvrtcCreateProgram(program.source.encode(), file, len(names), texts, names)
    try:
        return _compile_program(nvrtc, handle, program, arch)
    finally:
        nvrtc.nvrtcDestroyProgram(handle)


def _compile_program(nvrtc: Any, handle: Any, program: Program, arch: str) -> tuple[bytes, bytes]:
    options = [f"--gpu-architecture={arch}", "--std=c++17", f"--include-path={include_dir()}", "--ptxas-options=-v"]
    options += [f"--define-macro={key}={value}" for key, value in program.macros]
    (status,) = nvrtc.nvrtcCompileProgram(handle, len(options), [o.encode() for o in options])
    log = _get(nvrtc, handle, "ProgramLog")
    if int(status) != 0:
        raise ConvertError(
            f"kernel {program.name} does not compile for {arch}: {_first_error(log)}",
            where=", ".join(f"{key}={value}" for key, value in program.macros),
            fix="correct the kernel's source; `trtconvert plugins check` compiles it for every target",
        )
    return _get(nvrtc, handle, "CUBIN" if arch.startswith("sm_") else "PTX"), log


def _get(nvrtc: Any, handle: Any, what: str) -> bytes:
    _, size = getattr(nvrtc, f"nvrtcGet{what}Size")(handle)
    data = bytearray(size)
    getattr(nvrtc, f"nvrtcGet{what}")(handle, data)
    return bytes(data)


def _first_error(log: bytes) -> str:
    lines = log.decode(errors="replace").strip("\0\n ").splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")
