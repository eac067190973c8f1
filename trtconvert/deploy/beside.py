"""The library that hands the plugin libraries beside it to TensorRT when it is opened, as Triton does: load_beside.cpp."""

from __future__ import annotations

from pathlib import Path

NAME = "libtrtconvert_beside.so"
SOURCE = Path(__file__).with_name("load_beside.cpp")


def library() -> Path:
    """The compiled library: the one that the package carries, else one compiled into the cache. ConvertError without g++."""
    from trtconvert import native

    return native.compiled(SOURCE, NAME)
