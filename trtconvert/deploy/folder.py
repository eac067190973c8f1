"""A folder of files that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trtconvert.errors import ConvertError
from trtconvert.files import write_files


def write_folder(target: Path, contents: Mapping[str, bytes], force: bool = False) -> bool:
    """Write the files, by their paths within the folder `target`; False if they are there already, just so.

    They are complete in a folder of a temporary name before that takes its own. ConvertError where something else lies there,
    unless force: then that gives way.
    """
    target = Path(os.path.abspath(target))
    if holds(target, contents):
        return False
    if os.path.lexists(target) and not force:
        raise ConvertError(
            "something else lies there already", where=str(target), fix="give another name, or replace it: --force"
        )
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=_workshop(target.parent)))
        files = {temporary / "new" / name: data for name, data in contents.items()}
        for path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
        write_files(files)
        if os.path.lexists(target):
            os.replace(target, temporary / "old")
        os.replace(temporary / "new", target)
    except OSError as error:
        raise ConvertError(
            f"cannot write the folder: {error.strerror or error}",
            where=str(target),
            fix="free some space, or give another place",
        ) from error
    finally:
        if temporary is not None:
            _put_back(temporary, target)
    return True


def holds(folder: Path, contents: Mapping[str, bytes]) -> bool:
    """Whether the folder has these files and no others."""
    if not folder.is_dir():
        return False
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}
    return found.keys() == contents.keys() and all(found[name].read_bytes() == data for name, data in contents.items())


def _workshop(parent: Path) -> Path:
    """Where the folder is made: not within a model repository that a server may be watching, if it can be helped."""
    outside = parent.parent
    return outside if outside.stat().st_dev == parent.stat().st_dev and os.access(outside, os.W_OK) else parent


def _put_back(temporary: Path, target: Path) -> None:
    if not os.path.lexists(target) and (temporary / "old").exists():
        os.replace(temporary / "old", target)
    shutil.rmtree(temporary, ignore_errors=True)
