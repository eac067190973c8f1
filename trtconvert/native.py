"""The C++ plugin library: where it lies, and how it is compiled. One library serves all ops; it needs no TensorRT and no CUDA
to compile, and programs without Python load it before they load a plan.

The sources are in plugins/native. A wheel built where there was a C++ compiler carries the library; elsewhere it is compiled
when it is first asked for, into the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from trtconvert.errors import ConvertError

NAME = "libtrtconvert_plugins.so"
LOADER = "libtrtconvert_beside.so"  # registers the libraries beside it when it is opened, for Triton
FLAGS = ("-std=c++17", "-O2", "-s", "-shared", "-fPIC", "-Wall", "-Wextra")
# It stays in memory when TensorRT lets go of it, since plugins may still live.
LINKING = ("-Wl,-z,nodelete", "-ldl")
ALONE = ("-static-libstdc++", "-static-libgcc")  # for older systems than this; where these can be linked


def sources() -> Path:
    """The folder of the C++ sources."""
    spec = find_spec("trtconvert.plugins")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations))) / "native"


def place(name: str = NAME, more: Iterable[tuple[str, str, str]] = ()) -> Path:
    """Where the library for the built-in ops lies, or will when it is first asked for: in the package, or in the cache.

    name: LOADER for that. more: ops beside the built-in ones.
    """
    from trtconvert.files import cache_dir  # setup.py needs none of this

    folder, other = sources(), sorted(more)
    if (folder / name).is_file() and not other:
        return folder / name
    key = hashlib.sha256(repr(other).encode())
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        key.update(file.name.encode() + file.read_bytes())
    key.update(" ".join((*FLAGS, *LINKING, *ALONE)).encode())
    return cache_dir() / "native" / key.hexdigest()[:16] / name


def library(more: Iterable[tuple[str, str, str]] = ()) -> Path:
    """The plugin library for the built-in ops: the one that the package carries, else one compiled into the cache.

    more: name, version and namespace of ops that it is to serve; where some are not built-in, one for them too is compiled.
    ConvertError where there is neither library nor compiler.
    """
    other = sorted(set(more) - built_in())
    path = place(NAME, other)
    return path if path.is_file() else compile_library(path, other)


def loader() -> Path:
    """The library of load_beside.cpp, from where `library` is. ConvertError where there is neither library nor compiler."""
    path = place(LOADER)
    return path if path.is_file() else compile_loader(path)


def built_in() -> set[tuple[str, str, str]]:
    """Name, version and namespace of the ops that every library serves."""
    text = (sources() / "creators.inc").read_text(encoding="utf-8")
    return set(re.findall(r'^CREATOR\("(.*?)", "(.*?)", "(.*?)"\)', text, re.MULTILINE))


def compile_library(
    output: Path, more: Iterable[tuple[str, str, str]] = (), headers: Path | None = None, folder: Path | None = None
) -> Path:
    """Compile it with g++; returns the library's path.

    more: name, version and namespace of ops beside the built-in ones. headers: the folder of NvInferRuntime.h, to compile against
    TensorRT's own declarations. folder: of the sources. ConvertError where there is no g++, or it fails.
    """
    folder = folder or sources()
    names = " ".join(f"CREATOR({', '.join(map(json.dumps, key))})" for key in dict.fromkeys(more))
    flags = [*FLAGS, f"-Wl,--version-script={folder / 'exports.map'}", f"-DMORE_CREATORS={names}"]
    if headers is not None:
        flags += ["-DTENSORRT_HEADERS", *_include(headers, folder)]
    _compile(folder / "plugins.cpp", output, flags)
    return output


def compile_loader(output: Path, folder: Path | None = None) -> Path:
    """Compile load_beside.cpp; the rest as for compile_library."""
    hidden = ("-fvisibility=hidden", "-Wl,--exclude-libs,ALL")
    _compile((folder or sources()) / "load_beside.cpp", output, [*FLAGS, *hidden])
    return output


def compare_layout(headers: Path, folder: Path | None = None) -> str:
    """Compare the library's declarations with TensorRT's headers; returns whose they are, such as "TensorRT 11.1.0".

    ConvertError with the first difference.
    """
    folder = folder or sources()
    with tempfile.TemporaryDirectory() as place:
        program = Path(place) / "layout"
        _compile(folder / "layout.cpp", program, ["-std=c++17", "-fPIE", *_include(headers, folder)])
        result = subprocess.run([program], capture_output=True, text=True, check=False)
    if result.returncode:
        raise ConvertError(
            f"TensorRT's headers declare another layout: {result.stdout.splitlines()[0]}",
            where=str(headers),
            fix="use a TensorRT from 10.0 on; if it is one, report this",
        )
    return result.stdout.strip()


def _include(headers: Path, folder: Path) -> list[str]:
    """Where TensorRT's headers are, and the little that they need of CUDA's where these are not."""
    if not (headers / "NvInferRuntime.h").is_file():
        raise ConvertError("no NvInferRuntime.h there", where=str(headers), fix="give the folder of TensorRT's headers")
    return ["-isystem", str(headers), "-idirafter", str(folder / "cuda")]


def _compile(source: Path, output: Path, flags: list[str]) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        raise ConvertError(
            "the C++ plugin library was not built: there is no g++ on this machine",
            fix="install g++ (apt install g++) and run: trtconvert plugins build-native; or install a wheel built where it is",
        )
    command = [compiler, *flags, "-o", str(output), str(source), *LINKING]
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=output.parent, prefix=f".{output.name}."
        ) as folder:  # others may do the same
            made = Path(folder) / output.name
            for more in (ALONE, ()):
                words = [str(made) if word == str(output) else word for word in (*command, *more)]
                result = subprocess.run(words, capture_output=True, text=True, check=False)
                if result.returncode == 0:
                    break
            else:
                first = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr.strip())
                raise ConvertError(f"g++ cannot compile {source.name}: {first}", fix=f"run: {shlex.join(command)}")
            os.replace(made, output)
    except OSError as error:
        raise ConvertError(
            f"the C++ plugin library cannot be written: {error.strerror or error}",
            where=str(output),
            fix="give -o in a folder that can be written; without -o it goes into TRTCONVERT_CACHE_DIR",
        ) from error
