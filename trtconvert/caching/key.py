"""What makes two builds the same, as one digest: contents, never paths or times."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import trtconvert
from trtconvert import gpu, registry, surroundings
from trtconvert import model as onnx_model
from trtconvert.backend import Backend, unloaded
from trtconvert.caching.locks import Unusable
from trtconvert.op import Op
from trtconvert.options import BuildOptions, choose_targets
from trtconvert.profiles import bake

# Options that leave the plan as it is, and those of which the key has what they come to.
_WITHOUT_EFFECT = ("timing_cache", "verbose")
_RESOLVED = ("backend", "targets", "plugins")
# Packages that have a say in what the model becomes on its way, or compile the kernels.
_PACKAGES = (
    "cuda-bindings", "numpy", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-modelopt", "onnx", "onnx-graphsurgeon",
    "onnxruntime", "polygraphy",
)  # fmt: skip
_SOURCES = (".py", ".cu", ".cuh", ".json")


@dataclass(frozen=True)
class Key:
    """digest: sha256 in hex. reads: the files that the build reads, which must not be written to."""

    digest: str
    reads: tuple[Path, ...]


def of(model: Path, options: BuildOptions) -> Key:
    """The key of a build of this model on this machine. ConvertError as `build` raises it, OSError for what cannot be read,
    Unusable where contents cannot be told."""
    backend = unloaded(options.backend)
    targets = choose_targets(options, backend)
    digest, data = _model(model)
    plugins = [_plugin(Path(file).resolve()) for file in options.plugins]  # before the registry is asked what is in it
    parts = {
        "model": [digest, [_file(file) for file in data]],
        "options": {
            field.name: _plain(_chosen(field.name, getattr(options, field.name)))
            for field in dataclasses.fields(options)
            if field.name not in (*_WITHOUT_EFFECT, *_RESOLVED)
        },
        "backend": [backend.name, backend.version, _libraries()],
        "targets": [*targets, _gpu(backend, targets)],
        "plugins": plugins,
        "ops": [_op(op) for op in registry.added()],
        "libraries": _others(options.plugins),
        "tool": [trtconvert.__version__, *_sources()],
        "packages": _versions(),
    }
    text = json.dumps(parts, sort_keys=True)
    return Key(hashlib.sha256(text.encode()).hexdigest(), (model, *data, *map(Path, options.plugins)))


# --- contents ------------------------------------------------------------------------------------------------------


def _file(path: Path) -> str:
    """sha256 of a file."""
    return _read(path)[0]


def _read(path: Path, word: bytes = b"\0") -> tuple[str, bool]:
    """sha256 of a file, piece by piece, and whether the word is in it."""
    made, found, end = hashlib.sha256(), False, b""
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            made.update(chunk)
            found = found or word in chunk or word in end + chunk[: len(word)]
            end = chunk[-len(word) :]
    return made.hexdigest(), found


def _model(path: Path) -> tuple[str, list[Path]]:
    """sha256 of the model's file, and its external data files. A model that has some names them with the word `location`; only
    such models are parsed."""
    if not path.is_file():
        onnx_model.load(path)  # says so
    digest, may_have = _read(path, b"location")
    if not may_have:
        return digest, []
    onnx_model.load(path)  # checks that they are there, and beside the model
    whole = onnx.load(str(path), format="protobuf", load_external_data=False)
    return digest, sorted(onnx_model.data_files(whole, path.parent))


def _plain(value: Any) -> Any:
    """A value as JSON knows it; files and folders by their contents, arrays and tensors by their bytes."""
    if isinstance(value, Path):
        return _file(value) if value.is_file() else [[p, _file(value / p)] for p in _files_in(value)]
    if isinstance(value, Mapping):
        return sorted([str(name), _plain(inner)] for name, inner in value.items())
    if dataclasses.is_dataclass(value):
        return [[field.name, _plain(getattr(value, field.name))] for field in dataclasses.fields(value)]
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if hasattr(value, "SerializeToString"):
        return hashlib.sha256(value.SerializeToString(deterministic=True)).hexdigest()
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        told = array.tolist() if array.dtype.hasobject else hashlib.sha256(array.tobytes()).hexdigest()
        return [array.dtype.str, list(array.shape), told]
    if value is None or isinstance(value, str | int | float):
        return value
    raise Unusable(f"an option holds a {type(value).__name__}, whose content cannot be told")


def _files_in(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _chosen(name: str, value: Any) -> Any:
    """An option, where it may name files in text."""
    return {tensor: bake.file_named(given) or given for tensor, given in value.items()} if name == "bake" else value


# --- plugins and the tool ------------------------------------------------------------------------------------------


@cache  # as it was when it was loaded
def _plugin(path: Path) -> list[str]:
    """A --plugin file, name and content; a Python file is loaded, so that what it defines is known."""
    from trtconvert.custom_ops import libraries  # few builds have plugin files

    if not libraries.is_library(path):
        registry.load_file(path)
    return [path.name, _file(path)]


def _op(op: type[Op]) -> list[Any]:
    """An op by its class with its attributes' defaults, its kernel and its author's modules."""
    source = hashlib.sha256(op.source.encode()).hexdigest()
    file = Path(registry.origin(op))
    if not file.is_file():
        raise Unusable(f"the op {op.name} was defined in no file, so that nothing tells whether it has changed")
    depth = min(op.__module__.count("."), len(file.parents) - 1)
    defaults = {name: getattr(op, name) for name in op.attributes()}
    names = [op.__qualname__, op.name, op.version, op.namespace]
    return [*names, defaults, source, _written(file, file.parents[depth], registry.since(op))]


@cache
def _written(file: Path, root: Path, since: float) -> list[str]:
    """The modules' digests. Unusable if one was written to after the op was registered: its code here is the older one."""
    found = list(_modules(file, root, set()))
    if changed := next((module for module in found if module.stat().st_mtime > since), None):
        raise Unusable(f"{changed} was changed after this process had loaded it; a new process uses the cache again")
    return sorted(set(map(_file, found)))


def _modules(file: Path, root: Path, seen: set[Path]) -> Iterator[Path]:
    """A Python file, and those beside it, or in its package below `root`, that it imports."""
    if file in seen or not file.is_file():
        return
    seen.add(file)
    yield file
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # it lies beside the op, but was never loaded
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        level, module = (node.level, node.module or "") if isinstance(node, ast.ImportFrom) else (0, "")
        names = [module, *(f"{module}.{alias.name}".strip(".") for alias in node.names)]
        for place in [file.parents[level - 1]] if level else [file.parent, root]:
            for inside in (place.joinpath(*name.split(".")) for name in names if name):
                yield from _modules(inside.with_name(f"{inside.name}.py"), root, seen)
                yield from _modules(inside / "__init__.py", root, seen)


def _others(given: Iterable[Path]) -> list[str]:
    """Plugin libraries that this process has loaded for other builds: their creators serve this one too."""
    libraries = sys.modules.get("trtconvert.custom_ops.libraries")
    opened: set[Path] = libraries.opened() if libraries is not None else set()
    return sorted(set(map(_file, opened)) - set(map(_file, map(Path, given))))


@cache
def _sources() -> list[str]:
    """One digest for each package that brings ops: of its sources and kernels, trtconvert's own first."""
    names = {entry.module.split(".")[0] for entry in metadata.entry_points(group=registry.GROUP)} - {"trtconvert"}
    packages = ("trtconvert", "trtconvert.plugins", "trtconvert.kernels", *sorted(names))
    return [_package(name) for name in packages]


def _package(name: str) -> str:
    spec = find_spec(name)
    places = [Path(place) for place in (spec.submodule_search_locations or [] if spec else [])]
    files = [file for place in places for file in sorted(place.rglob("*")) if file.suffix in _SOURCES]
    if not places and spec is not None and spec.origin:
        files = [Path(spec.origin)]
    made = hashlib.sha256()
    for file in files:
        made.update(f"{file.name}\0".encode() + file.read_bytes() + b"\0")
    return made.hexdigest()


# --- machine -------------------------------------------------------------------------------------------------------


def _gpu(backend: Backend, targets: tuple[str, ...]) -> str:
    """The GPU where it decides: full TensorRT times its kernels on it, and fusions are timed on the one that is built for."""
    here = gpu.current()
    return here.name if here is not None and (not backend.is_rtx or targets == (here.arch,)) else ""


@cache
def _libraries() -> list[tuple[str, int]]:
    """TensorRT's libraries by name and size: metadata do not tell which copy is used."""
    found = surroundings.copies(surroundings.library_folders(os.environ))
    return [(file.name, file.stat().st_size) for files in found.values() for file in files]


@cache
def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found
