"""CUDA sources, one per op, and common.cuh for what they share."""

from importlib.resources import files


def read(name: str) -> str:
    """The text of a kernel source in this folder."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
