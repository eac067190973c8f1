"""Which of an op's variants is fastest on this machine's GPU, measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from trtconvert import gpu, launch
from trtconvert.compiled import compile_op
from trtconvert.launch import Tensor, evaluate
from trtconvert.model import numpy_dtype
from trtconvert.op import Op

Shapes = tuple[tuple[int, ...], ...]
FILL = 0x3C  # every byte of the inputs: 1.06 in float16, 0.01 in float32 and bfloat16
LAUNCHES, ROUNDS = 4, 5  # back to back between two events; the median of the rounds counts


def fastest_first(op: Op, inputs: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> list[int]:
    """Indices of the op's variants for these inputs, by their time at these shapes. In the op's own order where there is
    nothing to choose or nothing can be measured, as when memory does not suffice."""
    kind: Any = type(op)
    return list(_order(kind, tuple(op.values().items()), tuple(inputs), tuple(tuple(s) for s in shapes)))


@lru_cache(maxsize=256)
def _order(
    kind: type[Op], values: tuple[tuple[str, Any], ...], inputs: tuple[Tensor, ...], shapes: Shapes
) -> list[int]:
    op = kind(**dict(values))
    ways = list(range(len(op.variants(*inputs, *op.outputs(*inputs)))))
    if len(ways) < 2:
        return ways
    try:
        times = _times(op, inputs, shapes, len(ways))
    except Exception:  # noqa: BLE001  # CUDA raises of many types; what cannot be measured is no failed build
        return ways
    return sorted(ways, key=times.__getitem__)


def _times(op: Op, inputs: tuple[Tensor, ...], shapes: Shapes, count: int) -> list[float]:
    """Median time of each variant in us, in turns."""
    from cuda.core import Device  # needs a driver

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    handle = int(stream.handle)
    outputs = op.outputs(*inputs)
    ways = op.variants(*inputs, *outputs)
    tensors = [*inputs, *outputs]
    bytes_of = [evaluate(t.size, shapes) * numpy_dtype(t.dtype).itemsize for t in tensors]
    bytes_of.append(max(evaluate(launch.work_size(way), shapes) for way in ways))
    buffers = [device.allocate(max(size, 1), stream=stream) for size in bytes_of]
    *addresses, work = (int(buffer.handle) for buffer in buffers)
    for address, size in zip(addresses, bytes_of, strict=False):
        gpu.fill(address, FILL, size, handle)
    pointers = addresses[: len(inputs)], addresses[len(inputs) :], work
    compiled = [compile_op(op, list(inputs), (gpu.require().arch,), variant) for variant in range(count)]
    runs = [gpu.prepare(c.launches, c.images, shapes) for c in compiled]
    times: list[list[float]] = [[] for _ in runs]
    for turn in range(ROUNDS + 1):  # the first warms up
        for run, found in zip(runs, times, strict=True):
            start, end = gpu.Event(), gpu.Event()
            start.record(handle)
            for _ in range(LAUNCHES):
                if run is not None:
                    run(*pointers, handle)
            end.record(handle)
            stream.sync()
            if turn:
                found.append(end.microseconds_since(start) / LAUNCHES)
    return [statistics.median(found) for found in times]
