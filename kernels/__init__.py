"""CUDA sources: one .cu per op, and headers (.cuh) for what they share."""

from functools import cache
from importlib.resources import files


def read(name: str) -> str:
    """The text of a kernel source in this folder."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


@cache
def headers() -> dict[str, str]:
    """All headers: name and text."""
    return {f.name: f.read_text(encoding="utf-8") for f in files(__name__).iterdir() if f.name.endswith(".cuh")}
