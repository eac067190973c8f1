"""CUDA text to machine code by NVRTC, for any architecture, on any machine; cached by content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from trtconvert.errors import ConvertError
from trtconvert.files import write_file
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


def cache_dir() -> Path:
    """$TRTCONVERT_CACHE_DIR, or trtconvert under the user's cache folder."""
    chosen = os.environ.get("TRTCONVERT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtconvert"


def compile_kernel(
    name: str, source: str, defines: tuple[tuple[str, str], ...], dtypes: Sequence[str], arch: str
) -> bytes:
    """Compile for one architecture: "sm_86" gives a cubin, "compute_120" gives PTX.

    dtypes: of the first input and the first output, for the macros IO and OUT. name: for messages.

    Raises ConvertError with NVRTC's first message when the source does not compile.
    """
    macros = (*zip(("IO", "OUT"), (CPP_TYPES[dtype] for dtype in dtypes), strict=True), *defines)
    key = hashlib.sha256(repr((_nvrtc_version(), source, sorted(headers().items()), macros, arch)).encode()).hexdigest()
    path = cache_dir() / "kernels" / f"{key}.{'cubin' if arch.startswith('sm_') else 'ptx'}"
    with suppress(OSError):
        return path.read_bytes()
    image = _compile(name, source, macros, arch)
    with suppress(OSError, ConvertError):  # a cache that cannot be written is no reason to fail
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, image)
    return image


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


def _compile(name: str, source: str, macros: tuple[tuple[str, str], ...], arch: str) -> bytes:
    nvrtc = _nvrtc()
    names, texts = ([text.encode() for text in side] for side in zip(*headers().items(), strict=True))
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), len(names), texts, names)
    try:
        return _compile_program(nvrtc, program, name, macros, arch)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _compile_program(nvrtc: Any, program: Any, name: str, macros: tuple[tuple[str, str], ...], arch: str) -> bytes:
    options = [f"--gpu-architecture={arch}", "--std=c++17", f"--include-path={include_dir()}"]
    options += [f"--define-macro={key}={value}" for key, value in macros]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    if int(status) != 0:
        raise ConvertError(
            f"kernel {name} does not compile for {arch}: {_first_error(nvrtc, program)}",
            where=", ".join(f"{key}={value}" for key, value in macros),
            fix="correct the kernel's source; `trtconvert plugins check` compiles it for every target",
        )
    kind = "CUBIN" if arch.startswith("sm_") else "PTX"
    _, size = getattr(nvrtc, f"nvrtcGet{kind}Size")(program)
    image = bytearray(size)
    getattr(nvrtc, f"nvrtcGet{kind}")(program, image)
    return bytes(image)


def _first_error(nvrtc: Any, program: Any) -> str:
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    lines = log.decode(errors="replace").strip("\0\n ").splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")
