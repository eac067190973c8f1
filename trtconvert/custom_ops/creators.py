"""Creators: what a plugin node can be made by, be it a Python op or a compiled library, and the fields each declares."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from trtconvert import registration, registry
from trtconvert.backend import Backend, logger
from trtconvert.op import Op

_OP_TYPES = {float: "float32", int: "int32", str: "char"}
_INTERNAL = "Myelin"  # TensorRT's, for its own parser only: it complains when it is asked for its fields
_provided: dict[tuple[str, str, str, str], str] = {}  # backend, name, version, namespace: the library's path


@dataclass(frozen=True)
class Field:
    """A field that a creator declares, and so an ONNX attribute of its nodes.

    type: as TensorRT names it, in lower case, such as float32 or char. length: as declared. default: a Python op's; what a
    library does without a field only its author knows.
    """

    name: str
    type: str
    length: int = 1
    default: Any = None


@dataclass(frozen=True)
class Creator:
    """interface: V3ONE, V3QUICK or V1 (of plugins of version 2). library: path of the file that it came with, "" for
    TensorRT's own. op: the Python op that it makes plugins of."""

    name: str
    version: str
    namespace: str
    interface: str
    fields: tuple[Field, ...]
    library: str = ""
    op: type[Op] | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Name, version and namespace."""
        return self.name, self.version, self.namespace

    @property
    def title(self) -> str:
        """How messages name it: the version always, the namespace where there is one."""
        return f"{self.name} version {self.version}" + (f" in namespace {self.namespace}" if self.namespace else "")


def of_op(op: type[Op]) -> Creator:
    """The creator that registration.ensure_creator will register for the op."""
    fields = tuple(Field(name, _OP_TYPES[kind], 1, getattr(op, name)) for name, kind in op.attributes().items())
    return Creator(op.name, op.version, op.namespace, "V3ONE", fields, registry.origin(op), op)


@cache
def initialize(backend: Backend) -> Any:
    """Register the creators that full TensorRT brings along; TensorRT-RTX's are there."""
    if backend.is_rtx:
        return None
    log, _ = logger(backend)
    backend.trt.init_libnvinfer_plugins(log, "")
    return log  # which TensorRT goes on using


def registered(backend: Backend, ours: bool = False) -> list[Creator]:
    """The creators of all interfaces in TensorRT's registry; those that `registration` put there only if `ours`."""
    initialize(backend)
    found = backend.trt.get_plugin_registry()
    listed = getattr(found, "all_creators_recursive", None) or found.all_creators
    creators = [_described(backend, creator) for creator in listed if not creator.name.startswith(_INTERNAL)]
    return [c for c in creators if ours or not registration.made(backend, c.name, c.version, c.namespace)]


def _described(backend: Backend, creator: Any) -> Creator:
    key = (creator.name, creator.plugin_version, creator.plugin_namespace)
    # A declared field's data is not read: it is null, or whatever lies there.
    fields = tuple(Field(f.name, f.type.name.lower(), f.size) for f in creator.field_names or ())
    interface = str(creator.interface_info.kind).rpartition("_")[2]
    return Creator(*key, interface, fields, _provided.get((backend.name, *key), ""))


def provided_by(backend: Backend, creators: list[Creator], library: str) -> None:
    """Remember the library that the creators came with."""
    for creator in creators:
        _provided[(backend.name, creator.name, creator.version, creator.namespace)] = library
