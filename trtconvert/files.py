"""Files are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from trtconvert.errors import ConvertError


def check_writable(path: Path) -> None:
    """ConvertError unless a file can be created in `path`'s folder: asked before long work, not after it."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ConvertError("the output folder does not exist", where=str(folder), fix="create it, or give another -o")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
    except OSError as error:
        raise _cannot_write(path, error) from error
    os.close(handle)
    os.unlink(name)


def write_file(path: Path, data: bytes) -> None:
    """Write to a temporary name in the same folder, then rename: a killed process or a full disk leaves no half file."""
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.resolve().parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> ConvertError:
    return ConvertError(
        f"cannot write the file: {error.strerror or error}",
        where=str(path),
        fix="free some space, or give another place with -o",
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
