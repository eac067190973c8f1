"""Running kernels alone: what the harness sees, with a memory of our own in place of a GPU's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trtconvert import ConvertError, alone, check, gpu, registry
from trtconvert.alone import GUARD, POISON, run_kernel
from trtconvert.compiled import compile_op
from trtconvert.launch import Counted, Launch, Tensor, Work
from trtconvert.op import Op

Kernel = Callable[[list[int], list[int], int], None]


class Doubled(Op):
    """y = 2 x, and by the way the positive elements of x, packed."""

    source = 'extern "C" __global__ void doubled(const IO* x, IO* y, IO* packed, long long* n, char* work) {}'

    def output(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, Tensor(x.dtype, (1, Counted(x.size)))

    def launch(self, x: Tensor, y: Tensor, packed: Tensor, n: Tensor) -> Launch:
        return Launch("doubled", (1, 1, 1), (1, 1, 1), (x, y, packed, n, Work(64)))


def at(address: int, count: int, dtype: str = "float32") -> NDArray[Any]:
    """The memory at an address as an array."""
    data = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(data, dtype)  # type: ignore[no-any-return]


def work(inputs: list[int], outputs: list[int], lent: int) -> None:
    """What the kernel of Doubled would do, for 5 elements."""
    x = at(inputs[0], 5)
    at(outputs[0], 5)[:] = 2 * x
    at(outputs[1], 5)[: (x > 0).sum()] = x[x > 0]
    at(outputs[2], 1, "int64")[:] = (x > 0).sum()
    assert (at(lent, 64, "uint8") == POISON).all()
    at(lent, 64, "uint8")[:] = 1


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Host memory as device memory; `kernel` is called in place of the launches, and `addresses` are what it was given."""
    seen: dict[str, Any] = {"kernel": work}

    class Device:
        def __init__(self, _index: int) -> None: ...
        def set_current(self) -> None: ...
        def create_stream(self) -> Any:
            return SimpleNamespace(handle=0, sync=lambda: None)

        def allocate(self, size: int, stream: Any) -> Any:
            block = (ctypes.c_char * (size + 256))()
            address = ctypes.addressof(block)
            return SimpleNamespace(handle=address + -address % 256, block=block)

    def copy(device: int, host: int, size: int, _stream: int, to_device: bool) -> None:
        ctypes.memmove(*((device, host) if to_device else (host, device)), size)

    def run(inputs: list[int], outputs: list[int], lent: int, _stream: int) -> None:
        seen["addresses"] = [*inputs, *outputs, lent]
        seen["kernel"](inputs, outputs, lent)

    monkeypatch.setattr("cuda.core.Device", Device)
    monkeypatch.setattr(gpu, "copy", copy)
    monkeypatch.setattr(gpu, "require", lambda: gpu.Gpu("a fake", "sm_86", (13, 0)))
    monkeypatch.setattr(gpu, "prepare", lambda *_: run)
    return seen


X = np.array([1, -2, 3, 0, 5], np.float32)


def test_outputs_are_cut_to_what_was_counted(host: dict[str, Any]) -> None:
    y, packed = run_kernel(Doubled(), [X])
    assert y.tolist() == [2, -4, 6, 0, 10]
    assert packed.tolist() == [[1, 3, 5]]
    assert [address % 256 for address in host["addresses"]] == [0] * 5


@pytest.mark.parametrize(("shifted", "offsets"), [(0, [4, 0, 0, 0, 0]), (2, [0, 0, 4, 0, 0]), (3, [0, 0, 0, 8, 0])])
def test_one_pointer_off_its_alignment(shifted: int, offsets: list[int], host: dict[str, Any]) -> None:
    y, packed = run_kernel(Doubled(), [X], shifted=shifted)
    assert y.tolist() == [2, -4, 6, 0, 10]
    assert packed.tolist() == [[1, 3, 5]]
    assert [address % 256 for address in host["addresses"]] == offsets


def test_what_is_not_written_is_poison(host: dict[str, Any]) -> None:
    host["kernel"] = lambda i, o, w: work(i, [o[0], o[1], o[2]], w) or at(o[0], 5)[3:].view(np.uint8).fill(POISON)
    y, _ = run_kernel(Doubled(), [X])
    assert np.isnan(y[3:]).all()
    assert y[:3].tolist() == [2, -4, 6]


@pytest.mark.parametrize(
    ("stray", "words"),
    [
        (lambda i, o, w: at(o[0] + 20, 1).fill(0), r"at byte 20 of output 0 \(20 bytes\)"),
        (lambda i, o, w: at(o[1] - 1, 1, "uint8").fill(0), "at byte -1 of output 1"),
        (lambda i, o, w: at(o[1] + 20 + GUARD - 1, 1, "uint8").fill(0), f"at byte {20 + GUARD - 1} of output 1"),
        (lambda i, o, w: at(i[0] + 4, 1).fill(7), "at byte 6 of input 0"),
        (lambda i, o, w: at(w + 64, 1, "uint8").fill(0), "at byte 64 of the lent memory"),
    ],
)
def test_stray_writes_are_seen(stray: Kernel, words: str, host: dict[str, Any]) -> None:
    def kernel(inputs: list[int], outputs: list[int], lent: int) -> None:
        work(inputs, outputs, lent)
        stray(inputs, outputs, lent)

    host["kernel"] = kernel
    with pytest.raises(ConvertError, match=words):
        run_kernel(Doubled(), [X])


def test_a_count_beyond_the_bound(host: dict[str, Any]) -> None:
    host["kernel"] = lambda i, o, w: work(i, o, w) or at(o[2], 1, "int64").fill(6)
    with pytest.raises(ConvertError, match=r"counted \[1, 6\]"):
        run_kernel(Doubled(), [X])


def _empty_uses() -> list[Any]:
    """Every built-in op with a batch of 0, by case."""
    return [
        pytest.param(op, tested, id=f"{op.name} {tested}")
        for op in registry.ops()
        for tested in op.cases
        if op.__module__.startswith("trtconvert.") and len(tested.shapes[0]) > 1
    ]


@pytest.mark.parametrize(("op", "tested"), _empty_uses())
def test_no_rows_launch_nothing(op: type[Op], tested: Any) -> None:
    """For x of [0, ...] all grids are empty; but what is counted is written."""
    made = check.instance(op, tested)
    shapes = [(0, *tested.shapes[0][1:]), *tested.shapes[1:]]
    inputs = [Tensor(op.dtypes[0], shape, f"in {i}") for i, shape in enumerate(shapes)]
    outputs = made.outputs(*inputs)
    for variant, launches in enumerate(made.variants(*inputs, *outputs)):
        if len(outputs) == len(made.results(*inputs)):
            assert gpu.prepare(compile_op(made, inputs, (), variant).launches, {}, shapes) is None
        else:
            assert [one.kernel for one in launches if 0 not in one.grid] == ["nonzero_scan"]


def test_poison_is_nan_in_every_float() -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        assert np.isnan(alone._poisoned(Tensor(dtype, (3,))).astype(np.float64)).all()
