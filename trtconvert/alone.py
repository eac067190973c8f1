"""An op's kernels run alone, without TensorRT: on poisoned memory between guards, on pointers of any alignment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtconvert import gpu, launch
from trtconvert.compiled import compile_op
from trtconvert.errors import ConvertError
from trtconvert.launch import Counted, Tensor
from trtconvert.model import numpy_dtype
from trtconvert.op import Op

GUARD = 256  # bytes before and after each tensor, a multiple of the alignment that device memory has
POISON = 0xFF  # NaN in every float dtype
CANARY = 0xA5


class _Buffer:
    """A tensor's device memory between two guards, `shift` bytes off its alignment. data: what it holds at first."""

    def __init__(self, device: Any, stream: Any, name: str, data: NDArray[Any], guard: int, shift: int = 0) -> None:
        self.name, self.stream, self.start, self.size = name, int(stream.handle), guard + shift, data.nbytes
        self.before = np.full(self.start + self.size + guard, CANARY, np.uint8)
        self.before[self.start : self.start + self.size] = np.frombuffer(data.tobytes(), np.uint8)
        self.memory = device.allocate(max(self.before.nbytes, 1), stream=stream)
        self.address = int(self.memory.handle) + self.start
        self._copy(self.before, to_device=True)

    def _copy(self, host: NDArray[np.uint8], to_device: bool) -> None:
        if host.nbytes:
            gpu.copy(int(self.memory.handle), host.ctypes.data, host.nbytes, self.stream, to_device)

    def fetch(self) -> None:
        """Copy everything back, guards too; wait for the stream before `read`."""
        self.after = np.empty_like(self.before)
        self._copy(self.after, to_device=False)

    def read(self, written: bool = True) -> NDArray[np.uint8]:
        """The tensor's bytes; ConvertError if a byte has changed that is not the kernel's to write."""
        changed = self.after != self.before
        if written:
            changed[self.start : self.start + self.size] = False
        if changed.any():
            where = int(np.flatnonzero(changed)[0]) - self.start
            raise ConvertError(
                f"a kernel wrote at byte {where} of {self.name} ({self.size} bytes), which is not its to write"
            )
        return self.after[self.start : self.start + self.size]


def run_kernel(
    op: Op, arrays: Sequence[NDArray[Any]], variant: int = 0, shifted: int | None = None, guard: int = GUARD
) -> list[NDArray[Any]]:
    """Launch the op's kernels on host arrays and return the outputs. Outputs and lent memory are poisoned first, so that
    what is not written shows.

    shifted: the input or output (counted behind the inputs) whose pointer is one element off its alignment. guard: 0 for
    compute-sanitizer, which then sees where each allocation ends.
    Raises ConvertError when a kernel writes outside its outputs, and NoUsableGpuError.
    """
    from cuda.core import Device  # needs a driver

    inputs = [Tensor(a.dtype.name, a.shape, f"in {i}") for i, a in enumerate(arrays)]
    outputs, shapes = op.outputs(*inputs), [a.shape for a in arrays]
    compiled = compile_op(op, inputs, (gpu.require().arch,), variant)
    size = launch.work_size(op.variants(*inputs, *outputs)[variant])  # the text form keeps offsets only
    device = Device(0)
    device.set_current()
    stream = device.create_stream()

    def buffer(index: int, name: str, data: NDArray[Any]) -> _Buffer:
        return _Buffer(device, stream, name, data, guard, data.itemsize if index == shifted else 0)

    given = [buffer(i, f"input {i}", np.asarray(a)) for i, a in enumerate(arrays)]
    made = [buffer(len(given) + i, f"output {i}", _poisoned(t)) for i, t in enumerate(outputs)]
    lent = _Buffer(device, stream, "the lent memory", _poisoned(Tensor("int8", (size,))), guard)
    run = gpu.prepare(compiled.launches, compiled.images, shapes)
    if run is not None:
        run([b.address for b in given], [b.address for b in made], lent.address, int(stream.handle))
    for each in (*given, *made, lent):
        each.fetch()
    stream.sync()
    lent.read()
    for each in given:
        each.read(written=False)
    return _shaped(outputs, [b.read().view(numpy_dtype(t.dtype)) for b, t in zip(made, outputs, strict=True)])


def _poisoned(tensor: Tensor) -> NDArray[Any]:
    """An array of the tensor's dtype, as large as its memory."""
    dtype = numpy_dtype(tensor.dtype)
    return np.full(launch.evaluate(tensor.size, ()) * dtype.itemsize, POISON, np.uint8).view(dtype)


def _shaped(outputs: Sequence[Tensor], flat: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """The op's results, cut to the sizes that the kernel counted; the counts lie behind them."""
    results = len(outputs) - sum(isinstance(size, Counted) for tensor in outputs for size in tensor.shape)
    counts = iter(flat[results:])
    arrays = []
    for tensor, data in zip(outputs, flat[:results], strict=False):
        shape = [
            int(next(counts)[0]) if isinstance(size, Counted) else launch.evaluate(size, ()) for size in tensor.shape
        ]
        if not 0 <= math.prod(shape) <= data.size:
            raise ConvertError(f"the kernel counted {shape}, more than its output can hold")
        arrays.append(data[: math.prod(shape)].reshape(shape))
    return arrays
