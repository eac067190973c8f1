"""What around the tool can spoil a build: second copies of libraries, an old driver, the locale, a full temporary folder."""

from __future__ import annotations

import locale
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

LIBRARIES = ("libnvinfer", "libtensorrt_rtx")  # of TensorRT, and of TensorRT-RTX
PACKAGES = ("tensorrt_libs", "tensorrt_rtx_libs")  # wheels that hold them
SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/lib")
SPACE = 1 << 30  # bytes; a build of a large model writes so much to the temporary folder


def library_folders(environment: Mapping[str, str]) -> list[Path]:
    """Where the loader finds libraries, in its order: LD_LIBRARY_PATH, the wheels, the system's folders."""
    listed = [Path(part) for part in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if part]
    wheels = [Path(place) for name in PACKAGES for place in _places(name)]
    return list(dict.fromkeys([*listed, *wheels, *map(Path, SYSTEM)]))


def _places(package: str) -> Iterable[str]:
    spec = find_spec(package)
    return (spec.submodule_search_locations or ()) if spec is not None else ()


def copies(folders: Iterable[Path]) -> dict[str, list[Path]]:
    """By library, its copies: files of different folders, links to one file counted once."""
    found: dict[str, dict[Path, Path]] = {name: {} for name in LIBRARIES}
    for folder in folders:
        for name in LIBRARIES:
            for file in sorted(folder.glob(f"{name}.so.*")) if folder.is_dir() else ():
                found[name].setdefault(file.resolve(), file)
    return {name: list(files.values()) for name, files in found.items() if files}


def loaded(maps: Path = Path("/proc/self/maps")) -> dict[str, Path]:
    """By library, the file that this process has loaded."""
    try:
        text = maps.read_text()
    except OSError:
        return {}
    files = re.findall(r"(/\S+/(lib\w+)\.so[.\d]*)$", text, flags=re.MULTILINE)
    return {name: Path(file) for file, name in files if name in LIBRARIES}


def too_old(driver: tuple[int, int], toolkit: str) -> str | None:
    """Why kernels of this CUDA toolkit, "13.0", may not load with a driver for that CUDA version; None if they do."""
    major, minor = (int(part) for part in toolkit.split(".")[:2])
    if driver[0] >= major:
        return None
    return f"the driver serves CUDA {driver[0]}.{driver[1]}, kernels are compiled by CUDA {major}.{minor}"


def locale_faults(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What of the locale does harm, and the fix."""
    if sys.getfilesystemencoding().lower() not in ("utf-8", "utf8"):
        yield f"file names are {sys.getfilesystemencoding()}, not UTF-8", "export PYTHONUTF8=1 LC_ALL=C.UTF-8"
    wanted = next((environment[k] for k in ("LC_ALL", "LC_NUMERIC", "LANG") if environment.get(k)), "C")
    try:
        before = locale.setlocale(locale.LC_NUMERIC)
        locale.setlocale(locale.LC_NUMERIC, wanted)
        point = locale.localeconv()["decimal_point"]
        locale.setlocale(locale.LC_NUMERIC, before)
    except locale.Error:
        yield f"the locale {wanted!r} is not installed", "export LC_ALL=C.UTF-8"
        return
    if point != ".":
        yield (
            f"the locale {wanted!r} writes numbers with {point!r}, which C libraries may then expect",
            "export LC_NUMERIC=C",
        )


def temporary_faults(folder: Path | None = None) -> Iterator[tuple[str, str]]:
    """What is wrong with the temporary folder, and the fix."""
    try:
        place = folder or Path(tempfile.gettempdir())
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        yield f"the temporary folder cannot be written: {error}", "set TMPDIR to a writable folder"
        return
    free = shutil.disk_usage(place).free
    if free < SPACE:
        yield f"{place} has {free / 2**20:.0f} MB left", "free some, or set TMPDIR to a folder with 1 GB or more"
