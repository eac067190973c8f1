"""The choice among an op's kernels: their times decide, and without times the op's own order."""

from __future__ import annotations

from typing import Any

import pytest

from trtconvert import adapter, backend, gpu, registry
from trtconvert.choice import fastest
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


def plugin(monkeypatch: pytest.MonkeyPatch, targets: tuple[str, ...]) -> Any:
    """LayerNormGelu as TensorRT's parser makes it, on a machine with an sm_86."""
    chosen = backend.select()
    monkeypatch.setattr(gpu, "current", lambda: gpu.Gpu("card", "sm_86", (13, 0)))
    op = registry.find("LayerNormGelu")
    assert op is not None
    made = adapter._classes(chosen)[0](adapter._State(op.name, op.version, op.namespace, op(), targets))
    shapes = ((64, 512), (512,), (512,))
    monkeypatch.setattr(made, "_symbols", lambda _: [Tensor("float16", s, f"in {i}") for i, s in enumerate(shapes)])
    made.configure_plugin([], [])
    return made


def test_only_the_gpu_that_is_built_for_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for several GPUs holds one variant for all: that of the op's rule."""
    monkeypatch.setattr(adapter, "fastest_first", lambda *_: [1, 0])
    assert plugin(monkeypatch, ("sm_86", "compute_86")).get_valid_tactics() == [2, 1]
    assert plugin(monkeypatch, ("sm_86", "sm_89", "compute_89")).get_valid_tactics() == []


def test_another_tactic_is_launched_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT sets one tactic after the other at the same shapes to time them."""
    monkeypatch.setattr(adapter, "fastest_first", lambda *_: [0, 1])
    made = plugin(monkeypatch, ("sm_86",))
    first, made.sizes = made.compiled, ()
    made.set_tactic(2)
    assert made.compiled != first
    assert made.sizes is None
