"""Host time of a plugin's execution with the C++ creators: python -m tests.bench.native [OP ...]

tests/native/drive.cpp, without TensorRT, calls onShapeChange and enqueue of the C++ library as TensorRT does for each
execution, 20,000 times, and takes the time between; every 64 times it waits, so that the stream's queue is never full. The
second column is the same for the Python creators' plugin: on_shape_change and enqueue, 2,000 times. Needs g++.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from tests.bench.registers import built_in
from tests.native_drive import drive, write_fields
from trtconvert import adapter, check, gpu, launch, registry
from trtconvert.backend import select
from trtconvert.cli import show
from trtconvert.compiled import Compiled, compile_op
from trtconvert.launch import Tensor
from trtconvert.model import numpy_dtype
from trtconvert.op import Op

TIMES = 20_000


def _compiled(op: type[Op]) -> tuple[Compiled, list[Tensor], list[Tensor], int]:
    """The op's first case for this GPU, its tensors, and the bytes that it wants lent."""
    tested, dtype = op.cases[0], op.dtypes[0]
    made = check.instance(op, tested)
    inputs = [Tensor(dtype, shape, f"in {i}") for i, shape in enumerate(tested.shapes)]
    outputs = list(made.outputs(*inputs))
    lent = launch.evaluate(launch.work_size(made.variants(*inputs, *outputs)[0]), ())
    return compile_op(made, inputs, (gpu.require().arch,)), inputs, outputs, lent


def _bytes(tensor: Tensor) -> int:
    return launch.evaluate(tensor.size, ()) * numpy_dtype(tensor.dtype).itemsize


def native_us(name: str, folder: Path) -> float:
    """Median host time in us of an execution by the C++ library, of the op's first case. AssertionError where it fails."""
    op = registry.find(name)
    assert op is not None
    compiled, inputs, outputs, lent = _compiled(op)
    fields = write_fields(folder / "fields", {"launch": compiled.text.encode(), **compiled.images})
    shown = {t.slot: "x".join(map(str, t.shape)) for t in inputs}
    tensors = [f"in:{shown[t.slot]}:{_bytes(t)}" for t in inputs] + [f"out::{_bytes(t)}" for t in outputs]
    result = drive(name, fields, [*tensors, f"work:1:{max(1, lent)}"], arch=None, times=TIMES)
    assert result.returncode == 0, result.stdout + result.stderr
    return float(result.stdout.split("median ")[1].split(" us")[0])


def python_us(name: str) -> float:
    """The same of the Python creators' plugin."""
    from cuda.core import Device

    op = registry.find(name)
    assert op is not None
    compiled, inputs, outputs, lent = _compiled(op)
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    state = adapter._State(op.name, op.version, op.namespace, outputs=len(outputs))
    plugin = adapter._classes(select("rtx"))[0](state, compiled)
    given = [SimpleNamespace(dims=t.shape) for t in inputs]
    memory = [device.allocate(max(1, size), stream=stream) for size in (*map(_bytes, (*inputs, *outputs)), lent)]
    *addresses, work = (int(one.handle) for one in memory)
    pointers = addresses[: len(inputs)], addresses[len(inputs) :]
    handle, times = int(stream.handle), []
    for turn in range(TIMES // 10):
        if turn % 64 == 0:
            stream.sync()
        start = time.perf_counter()
        plugin.on_shape_change(given, [])
        plugin.enqueue(None, None, *pointers, work, handle)
        times.append(time.perf_counter() - start)
    stream.sync()
    return statistics.median(times) * 1e6


def row(name: str) -> list[str]:
    """A line of the table; what failed stands in it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return [name, f"{native_us(name, Path(folder)):.2f}", f"{python_us(name):.2f}"]
        except Exception as error:  # noqa: BLE001  # the other rows are measured all the same
            return [name, "failed", f"{type(error).__name__}: {error}"]


if __name__ == "__main__":
    names = sys.argv[1:] or [op.name for op in built_in()]
    show.table(["op", "C++ us", "Python us"], [row(name) for name in names])
