"""The float types that an engine's precision may be, with their limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A float type: as `--precision` calls it, and as numpy does.

    largest: its largest number. least: its smallest positive one that hardware keeps. integers: it holds all up to this.
    """

    name: str
    dtype: str
    largest: float
    least: float
    integers: int


KINDS = {
    kind.name: kind
    for kind in (
        Kind("fp16", "float16", 65504.0, 2.0**-24, 2**11),
        Kind("bf16", "bfloat16", float(2.0**128 - 2.0**120), 2.0**-126, 2**8),
        Kind("fp32", "float32", float(2.0**128 - 2.0**104), 2.0**-126, 2**24),
    )
}
NARROW = ("float16", "bfloat16")
FLOATS = (*NARROW, "float32")
