"""The plugin libraries that a plan needs where there is no Python: trtconvert's own, and those it was built with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trtconvert import native
from trtconvert.custom_ops.libraries import is_library
from trtconvert.errors import ConvertError
from trtconvert.manifest import Manifest


@dataclass(frozen=True)
class Library:
    """A shared library. asks: it exports getCreators, for IPluginRegistry::loadLibrary; else it registers itself when opened."""

    path: Path
    data: bytes

    @property
    def asks(self) -> bool:
        return b"\0getCreators\0" in self.data


def needed(described: Manifest, plan: Path) -> list[Library]:
    """The libraries that the plan's plugins come from, in the order in which they are to be loaded.

    ConvertError if one is not there, or is another than at the build.
    """
    found = [_read(path, described) for path in _paths(described, plan)]
    names = [library.path.name for library in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConvertError(
            f"two plugin libraries are called {twice}, and they go into one folder",
            where=str(plan),
            fix="rename one of them and build the plan again",
        )
    return found


def _paths(described: Manifest, plan: Path) -> Iterator[Path]:
    ops = [
        (plugin.name, plugin.version, plugin.namespace) for plugin in described.plugins if plugin.kind == "IPluginV3"
    ]
    if ops:
        yield native.library(ops)
    yield from (plan.parent / file for file in described.plugin_files if is_library(plan.parent / file))


def _read(path: Path, described: Manifest) -> Library:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConvertError(
            f"a plugin library of the plan is missing: {error.strerror or error}",
            where=str(path),
            fix="put the library back, or build the plan again with --plugin",
        ) from error
    digests = {plugin.sha256 for plugin in described.plugins if plugin.provider == path.name}
    if digests and hashlib.sha256(data).hexdigest() not in digests:
        raise ConvertError(
            "the plugin library is not the one that the plan was built with",
            where=str(path),
            fix="put that one back, or build the plan again with this one",
        )
    return Library(path, data)
