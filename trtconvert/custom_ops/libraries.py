"""Compiled plugin libraries: opened once a process, their creators counted; each way to fail has its sentence."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock

from trtconvert import registry
from trtconvert.backend import Backend, select
from trtconvert.custom_ops import creators, elf
from trtconvert.custom_ops.creators import Creator
from trtconvert.errors import ConvertError


@dataclass(frozen=True)
class Loaded:
    """A library in this process: what it registered, and what is worth telling about it."""

    path: Path
    creators: list[Creator]
    notes: list[str]


_loaded: dict[tuple[str, Path], Loaded] = {}
_loading = RLock()  # what is new in the registry is the library's only if no other comes in between


def is_library(path: Path) -> bool:
    """Whether it is to be opened as a shared library, going by its name or its first bytes."""
    if path.suffix == ".so" or ".so." in path.name:
        return True
    if path.suffix == ".py" or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == elf.MAGIC


def load_plugins(files: Iterable[Path], backend: str) -> list[str]:
    """Load every --plugin file, Python or library, the latter for the backend of that name; returns notes. ConvertError for
    the first that does not load."""
    notes = []
    for file in map(Path, files):
        if is_library(file):
            loaded = load(file, select(backend))
            _refuse(loaded, select(backend))
            notes += loaded.notes
        else:
            registry.load_file(file)
    return notes


def load_libraries(folder: Path, files: Iterable[str], backend: str) -> None:
    """Load those of the files, relative to the folder, that are libraries."""
    load_plugins((folder / file for file in files if is_library(folder / file)), backend)


def opened() -> set[Path]:
    """The libraries that this process has loaded."""
    return {path for _, path in _loaded}


def load(path: Path, backend: Backend) -> Loaded:
    """Open the library and register what its `getCreators` returns; one that registers itself when opened does that.

    Loading a library again is harmless. ConvertError says why it cannot be opened, or that it brought nothing usable.
    """
    if not path.is_file():
        what = "not a file" if path.exists() else "plugin library not found"
        raise ConvertError(what, where=str(path), fix="give the path of a .so with plugins, or of a .py file")
    with _loading:
        return _load(path, path.resolve(), backend)


def _load(path: Path, resolved: Path, backend: Backend) -> Loaded:
    if (backend.name, resolved) in _loaded:
        return _loaded[backend.name, resolved]
    needed = elf.read(resolved).needed
    foreign = _foreign(needed, backend)
    before = creators.registered(backend)
    entry = _open(resolved, needed, foreign, backend)
    new = [c for c in creators.registered(backend) if c not in before]
    if not new:
        raise _nothing(resolved, entry, foreign, before, backend)
    creators.provided_by(backend, new, str(resolved))
    new = [replace(creator, library=str(resolved)) for creator in new]
    notes = [f"{path.name} registered {', '.join(creator.title for creator in new)}"]
    if foreign:
        notes.append(
            f"{path.name} names {', '.join(foreign)}, {_other(foreign, backend)}: two TensorRTs are in memory now"
        )
    return _loaded.setdefault((backend.name, resolved), Loaded(path, new, notes))


def _open(path: Path, needed: tuple[str, ...], foreign: list[str], backend: Backend) -> str:
    """Open it; returns the entry point that it has, "" for none."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise _not_opened(path, str(error), needed, foreign, backend) from error
    entry = next((name for name in ("getCreators", "getPluginCreators") if hasattr(library, name)), "")
    if entry == "getCreators":
        backend.trt.get_plugin_registry().load_library(str(path))
    return entry


def _foreign(needed: tuple[str, ...], backend: Backend) -> list[str]:
    """The TensorRT libraries among those needed that are not of the running TensorRT."""
    found = []
    for name in needed:
        match = re.match(r"lib(nvinfer|tensorrt)(_\w+?)??(_rtx)?\.so(?:\.(\d+))?", name)
        if match is None:
            continue
        rtx = match[3] is not None
        if rtx != backend.is_rtx or (match[4] is not None and int(match[4]) != backend.major):
            found.append(name)
    return found


def _other(foreign: list[str], backend: Backend) -> str:
    major = re.search(r"\.so\.(\d+)", foreign[0])
    kind = "TensorRT-RTX" if "_rtx" in foreign[0] else "TensorRT"
    return f"the library of {kind}{f' {major[1]}' if major else ''}, and {backend.title} is running"


def _not_opened(path: Path, reason: str, needed: tuple[str, ...], foreign: list[str], backend: Backend) -> ConvertError:
    reason = reason.removeprefix(f"{path}: ")
    lists = f"; it needs {', '.join(needed)}" if needed else ""
    missing = re.match(r"(\S+): cannot open shared object file", reason)
    if foreign:
        fix = f"build the library for {backend.title}: it names {', '.join(foreign)}, {_other(foreign, backend)}"
    elif missing and "cuda" in missing[1]:
        fix = "install the CUDA runtime or driver that it names, or link it statically"
    elif missing:
        fix = f"install {missing[1]}, or put its folder into LD_LIBRARY_PATH"
    elif "undefined symbol" in reason:
        fix = "link the library to what defines that symbol (-l..., after the objects), or rebuild it for this TensorRT"
    else:
        fix = "build the library on this machine"
    return ConvertError(f"the plugin library does not open: {reason}{lists}", where=str(path), fix=fix)


def _alone(path: Path, backend: Backend) -> str:
    """What the library registers in a process where there is no other library; "" for nothing."""
    command = [sys.executable, "-m", "trtconvert", "plugins", "list", str(path), "--backend", backend.name, "--json"]
    # Elsewhere than here: -m would take modules from this folder.
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    return ", ".join(f"{c['name']} version {c['version']}" for c in json.loads(result.stdout or "[]"))


def _nothing(path: Path, entry: str, foreign: list[str], before: list[Creator], backend: Backend) -> ConvertError:
    others = sorted({Path(creator.library).name for creator in before if creator.library})
    if entry == "getPluginCreators":
        what = "has getPluginCreators only, the entry point of before TensorRT 10, and registered nothing when opened"
        fix = "export getCreators and setLoggerFinder, which return IPluginCreatorV3One objects"
    elif entry and (names := _alone(path, backend) if others else ""):
        what = f"has nothing new: {names} is registered already, by {' or '.join(others)}"
        fix = "load one of the libraries only, or give one plugin another version or namespace"
    elif entry:
        what = "opens, but registered no creator: its getCreators returned none"
        fix = "let getCreators return the creators and their number"
    else:
        what = (
            "opens, but registered no creator: it exports no getCreators, and none registered itself when it was opened"
        )
        fix = "use REGISTER_TENSORRT_PLUGIN(Creator), or export getCreators; check that the linker kept them"
    if foreign:
        what += f"; it names {', '.join(foreign)}, whose registry is another one"
    return ConvertError(f"the plugin library {what}", where=str(path), fix=fix)


def _refuse(loaded: Loaded, backend: Backend) -> None:
    """ConvertError for creators that this TensorRT's parser cannot use, and for names that a Python op has."""
    old = [creator.title for creator in loaded.creators if creator.interface == "V1"]
    if old and backend.is_rtx and len(old) == len(loaded.creators):
        raise ConvertError(
            f"the library's creators are of IPluginV2, which {backend.title} does not import: {', '.join(old)}",
            where=str(loaded.path),
            fix="port the plugins to IPluginV3 and IPluginCreatorV3One, or use --backend tensorrt",
        )
    for creator in loaded.creators:
        op = registry.find_version(*creator.key)
        if op is not None:
            raise ConvertError(
                f"{creator.title} is in the library and also the op {op.__qualname__} in {registry.origin(op)}",
                where=str(loaded.path),
                fix="rename one of them, or raise its version",
            )
