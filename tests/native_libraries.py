"""Plugin libraries for tests, compiled from tests/native where there is a C++ compiler."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "native" / "plugin.cpp"
COMPILER = shutil.which("g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no g++")
FIELD_TYPES = {"float32": 1, "int32": 5, "char": 6, "int64": 10}
DTYPES = {"float32": 0, "float16": 1, "int32": 3, "int64": 8}


@functools.cache
def plugin_library(
    name: str = "MyGelu",
    version: str = "1",
    namespace: str = "",
    fields: tuple[tuple[str, str, int], ...] = (),
    accepts: str = "",
    accepts_first: str = "",
    how: str = "",
) -> Path:
    """A library with that plugin: fields as name, type, length; accepts: the type of input 1, accepts_first: of input 0; how:
    STATIC, OLD, PLAIN_OLD or EMPTY, see tests/native/plugin.cpp."""
    declared = ",".join(
        f'{{"{field}",nullptr,trt::PluginFieldType{{{FIELD_TYPES[kind]}}},{length}}}' for field, kind, length in fields
    )
    flags = [f'-DNAME="{name}"', f'-DVERSION="{version}"', f'-DSPACE="{namespace}"', f"-DFIELDS={declared}"]
    taken = {"ACCEPTS": accepts, "ACCEPTS0": accepts_first}
    flags += [f"-D{macro}={DTYPES[dtype]}" for macro, dtype in taken.items() if dtype]
    flags += [f"-D{how}"] * bool(how)
    return shared_library(SOURCE, *flags)


def shared_library(source: Path, *flags: str, name: str = "libplugin.so", after: tuple[str, ...] = ()) -> Path:
    """Compile a source to a shared library in a folder of its own. after: flags that come behind the source."""
    assert COMPILER is not None
    path = Path(tempfile.mkdtemp(prefix="trtconvert-native-")) / name
    subprocess.run(
        [COMPILER, "-std=c++17", "-shared", "-fPIC", *flags, "-o", str(path), str(source), *after], check=True
    )
    return path
