"""The choice among an op's kernels: their times decide, and without times the op's own order."""

from __future__ import annotations

from typing import Any

import pytest

from trtconvert import fastest, registry
from trtconvert.launch import Tensor


def order(monkeypatch: pytest.MonkeyPatch, times: Any, rows: int) -> list[int]:
    """LayerNormGelu's variants for that many rows, as _times would have timed them."""
    op = registry.find("LayerNormGelu")
    assert op is not None
    monkeypatch.setattr(fastest, "_times", times)
    shapes = ((rows, 512), (512,), (512,))
    inputs = [Tensor("float16", shape, f"in {i}") for i, shape in enumerate(shapes)]
    return fastest.fastest_first(op(), inputs, shapes)


def test_the_fastest_comes_first_and_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def times(op: Any, inputs: Any, shapes: Any, count: int) -> list[float]:
        asked.append(count)
        return [float(count - i) for i in range(count)]

    for _ in range(2):
        assert order(monkeypatch, times, 65) == [1, 0]
    assert asked == [2]


def test_what_cannot_be_timed_keeps_the_op_s_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def times(*_: Any) -> list[float]:
        raise MemoryError("out of device memory")

    assert order(monkeypatch, times, 66) == [0, 1]
