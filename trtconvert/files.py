"""Files are written whole or not at all; and where those lie that the tool keeps for itself."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from trtconvert.errors import ConvertError


def cache_dir() -> Path:
    """$TRTCONVERT_CACHE_DIR, or trtconvert under the user's cache folder. ConvertError for a user without a home."""
    chosen = os.environ.get("TRTCONVERT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtconvert"
    except RuntimeError as error:  # Path.home's, where a container runs as a number that it has no user for
        raise ConvertError(
            "there is no folder for what trtconvert keeps: this user has no home",
            fix="set TRTCONVERT_CACHE_DIR to a folder that may be written to",
        ) from error


def check_writable(path: Path) -> None:
    """ConvertError unless a file can be created in `path`'s folder: asked before long work, not after it."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ConvertError("the output folder does not exist", where=str(folder), fix="create it, or name another one")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
    except OSError as error:
        raise _cannot_write(path, error) from error
    os.close(handle)
    os.unlink(name)


def check_outputs(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """ConvertError if an output is a folder, cannot be created, or would overwrite a file that is read."""
    read = {path.resolve() for path in inputs}
    for path in outputs:
        if path.resolve() in read:
            raise ConvertError("the output would overwrite an input", where=str(path), fix="give another name with -o")
        if path.is_dir():
            raise ConvertError("the output is a folder", where=str(path), fix="give a file name with -o")
        check_writable(path)


def write_file(path: Path, data: bytes) -> None:
    """Write to a temporary name in the same folder, then rename: a killed process or a full disk leaves no half file."""
    write_files({path: data})


def write_files(contents: Mapping[Path, bytes | Iterable[bytes]]) -> None:
    """Write several files that belong together, each given whole or in pieces: all are complete before the first takes its
    name."""
    temporaries: dict[Path, str] = {}
    path = Path()
    try:
        for path, data in contents.items():
            temporaries[path] = _temporary(path, data)
        for path, temporary in list(temporaries.items()):
            os.replace(temporary, path)
            del temporaries[path]
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        for temporary in temporaries.values():
            with suppress(OSError):
                os.unlink(temporary)


def _temporary(path: Path, data: bytes | Iterable[bytes]) -> str:
    """A complete file beside `path` under a temporary name; removed again if it cannot be completed."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.resolve().parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
    except BaseException:  # pieces may raise anything, and the user may press Ctrl-C
        os.unlink(temporary)
        raise
    return temporary


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
