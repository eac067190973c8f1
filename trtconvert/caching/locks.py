"""One lock per key, shared by those who read an entry, exclusive for who makes or removes it.

They are flock's: the kernel releases them with the process, however that ends, so none can be left behind by kill -9.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Unusable(Exception):
    """The cache cannot be used here; nothing has been built yet."""


@contextmanager
def shared(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Held while an entry is read. waiting: called if another process holds it. Unusable where locks cannot be had."""
    with _held(path, fcntl.LOCK_SH, waiting):
        yield


@contextmanager
def exclusive(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Held while an entry is made."""
    with _held(path, fcntl.LOCK_EX, waiting):
        yield


@contextmanager
def removing(path: Path) -> Iterator[bool]:
    """Exclusive if it is free at this moment, and then the lock's own file goes too; yields whether it was."""
    try:
        handle = _open(path)
    except Unusable:
        yield False
        return
    try:
        free = _try(handle, fcntl.LOCK_EX) and _is_current(handle, path)
        yield free
        if free:
            with suppress(OSError):
                os.unlink(path)
    finally:
        os.close(handle)


@contextmanager
def _held(path: Path, kind: int, waiting: Callable[[], None]) -> Iterator[None]:
    handle = _acquire(path, kind, waiting)
    try:
        yield
    finally:
        os.close(handle)


def _acquire(path: Path, kind: int, waiting: Callable[[], None]) -> int:
    """An open file that holds the lock. Whoever removes an entry removes its lock too: then it is taken anew."""
    told = False
    while True:
        handle = _open(path)
        try:
            if not _try(handle, kind):
                if not told:
                    waiting()
                told = True
                fcntl.flock(handle, kind)
            if _is_current(handle, path):
                return handle
        except OSError as error:
            os.close(handle)
            raise Unusable(_reason(path, error)) from error
        except BaseException:  # Ctrl-C while waiting
            os.close(handle)
            raise
        os.close(handle)


def _open(path: Path) -> int:
    """Made if it is not there; read only in a cache that may only be read."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM) or not path.exists():
                raise
            return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise Unusable(_reason(path, error)) from error


def _try(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def _is_current(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _reason(path: Path, error: OSError) -> str:
    return f"{path.parent}: {error.strerror or error}"
