"""Where engines are kept: a folder per key, that appears whole by one rename; damaged ones are found by their digests."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtconvert.caching import locks
from trtconvert.files import cache_dir

PLAN = "engine.plan"
_ENTRY = "entry.json"  # written last
_UNFINISHED = ".tmp"
_CHUNK = 1 << 20
_KEY = re.compile(r"[0-9a-f]{64}")


class DamagedError(Exception):
    """An entry is not what was put there, or is gone."""


@dataclass(frozen=True)
class Entry:
    """What is told of an entry.

    model: the file that it was first made from. made: when, UTC, ISO 8601. seconds: what the build took. notices: of the build.
    files: name to sha256 and bytes. used: when it was last asked for, seconds since 1970.
    """

    key: str
    folder: Path
    model: str
    made: str
    seconds: float
    backend: str
    targets: list[str]
    notices: list[str]
    files: dict[str, tuple[str, int]]
    used: float

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.files.values())


def folder() -> Path:
    """Where the entries lie."""
    return cache_dir() / "engines"


def lock(key: str) -> Path:
    """The file by which the key's entry is locked."""
    return folder() / f"{key}.lock"


def find(key: str) -> Entry | None:
    """The key's entry; None if there is none, or if what describes it is damaged."""
    place = folder() / key
    try:
        told = json.loads((place / _ENTRY).read_bytes())
        if told.pop("digest") != _digest(told) or told["key"] != key:
            return None
        told["files"] = {name: (str(digest), int(size)) for name, (digest, size) in told["files"].items()}
        return Entry(folder=place, used=(place / _ENTRY).stat().st_mtime, **told)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def entries() -> list[Entry]:
    """All of them, the one used last first."""
    names = (path.name for path in _listed() if _KEY.fullmatch(path.name))
    return sorted((e for e in map(find, names) if e is not None), key=lambda entry: -entry.used)


def touch(entry: Entry) -> None:
    """It is used now."""
    with contextlib.suppress(OSError):
        os.utime(entry.folder / _ENTRY)


def checked(path: Path, sha256: str) -> Iterator[bytes]:
    """A file, piece by piece. DamagedError, at the end, if its digest is another, or if it cannot be read."""
    made = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                made.update(chunk)
                yield chunk
    except OSError as error:
        raise DamagedError(f"{path.name}: {error.strerror}") from error
    if made.hexdigest() != sha256:
        raise _changed(path.name)


def _changed(name: str) -> DamagedError:
    return DamagedError(f"{name} was changed after it was written")


def pieces(entry: Entry, name: str) -> Iterator[bytes]:
    """A file of the entry. DamagedError as `checked` raises it."""
    return checked(entry.folder / name, entry.files.get(name, ("", 0))[0])


def read(entry: Entry, name: str) -> bytes:
    """A file of the entry as a whole. DamagedError as above."""
    try:
        data = (entry.folder / name).read_bytes()
    except OSError as error:
        raise DamagedError(f"{name}: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != entry.files.get(name, ("", 0))[0]:
        raise _changed(name)
    return data


def check(entry: Entry) -> None:
    """DamagedError unless all files are as they were put there."""
    for name in entry.files:
        for _ in pieces(entry, name):
            pass


def add(key: str, contents: Mapping[str, Iterable[bytes]], told: Mapping[str, Any]) -> Entry:
    """Put an entry there, instead of one that is there. The key's lock is held. OSError leaves nothing behind.

    Nothing is forced to the disk: what a power cut takes away is found missing by the digests.
    """
    place, unfinished = folder() / key, folder() / f"{key}{_UNFINISHED}"
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir()
        files = {name: _write(unfinished / name, data) for name, data in contents.items()}
        described = {"key": key, "files": files, **told}
        text = json.dumps({**described, "digest": _digest(described)}, indent=2, sort_keys=True)
        (unfinished / _ENTRY).write_text(f"{text}\n", encoding="utf-8")
        _discard(place)
        os.rename(unfinished, place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return Entry(folder=place, used=time.time(), **described)


def remove(key: str) -> bool:
    """Remove the entry, and what a killed process left of one; False if it is in use, or cannot be removed."""
    with locks.removing(lock(key)) as free:
        if free:
            for left in folder().glob(f"{key}*{_UNFINISHED}"):
                shutil.rmtree(left, ignore_errors=True)
            _discard(folder() / key)
        return free and not (folder() / key).exists()


def shrink(limit: int, kept: str) -> None:
    """Remove what was not used for longest until the entries take no more than `limit` bytes, and what killed processes left.
    What is in use stays, and so does the entry `kept`."""
    sweep()
    found = entries()
    total = sum(entry.bytes for entry in found)
    for entry in reversed(found):
        if total > limit and entry.key != kept and remove(entry.key):
            total -= entry.bytes


def sweep() -> None:
    """Remove what killed processes left: unfinished and damaged entries, and locks without one."""
    for key in sorted({match[0] for path in _listed() if (match := _KEY.match(path.name))}):
        if find(key) is None:
            remove(key)


def _write(path: Path, data: Iterable[bytes]) -> tuple[str, int]:
    """Its sha256 and size."""
    made, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for chunk in data:
            made.update(chunk)
            size += file.write(chunk)
    return made.hexdigest(), size


def _discard(place: Path) -> None:
    """Remove an entry so that no half of one is ever seen: under its name it is gone at once."""
    aside = place.with_name(f"{place.name}.old{_UNFINISHED}")
    with contextlib.suppress(OSError):  # gone already, or not to be removed: then its name stays taken
        os.rename(place, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _listed() -> list[Path]:
    try:
        return sorted(folder().iterdir())
    except OSError:
        return []


def _digest(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
