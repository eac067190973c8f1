"""Which creators TensorRT's registry has for trtconvert's plugins: the Python ones, or those of the C++ library.

They have the same names, so one kind at a time; plugins that exist already stay what they are. The Python creators build
and load any op; the library's launch with less time on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import RLock
from typing import Any, TypeAlias

from trtconvert import adapter, native
from trtconvert.backend import Backend
from trtconvert.errors import ConvertError
from trtconvert.op import Op

Key: TypeAlias = "tuple[str, str, str]"
"""Name, version and namespace."""


@dataclass(frozen=True)
class _Library:
    """The C++ library in TensorRT's registry: TensorRT's handle of it, and what its creators are called."""

    handle: Any
    keys: frozenset[Key]


_made: dict[str, dict[Key, Any]] = {}  # by backend: the Python creators
_libraries: dict[str, _Library] = {}
lock = RLock()  # held while creators change; and by who lets TensorRT look them up, as it does in making a context
parsing = RLock()  # taken before `lock`: held while a parser makes plugins of Python ops, which the library cannot make


def ensure_creator(backend: Backend, name: str, version: str, namespace: str, op: type[Op] | None = None) -> None:
    """See to it that there is a creator of that name; harmless to repeat, from any thread.

    op is needed to build with it, and lets the C++ library go; plans load without. ConvertError if somebody else's creator has
    the name.
    """
    key = (name, version, namespace)
    with lock:
        if key in _native(backend):
            if op is None:
                return
            use_python(backend)
        creator = _python(backend, key)
        if op is not None:
            creator.serve(op)


def _python(backend: Backend, key: Key) -> Any:
    """The Python creator of that name, registered."""
    made = _made.setdefault(backend.name, {})
    if key not in made:
        creator = adapter.creator(backend, *key)
        if not backend.trt.get_plugin_registry().register_creator(creator, key[2]):
            raise ConvertError(
                f"another plugin library has registered {key[0]}, version {key[1]}, namespace {key[2]!r}",
                fix="do not load that library together with this op, or give the op another version",
            )
        made[key] = creator
    return made[key]


def _native(backend: Backend) -> frozenset[Key]:
    return _libraries[backend.name].keys if backend.name in _libraries else frozenset()


def made(backend: Backend, name: str, version: str, namespace: str) -> bool:
    """Whether the creator of that name is one of trtconvert's, registered here."""
    key = (name, version, namespace)
    return key in _made.get(backend.name, {}) or key in _native(backend)


def use_native(backend: Backend) -> None:
    """Let the C++ library's creators serve from now on, in place of the Python ones; ops that it lacks keep theirs.

    ConvertError where it is not built, or somebody else has loaded it.
    """
    path = native.library()
    with parsing, lock:
        if backend.name in _libraries:
            return
        plugins = backend.trt.get_plugin_registry()
        python = _made.get(backend.name, {})
        for creator in python.values():
            plugins.deregister_creator(creator)
        before = _keys(plugins)
        handle = plugins.load_library(str(path))
        keys = _keys(plugins) - before
        _made[backend.name] = {key: creator for key, creator in python.items() if key not in keys}
        for key, creator in _made[backend.name].items():
            plugins.register_creator(creator, key[2])
        if not keys:
            raise ConvertError(
                "the C++ plugin library registered no creator: others of the same names are there",
                where=str(path),
                fix="do not load it with --plugin too",
            )
        _libraries[backend.name] = _Library(handle, frozenset(keys))


def use_python(backend: Backend) -> None:
    """Let the Python creators serve again, for all that the library has served: engines in use may want further contexts."""
    with lock:
        library = _libraries.pop(backend.name, None)
        if library is not None:
            backend.trt.get_plugin_registry().deregister_library(library.handle)
            for key in sorted(library.keys):
                _python(backend, key)


def _keys(plugins: Any) -> set[Key]:
    return {(c.name, c.plugin_version, c.plugin_namespace) for c in plugins.all_creators}
