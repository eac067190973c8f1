"""A folder of files that appears whole or not at all, and renewed keeps what others put there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from trtconvert.errors import ConvertError
from trtconvert.files import write_files


def write_folder(target: Path, contents: Mapping[str, bytes], force: bool = False) -> bool:
    """Write the files, by their paths within the folder `target`; False if they are there already, just so.

    A new folder is complete under a temporary name before it takes its own; one that is there and empty stays, and gets what is
    complete. force: in one that is not empty, these files are written, each whole, and libraries in its plugins/ that are none
    of them are removed; other files stay. ConvertError where something lies there without it.
    """
    target = Path(os.path.realpath(target))
    try:
        if _holds(target, contents):
            return False
        free = not target.exists() or (target.is_dir() and not any(target.iterdir()))
        if not free and not (force and target.is_dir()):
            way = "give another name, or write over it: --force" if target.is_dir() else "give another name"
            raise ConvertError("something else lies there already", where=str(target), fix=way)
        if free:
            _create(target, contents)
        else:
            _write(target, contents)
            for stale in list(_stale(target, contents)):
                stale.unlink()
    except OSError as error:
        raise ConvertError(
            f"cannot write the folder: {error.strerror or error}",
            where=str(target),
            fix="give another place, or one with more space that may be written to",
        ) from error
    return True


def _create(target: Path, contents: Mapping[str, bytes]) -> None:
    """An empty folder is not replaced: a shell may stand in it, or something be mounted there."""
    there = target.is_dir()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target if there else _workshop(target.parent)))
    try:
        _write(temporary / "new", contents)
        if there:
            for made in sorted((temporary / "new").iterdir()):
                os.replace(made, target / made.name)
        else:
            os.replace(temporary / "new", target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(folder: Path, contents: Mapping[str, bytes]) -> None:
    files = {folder / name: data for name, data in contents.items()}
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
    write_files(files)


def _holds(folder: Path, contents: Mapping[str, bytes]) -> bool:
    """Whether the folder has these files, and no libraries beside them."""
    paths = {folder / name: data for name, data in contents.items()}
    same = all(path.is_file() and path.read_bytes() == data for path, data in paths.items())
    return same and not any(_stale(folder, contents))


def _stale(folder: Path, contents: Mapping[str, bytes]) -> Iterator[Path]:
    """Libraries that an earlier export left: whoever loads what is in plugins/ would load them too."""
    return (path for path in (folder / "plugins").glob("*.so") if f"plugins/{path.name}" not in contents)


def _workshop(parent: Path) -> Path:
    """Where the folder is made: not within a model repository that a server may be watching, if it can be helped."""
    outside = parent.parent
    return outside if outside.stat().st_dev == parent.stat().st_dev and os.access(outside, os.W_OK) else parent
