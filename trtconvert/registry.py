"""The ops there are: entry points (built-in ones come that way too), --plugin files and `register`."""

from __future__ import annotations

import importlib.util
import sys
import time
import traceback
from importlib.metadata import entry_points
from pathlib import Path

from trtconvert.errors import ConvertError
from trtconvert.op import Op

GROUP = "trtconvert.plugins"
_ops: dict[tuple[str, str, str], type[Op]] = {}
_since: dict[type[Op], float] = {}
_loaded = False


def register(op: type[Op]) -> type[Op]:
    """Make an op known to fuse, build and verify; usable as a decorator.

    ConvertError if another op has the same name, version and namespace.
    """
    op.attributes()  # a bad annotation is reported here, not in the middle of a build
    key = (op.name, op.version, op.namespace)
    known = _ops.setdefault(key, op)
    if known is not op and _origin(known) != _origin(op):
        raise ConvertError(
            f"two ops have the name {op.name}, version {op.version}: {known.__module__}.{known.__qualname__} and "
            f"{op.__module__}.{op.__qualname__}",
            where=" and ".join(_origin(o)[0] for o in (known, op)),
            fix="rename one of them, or raise its version",
        )
    _ops[key] = op
    _since.setdefault(op, time.time())
    return op


def _origin(op: type[Op]) -> tuple[str, str]:
    module = sys.modules.get(op.__module__)
    return getattr(module, "__file__", None) or op.__module__, op.__qualname__


def origin(op: type[Op]) -> str:
    """File that defines the op."""
    return _origin(op)[0]


def since(op: type[Op]) -> float:
    """When the op was first registered, seconds since 1970."""
    return _since[op]


def ops() -> list[type[Op]]:
    """All registered ops, by name and version."""
    _load_entry_points()
    return [op for _, op in sorted(_ops.items())]


def added() -> list[type[Op]]:
    """The ops that came into this process otherwise than by entry points: from --plugin files and by `register`."""
    installed = {entry.module for entry in entry_points(group=GROUP)}
    return [op for _, op in sorted(_ops.items()) if op.__module__ not in installed]


def _load_entry_points() -> None:
    global _loaded
    if _loaded:
        return
    _loaded = True
    for entry in sorted(entry_points(group=GROUP), key=lambda e: e.name):
        try:
            loaded = entry.load()
        except (Exception, SystemExit) as error:  # third-party code may raise anything
            raise _failed(f"entry point {entry.name} = {entry.value}", error) from error
        if not (isinstance(loaded, type) and issubclass(loaded, Op)):
            raise ConvertError(f"entry point {entry.name} = {entry.value} is not an Op class")
        register(loaded)


def load_file(path: Path) -> list[type[Op]]:
    """Import a plugin file and register every Op class it defines. Loading a file again is harmless."""
    if not path.is_file():
        raise ConvertError(
            "plugin file not found", where=str(path), fix="give the path of a .py file that defines an Op"
        )
    if path.suffix == ".so" or ".so." in path.name:
        raise ConvertError(
            "a compiled plugin library holds no Op", where=str(path), fix="give it to build, inspect, verify or bench"
        )
    name = f"trtconvert_plugin_{path.resolve().stem}_{abs(hash(str(path.resolve())))}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path.resolve())
        if spec is None or spec.loader is None:
            raise ConvertError(
                "not a Python file", where=str(path), fix="a plugin file is a .py file that defines an Op"
            )
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            del sys.modules[name]
            raise _failed(str(path), error) from error
    module = sys.modules[name]
    found = [o for o in vars(module).values() if isinstance(o, type) and issubclass(o, Op) and o.__module__ == name]
    if not found:
        raise ConvertError("the plugin file defines no Op class", where=str(path), fix="see plugins/fused_relu.py")
    _load_entry_points()  # so that a name taken by a built-in op is seen
    return [register(op) for op in found]


def _failed(where: str, error: BaseException) -> ConvertError:
    if isinstance(error, ConvertError):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    line = f", line {frames[-1].lineno} of {frames[-1].filename}" if frames else ""
    reason = next(iter(str(error).splitlines()), "")
    return ConvertError(f"the plugin could not be loaded: {type(error).__name__}: {reason}", where=f"{where}{line}")


def find(name: str) -> type[Op] | None:
    """The newest version of the op with that op_type."""
    versions = [op for op in ops() if op.name == name]
    return max(versions, key=lambda op: (len(op.version), op.version), default=None)  # "10" is newer than "2"


def find_version(name: str, version: str, namespace: str) -> type[Op] | None:
    """The op of exactly that name, version and namespace."""
    ops()
    return _ops.get((name, version, namespace))


def by_pattern(names: tuple[str, ...]) -> list[type[Op]]:
    """Ops for `--pattern` names; for none given, those that are not opt-in."""
    known = {op.pattern: op for op in ops() if op.pattern}
    for name in names:
        if name not in known:
            raise ConvertError(f"unknown pattern {name!r}", fix=f"known patterns: {', '.join(sorted(known))}")
    return [known[name] for name in names] if names else [op for op in known.values() if not op.opt_in]
