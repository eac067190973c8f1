"""Kernels alone on a GPU: time of each variant over the floor of one read and one write.

    python -m tests.bench.kernels [OP ...]

Device events around one launch, median of 30 after 5, the launch queued behind other work so that the host's time does not
count. Floor: bytes of x and y once, at the bandwidth of a copy of 1 GB measured in the same run. error: relative L2 against
the op's float64 reference on a small x, not on the timed one. Needs PyTorch for data and streams.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

from tests.bench.kernel_shapes import ROWS
from trtconvert import check, gpu, registry
from trtconvert.compiled import compile_op
from trtconvert.launch import Tensor, evaluate, work_size
from trtconvert.op import Case, Op

TORCH = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "int64": torch.int64,
    "bool": torch.bool,
}


def microseconds(launch: Callable[[], Any], runs: int = 30) -> float:
    """Median device time of one launch."""
    for _ in range(5):
        launch()
    times = []
    for _ in range(runs):
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        torch.cuda._sleep(100_000)  # some 50 us, in which the host queues what is timed
        start.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def bandwidth() -> float:
    """Bytes a microsecond of a large copy, read and written."""
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    b = torch.empty_like(a)
    return 2 * a.numel() / microseconds(lambda: b.copy_(a))


def random(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Normal numbers off zero, or the whole range of int8."""
    if dtype == "int8":
        return torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda")
    if dtype == "bool":
        return torch.rand(shape, device="cuda") < 0.5
    return torch.randn(shape, device="cuda", dtype=TORCH[dtype]) + 0.5


def time_case(op: type[Op], tested: Case, dtype: str, rate: float) -> None:
    """Print a row: the time of the first variant, and the ratio of each."""
    made = check.instance(op, tested)
    arrays = [random(shape, dtype) for shape in tested.shapes]
    inputs = [Tensor(dtype, shape, f"in {i}") for i, shape in enumerate(tested.shapes)]
    outputs = made.outputs(*inputs)
    results = [torch.empty([int(d) for d in t.shape], dtype=TORCH[t.dtype], device="cuda") for t in outputs]  # type: ignore[arg-type]
    moved = arrays[0].nbytes + sum(r.nbytes for r in results)
    times = []
    for number, way in enumerate(made.variants(*inputs, *outputs)):
        compiled = compile_op(made, inputs, (gpu.require().arch,), number)
        work = torch.empty(max(1, evaluate(work_size(way), tested.shapes)), dtype=torch.uint8, device="cuda")
        run = gpu.prepare(compiled.launches, compiled.images, tested.shapes)
        assert run is not None
        pointers = [a.data_ptr() for a in arrays], [r.data_ptr() for r in results], work.data_ptr()
        times.append(microseconds(lambda run=run, pointers=pointers: run(*pointers, 0)))
    ratios = " ".join(f"{time / (moved / rate):5.2f}" for time in times)
    print(
        f"{op.name:24s} {tested!s:40s} {dtype:9s} {moved / 1e6:6.0f} MB {times[0]:8.1f} us  x floor {ratios}",
        flush=True,
    )


def error(op: type[Op], dtype: str) -> str:
    """Worst relative L2 of the op's own cases, all variants."""
    try:
        return check._worst(
            op,
            "kernel",
            lambda tested, dtype, arrays: [
                result
                for way in range(check._variants(op, tested, dtype))
                for result in check.run_kernel(check.instance(op, tested), arrays, way)
            ],
        )
    except Exception as wrong:  # noqa: BLE001  the rows are wanted all the same
        return f"WRONG {wrong}"


def main() -> None:
    """Print the table."""
    rate = bandwidth()
    print(f"{gpu.require().name}, copy {rate / 1e6:.2f} TB/s")
    wanted = sys.argv[1:]
    for name, tested, dtype in ROWS:
        op = registry.find(name)
        if op is None or (wanted and name not in wanted):
            continue
        try:
            time_case(op, tested, dtype, rate)
        except Exception as wrong:  # noqa: BLE001  the other rows are wanted all the same
            print(f"{name} {tested} {dtype}: {type(wrong).__name__}: {wrong}", flush=True)
        torch.cuda.empty_cache()
    for name in dict.fromkeys(name for name, _, _ in ROWS):
        op = registry.find(name)
        if op is not None and (not wanted or name in wanted):
            print(f"{name}: {error(op, '')}", flush=True)


if __name__ == "__main__":
    main()
