"""An engine's buffers where shape tensors lie in host memory: a stand-in for the engine, since none runs without a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trtconvert import ConvertError, gpu
from trtconvert.bound import Bound
from trtconvert.manifest import IO

RANGE = [[1], [2], [8]]  # min, opt and max of k


class Engine:
    """y = Range(0, k, 1), where TensorRT reads k on the host. "Device" memory is host memory too."""

    inputs: Sequence[IO] = [IO("k", "int64", [])]
    outputs: Sequence[IO] = [IO("y", "int64", [-1])]

    def __init__(self) -> None:
        location = SimpleNamespace(HOST=1)
        self.backend = SimpleNamespace(trt=SimpleNamespace(TensorLocation=location))
        self.device = SimpleNamespace(allocate=self.allocate)
        self.stream = SimpleNamespace(handle=0, sync=lambda: None)
        self.path = Path("engine.plan")
        self.addresses: dict[str, int] = {}
        self.engine = self

    def allocate(self, size: int, stream: object) -> Any:
        assert stream is self.stream
        memory = ctypes.create_string_buffer(size)
        return SimpleNamespace(handle=ctypes.addressof(memory), keep=memory, size=size)

    def check_names(self, given: Mapping[str, Any]) -> None:
        assert set(given) == {"k"}

    def get_tensor_location(self, name: str) -> int:
        return int(name == "k")

    def get_tensor_profile_values(self, profile: int, name: str) -> list[list[int]]:
        assert (profile, name) == (0, "k")
        return RANGE

    def get_aliased_input_tensor(self, name: str) -> str:
        return ""

    # --- the execution context

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        return (name, shape) == ("k", ())

    def set_tensor_address(self, name: str, address: int) -> None:
        self.addresses[name] = address

    def k(self) -> int:
        return int(ctypes.c_int64.from_address(self.addresses["k"]).value)

    def get_tensor_shape(self, name: str) -> list[int]:
        assert name == "y"
        return [self.k()]

    def execute_async_v3(self, _stream: int) -> bool:
        (ctypes.c_int64 * self.k()).from_address(self.addresses["y"])[:] = range(self.k())
        return True


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Bound:
    def copy(device: int, host: int, size: int, _stream: int, to_device: bool) -> None:
        assert not to_device, "k must not be copied to the device"
        ctypes.memmove(host, device, size)

    monkeypatch.setattr(gpu, "copy", copy)
    engine: Any = Engine()
    return Bound(engine, engine, {"k": ()}, {})


def test_opt_until_written(bound: Bound) -> None:
    bound.execute()
    assert bound.read()["y"].tolist() == [0, 1]


def test_values_from_the_start() -> None:
    """TensorRT may tell no output shape for the input shapes together with the values called opt."""
    engine: Any = Engine()
    bound = Bound(engine, engine, {"k": ()}, {"k": np.array(5)})
    assert (engine.k(), bound.outputs["y"].shape) == (5, (5,))
    with pytest.raises(ConvertError, match=r"'k' is 9, the engine takes values from \[1\] to \[8\]"):
        Bound(engine, engine, {"k": ()}, {"k": np.array(9)})


def test_an_output_over_its_input(bound: Bound, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "get_aliased_input_tensor", lambda _engine, _name: "k")
    engine: Any = Engine()
    bound = Bound(engine, engine, {"k": ()}, {})
    assert engine.addresses["y"] == engine.addresses["k"]
    assert bound.outputs["y"] is bound.inputs["k"]


def test_other_values_make_other_outputs(bound: Bound) -> None:
    for k in (5, 8, 1):
        bound.write({"k": np.array(k)})
        bound.execute()
        assert bound.read()["y"].tolist() == list(range(k))


def test_the_same_values_keep_the_buffers(bound: Bound) -> None:
    before = bound.outputs["y"]
    bound.write({"k": np.array(2)})
    assert bound.outputs["y"] is before


def test_values_outside_the_profile(bound: Bound) -> None:
    with pytest.raises(ConvertError, match=r"'k' is 9, the engine takes values from \[1\] to \[8\]"):
        bound.write({"k": np.array(9)})
    with pytest.raises(ConvertError, match="'k' is int32, the engine takes int64"):
        bound.write({"k": np.array(3, np.int32)})


def test_a_graph_keeps_its_values(bound: Bound, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "capture", lambda _stream, _work: lambda: None)
    bound.write({"k": np.array(3)})
    bound.capture()
    bound.write({"k": np.array(3)})
    with pytest.raises(ConvertError, match="values of 'k' are part of the CUDA graph"):
        bound.write({"k": np.array(4)})
