"""Engines run from Python in every way a service does: many threads, CUDA graphs, torch's tensors, streams, shapes."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.conftest import SAMPLES
from tests.importable import importable
from trtconvert import BuildOptions, ConvertError, Engine, build, check, load_engine, registration, registry
from trtconvert.backend import select
from trtconvert.compare import KERNEL_TOLERANCE, difference
from trtconvert.model import serialize
from trtconvert.op import Op, case
from trtconvert.runtime.arrays import DeviceArray
from trtconvert.shapes import parse

THREADS, WARM_UP, RUNS = 8, 300, 2000
MEGABYTE = 1 << 20
SLEEP = 50_000_000  # cycles, about 30 ms


def norm() -> type[Op]:
    op = registry.find("LayerNormGelu")
    assert op is not None
    return op


def norm_plan(folder: Path, dtype: str) -> Path:
    """y = GELU(LayerNorm(x)), x [1 to 64, 64], scale and bias [64]."""
    op = norm()
    model = check.node_model(op, case((8, 64), (64,), (64,), axis=-1), dtype)
    for value in (*model.graph.input[:1], *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    path = folder / f"{dtype}.onnx"
    path.write_bytes(serialize(model))
    return build(path, None, BuildOptions(fuse="none", shapes=parse(["x=1x64,8x64,64x64"]))).plan


def norm_case(rows: int, dtype: str = "float32", seed: int = 0) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
    """Inputs, and what comes out."""
    op, tested = norm(), case((rows, 64), (64,), (64,), axis=-1)
    arrays = check.random_inputs(tested, dtype, seed=seed)
    (want,) = check.expected(check.instance(op, tested), arrays)
    return dict(zip(op.inputs(), arrays, strict=True)), want


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtime")


@pytest.fixture(scope="module")
def dynamic(folder: Path) -> Path:
    return norm_plan(folder, "float32")


@pytest.fixture(scope="module")
def sam(folder: Path) -> Path:
    """A real model with a plugin between TensorRT's own layers, static shapes."""
    return build(importable(SAMPLES / "sam_upscaler.onnx", folder), folder / "sam.plan", BuildOptions(fuse="all")).plan


@pytest.fixture(params=["python", "native"])
def native(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the C++ library's creators make the plugins; the Python ones do again afterwards."""
    yield request.param == "native"
    registration.use_python(select("auto"))


@pytest.fixture
def engine(dynamic: Path) -> Engine:
    return load_engine(dynamic)


# --- threads and memory --------------------------------------------------------------------------------------------


def used_memory() -> tuple[int, int]:
    """Bytes of this process in memory, and of the GPU in use, when everything that can be given back is."""
    from cuda.bindings import driver

    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    status, free, total = driver.cuMemGetInfo()
    assert int(status) == 0
    return pages * os.sysconf("SC_PAGE_SIZE"), total - free


class Crew:
    """Threads that stay, each with its number."""

    def __init__(self) -> None:
        self._own, numbers = threading.local(), iter(range(THREADS))
        self._pool = ThreadPoolExecutor(THREADS, initializer=lambda: setattr(self._own, "number", next(numbers)))

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_error: object) -> None:
        self._pool.shutdown()

    def repeat(self, run: Callable[[int, int], str | None], runs: int) -> list[str]:
        """`run(number, turn)` so many times in each thread, all beginning together; what they found wrong."""
        start = threading.Barrier(THREADS)

        def work(_: int) -> list[str]:
            start.wait()
            return [fault for turn in range(runs) if (fault := run(self._own.number, turn))]

        return [fault for faults in self._pool.map(work, range(THREADS)) for fault in faults]


@pytest.mark.parametrize("graphs", [0, 8], ids=["no graphs", "graphs"])
@pytest.mark.parametrize("model", ["sam", "dynamic"])
def test_eight_threads(model: str, graphs: int, native: bool, request: pytest.FixtureRequest) -> None:
    """Each thread with its own inputs and shapes, 2,000 times in its own context: bit for bit what one thread alone gets; and no
    memory is lost."""
    engine = load_engine(request.getfixturevalue(model), native=native, graphs=graphs)
    random = np.random.default_rng(5)
    if model == "sam":
        feeds = [{"image_embedding": random.standard_normal((1, 64, 16, 16), np.float32)} for _ in range(THREADS)]
    else:
        feeds = [norm_case(1 + 7 * seed, seed=seed)[0] for seed in range(THREADS)]
    alone = [next(iter(engine.run(feed).values())) for feed in feeds]
    alone = [next(iter(engine.run(feed).values())) for feed in feeds]  # by the kernels that stay

    def run(thread: int, turn: int) -> str | None:
        (got,) = engine.run(feeds[thread]).values()
        same = np.array_equal(got, alone[thread])
        return None if same else f"thread {thread}, turn {turn}: {difference(got, alone[thread])}"

    with Crew() as crew:
        crew.repeat(run, WARM_UP)
        before = used_memory()
        begin = time.perf_counter()
        faults = crew.repeat(run, RUNS)
        spent = time.perf_counter() - begin
        after = used_memory()
    assert not faults, (len(faults), faults[:3])
    growth = [b - a for a, b in zip(before, after, strict=True)]
    print(
        f"\n{model}, graphs {graphs}: {spent / RUNS / THREADS * 1e6:.0f} us a run, host {growth[0]}, GPU {growth[1]} bytes more"
    )
    assert max(growth) <= MEGABYTE, growth


def test_eight_threads_with_contexts_of_their_own_and_device_arrays(dynamic: Path, native: bool) -> None:
    torch = pytest.importorskip("torch")
    engine = load_engine(dynamic, native=native)
    contexts = [engine.context() for _ in range(THREADS)]
    feeds = [
        {n: torch.from_numpy(a).cuda() for n, a in norm_case(3 + 8 * i, seed=i)[0].items()} for i in range(THREADS)
    ]
    alone = [torch.from_dlpack(next(iter(engine.run(feed).values()))).clone() for feed in feeds]
    torch.cuda.synchronize()

    def run(thread: int, turn: int) -> str | None:
        (got,) = contexts[thread].run(feeds[thread]).values()
        if turn % 50:
            return None
        return None if torch.equal(torch.from_dlpack(got), alone[thread]) else f"thread {thread}, turn {turn}"

    with Crew() as crew:
        crew.repeat(run, WARM_UP)
        torch.cuda.synchronize()
        before = used_memory()
        faults = crew.repeat(run, RUNS)
        torch.cuda.synchronize()
        after = used_memory()
    assert not faults, (len(faults), faults[:3])
    growth = [b - a for a, b in zip(before, after, strict=True)]
    assert max(growth) <= MEGABYTE, growth


def test_engines_come_and_go(dynamic: Path) -> None:
    """Memory of an engine and its contexts is free when the last reference to it goes."""
    feeds, _ = norm_case(5)

    def once() -> None:
        engine = load_engine(dynamic, graphs=2)
        engine.run(feeds)
        engine.context().run(feeds)

    for _ in range(5):
        once()
    before = used_memory()
    for _ in range(20):
        once()
    growth = [b - a for a, b in zip(before, used_memory(), strict=True)]
    assert growth[1] <= 4 * MEGABYTE, growth


# --- shapes and graphs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graphs", [0, 3])
def test_shapes_by_turns(dynamic: Path, graphs: int) -> None:
    """More shapes than graphs are kept, on the host and on the GPU."""
    engine = load_engine(dynamic, graphs=graphs)
    for rows in (1, 8, 64, 3, 8, 1, 17, 64, 64, 1):
        feeds, want = norm_case(rows, seed=rows)
        (got,) = engine.run(feeds).values()
        assert difference(got, want) <= KERNEL_TOLERANCE["float32"], rows
        assert got.shape == (rows, 64)
    with pytest.raises(ConvertError, match="outside the engine's profile"):
        engine.run(norm_case(65)[0])
    feeds, want = norm_case(2)
    (got,) = engine(*feeds.values()).values()
    assert difference(got, want) <= KERNEL_TOLERANCE["float32"]


def test_graphs_replay_what_runs_without(sam: Path, native: bool) -> None:
    """Bit for bit, with new data each time, on the host and on the GPU."""
    torch = pytest.importorskip("torch")
    plain, graphs = load_engine(sam), load_engine(sam, native=native).context(graphs=2)
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal((1, 64, 16, 16), np.float32)
        (want,) = plain.run({"image_embedding": x}).values()
        (got,) = graphs.run({"image_embedding": x}).values()
        (on_gpu,) = graphs.run({"image_embedding": torch.from_numpy(x).cuda()}).values()
        assert np.array_equal(got, want)
        assert np.array_equal(on_gpu.numpy(), want)
    assert graphs.graph_fault == ""


# --- torch and cupy ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_torch_in_torch_out_without_a_copy(folder: Path, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    context = load_engine(norm_plan(folder, dtype)).context()
    feeds, want = norm_case(9, dtype)
    tensors = {n: torch.from_numpy(a.astype(np.float32)).to("cuda", getattr(torch, dtype)) for n, a in feeds.items()}
    (result,) = context.run(tensors).values()
    assert isinstance(result, DeviceArray)
    for name, tensor in tensors.items():
        assert context._context.get_tensor_address(name) == tensor.data_ptr()
    got = torch.from_dlpack(result)
    assert got.data_ptr() == result.address
    assert (got.dtype, got.device.type, tuple(got.shape)) == (getattr(torch, dtype), "cuda", (9, 64))
    assert difference(got.float().cpu().numpy(), want) <= KERNEL_TOLERANCE[dtype]
    if dtype != "bfloat16":  # which __cuda_array_interface__ does not know
        again = torch.as_tensor(result, device="cuda")
        assert again.data_ptr() == result.address
        assert torch.equal(again, got)


def test_cupy(engine: Engine) -> None:
    cupy = pytest.importorskip("cupy")
    feeds, want = norm_case(4)
    (result,) = engine.run({name: cupy.asarray(array) for name, array in feeds.items()}).values()
    for got in (cupy.from_dlpack(result), cupy.asarray(result)):
        assert got.data.ptr == result.address
        assert difference(cupy.asnumpy(got), want) <= KERNEL_TOLERANCE["float32"]


def test_host_and_gpu_mixed(engine: Engine) -> None:
    torch = pytest.importorskip("torch")
    feeds, want = norm_case(6)
    (result,) = engine.run(feeds | {"x": torch.from_numpy(feeds["x"]).cuda()}).values()
    assert difference(result.numpy(), want) <= KERNEL_TOLERANCE["float32"]
    assert difference(np.asarray(result), want) <= KERNEL_TOLERANCE["float32"]
    (host,) = engine.run(
        {name: torch.from_numpy(array) for name, array in feeds.items()}
    ).values()  # torch's, on the host
    assert np.array_equal(host, result.numpy())


def test_slices_and_strides(engine: Engine) -> None:
    """A slice of rows need not begin where TensorRT wants it; other strides are refused with the way out."""
    torch = pytest.importorskip("torch")
    feeds, want = norm_case(7)
    flat = torch.zeros(7 * 64 + 1, device="cuda")
    flat[1:] = torch.from_numpy(feeds["x"]).cuda().flatten()
    tensors = {name: torch.from_numpy(array).cuda() for name, array in feeds.items()}
    (result,) = engine.run(tensors | {"x": flat[1:].view(7, 64)}).values()
    assert difference(result.numpy(), want) <= KERNEL_TOLERANCE["float32"]
    with pytest.raises(ConvertError, match=r"'x' is not contiguous: shape \[7, 64\], strides \[1, 7\]"):
        engine.run(tensors | {"x": torch.zeros(64, 7, device="cuda").T})
    with pytest.raises(ConvertError, match="'x' is float16, the engine takes float32"):
        engine.run(tensors | {"x": tensors["x"].half()})


# --- streams -------------------------------------------------------------------------------------------------------


def test_the_callers_stream(engine: Engine) -> None:
    """What lies on it before is waited for, by the GPU alone; the results are on it; torch goes on without another wait."""
    torch = pytest.importorskip("torch")
    feeds, want = norm_case(8)
    tensors = {name: torch.from_numpy(array).cuda() for name, array in feeds.items()}
    stream, context = torch.cuda.Stream(), engine.context()
    context.run(tensors, stream)  # kernels are loaded now
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(tensors["x"])
        torch.cuda._sleep(SLEEP)
        late.copy_(tensors["x"])
        begin = time.perf_counter()
        (result,) = context.run(tensors | {"x": late}, stream).values()
        spent = time.perf_counter() - begin
        busy = not stream.query()
        got = torch.from_dlpack(result) * 1
    assert result.stream == stream.cuda_stream
    assert busy
    assert spent < 0.02
    stream.synchronize()
    assert difference(got.cpu().numpy(), want) <= KERNEL_TOLERANCE["float32"]


def test_torchs_default_stream(engine: Engine) -> None:
    """Everything on one stream, an input written over at once too; the legacy default stream takes no CUDA graph."""
    torch = pytest.importorskip("torch")
    feeds, want = norm_case(11)
    tensors = {name: torch.from_numpy(array).cuda() for name, array in feeds.items()}
    for context in (engine.context(), engine.context(graphs=1)):
        x = tensors["x"].clone()
        (result,) = context.run(tensors | {"x": x}, torch.cuda.current_stream()).values()
        x.fill_(float("nan"))
        assert difference(torch.from_dlpack(result).cpu().numpy(), want) <= KERNEL_TOLERANCE["float32"]


@pytest.mark.parametrize("graphs", [0, 2])
def test_order_between_torchs_stream_and_the_engines(dynamic: Path, graphs: int) -> None:
    """Inputs that are made late, and given up at once; results that are read at once and given up: 200 times, all right."""
    torch = pytest.importorskip("torch")
    context = load_engine(dynamic).context(graphs)
    feeds, _ = norm_case(64)
    weights = {name: torch.from_numpy(array).cuda() for name, array in feeds.items() if name != "x"}
    base = torch.from_numpy(feeds["x"]).cuda()
    (first,) = context.run(weights | {"x": base}).values()
    want = torch.from_dlpack(first).clone()
    sums = []
    for turn in range(200):
        if turn % 20 == 0:
            torch.cuda._sleep(SLEEP // 10)
        x = base + 0  # on torch's stream
        (result,) = context.run(weights | {"x": x}).values()
        del x
        torch.full_like(base, float("nan"))  # takes the memory that is free
        sums.append((torch.from_dlpack(result) - want).abs().max())
        del result
    assert float(torch.stack(sums).max()) == 0.0


def test_one_context_on_two_streams(engine: Engine) -> None:
    """Its memory serves one run at a time: a run on another stream waits for the one before."""
    torch = pytest.importorskip("torch")
    cases = [norm_case(rows, seed=rows) for rows in (64, 5)]
    tensors = [{name: torch.from_numpy(array).cuda() for name, array in feeds.items()} for feeds, _ in cases]
    streams, context = [torch.cuda.Stream(), torch.cuda.Stream()], engine.context()
    torch.cuda.synchronize()
    results = [next(iter(context.run(tensors[i % 2], streams[i % 2]).values())) for i in range(40)]
    for i, result in enumerate(results):
        assert difference(result.numpy(), cases[i % 2][1]) <= KERNEL_TOLERANCE["float32"]


# --- a process of its own ------------------------------------------------------------------------------------------


PROGRAM = """
import sys, threading, numpy as np, trtconvert
plan, faults, start = sys.argv[1], [], threading.Barrier(8)
x = np.ones((1, 64, 16, 16), np.float32)
def work():
    try:
        start.wait()
        engine = trtconvert.load_engine(plan)
        (y,) = engine.run({"image_embedding": x}).values()
        assert np.isfinite(y).all()
    except BaseException as error:
        faults.append(repr(error))
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(faults)
"""


def test_eight_threads_load_at_once(sam: Path) -> None:
    """Nothing was loaded before: TensorRT, CUDA and the creators come up once, in whichever thread is first."""
    result = subprocess.run([sys.executable, "-c", PROGRAM, str(sam)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


# --- last, since TensorRT-RTX 1.6.1 may leave a damaged heap behind it, see docs/tested.md --------------------------


def test_output_whose_shape_depends_on_the_data(folder: Path) -> None:
    """NonZero: host and GPU, with its true shape; no graph, and a reason."""
    torch = pytest.importorskip("torch")
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 33])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [2, None])
    graph = onnx.helper.make_graph([onnx.helper.make_node("NonZero", ["x"], ["y"])], "g", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    (folder / "nonzero.onnx").write_bytes(serialize(model))
    plan = build(folder / "nonzero.onnx", None, BuildOptions(shapes=parse(["x=1x33,7x33,40x33"]))).plan
    random, graphs = np.random.default_rng(0), load_engine(plan).context(graphs=2)
    for context in (load_engine(plan).context(), graphs):
        for rows, share in ((7, 0.0), (7, 0.5), (40, 1.0), (1, 0.1), (7, 0.9)):
            feed = (random.random((rows, 33)) < share).astype(np.float32)
            want = np.stack(np.nonzero(feed))
            assert np.array_equal(context.run({"x": feed})["y"], want)
            on_gpu = torch.from_dlpack(context.run({"x": torch.from_numpy(feed).cuda()})["y"])
            assert np.array_equal(on_gpu.cpu().numpy(), want)
    assert "depends on the data" in graphs.graph_fault
