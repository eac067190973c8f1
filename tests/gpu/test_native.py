"""The C++ plugin library on a real GPU: plans of either kind of creators run with either, to the same bits."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.bench import native as bench
from tests.bench.registers import built_in
from tests.conftest import SAMPLES
from tests.importable import importable
from tests.native_libraries import COMPILER, needs_compiler
from tests.native_plans import all_cases, plans
from trtconvert import BuildOptions, build, check, gpu, load_engine, native, registration, registry, surroundings
from trtconvert.backend import select
from trtconvert.op import Op

pytestmark = needs_compiler
LOADER = Path(__file__).with_name("loader.cpp")


@pytest.fixture(autouse=True)
def python_creators() -> Iterator[None]:
    """Other tests find the Python creators again."""
    yield
    registration.use_python(select("rtx"))


def outputs(plan: Path, feeds: dict[str, np.ndarray], with_native: bool) -> dict[str, bytes]:
    """The bytes of each output, and its shape."""
    found = load_engine(plan, native=with_native).run(feeds)
    return {name: str(array.shape).encode() + array.tobytes() for name, array in found.items()}


@pytest.mark.parametrize(
    ("op", "dtype"), [pytest.param(op, dtype, id=f"{op.name} {dtype}") for op in built_in() for dtype in op.dtypes]
)
def test_same_bits(op: type[Op], dtype: str, tmp_path: Path) -> None:
    """Two plans, two kinds of creators that run them: four times the same outputs, for all of the op's cases."""
    first, second, _ = plans(*all_cases(op, dtype), tmp_path, gpu.require().arch)
    feeds = {
        f"c{index}_{name}": array
        for index, tested in enumerate(op.cases)
        for name, array in zip(op.inputs(), check.random_inputs(tested, dtype), strict=True)
    }
    found = []
    for name, plan in (("python", first), ("native", second)):
        path = tmp_path / f"{name}.plan"
        path.write_bytes(plan)
        found += [outputs(path, feeds, with_native) for with_native in (False, True)]
    assert all(found[0].values())
    assert found[1:] == found[:1] * 3


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of a model with three plugin layers and two dynamic dimensions."""
    folder = tmp_path_factory.mktemp("speech")
    model = importable(SAMPLES / "wav2vec2_features_dynamic.onnx", folder)
    return build(model, folder / "speech.plan", BuildOptions(fuse="all")).plan


@pytest.mark.parametrize("with_native", [False, True])
def test_cuda_graph(with_native: bool, speech: Path) -> None:
    """Captured once, replayed on new data: the same as without the graph."""
    bound = load_engine(speech, native=with_native).bind({"waveform": (2, 1, 16000)})
    graph = bound.capture()
    for seed in range(3):
        bound.write({"waveform": np.random.default_rng(seed).standard_normal((2, 1, 16000), dtype=np.float32)})
        bound.execute()
        (want,) = bound.read().values()
        for buffer in bound.outputs.values():
            gpu.clear(buffer.address, buffer.size, bound.stream)
        graph.launch()
        (got,) = bound.read().values()
        assert np.array_equal(got, want)


def test_contexts_in_threads(speech: Path) -> None:
    """Engines with C++ plugins in threads, each with its shape: exact against one thread alone."""
    from cuda.core import Device

    random = np.random.default_rng(0)
    feeds = [random.standard_normal((1 + i % 3, 1, 4000 + 1000 * i), dtype=np.float32) for i in range(4)]
    engines = [load_engine(speech, native=True) for _ in feeds]  # a stream each
    bounds = [engine.bind({"waveform": feed.shape}) for engine, feed in zip(engines, feeds, strict=True)]
    want = []
    for bound, feed in zip(bounds, feeds, strict=True):
        bound.write({"waveform": feed})
        bound.execute()
        want += bound.read().values()
    faults: list[int] = []

    def work(index: int) -> None:
        Device(0).set_current()
        for _ in range(100):
            bounds[index].write({"waveform": feeds[index]})
            bounds[index].execute()
            (got,) = bounds[index].read().values()
            if not np.array_equal(got, want[index]):
                faults.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(feeds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_enqueue_takes_little(tmp_path: Path) -> None:
    """Host time inside onShapeChange and enqueue, as TensorRT calls them, without TensorRT: the median is 3 us at most, in
    the best of three runs, since a busy machine only adds to it."""
    median = min(bench.native_us("LayerNormGelu", tmp_path) for _ in range(3))
    assert median <= 3.0, f"{median} us"


def test_a_program_without_python(tmp_path: Path) -> None:
    """loader.cpp loads the library and the plan, and computes what the engine computes here, to the bit."""
    op = registry.find("LayerNormGelu")
    assert op is not None
    assert COMPILER is not None
    subprocess.run([COMPILER, "-std=c++17", "-o", tmp_path / "loader", LOADER, "-ldl"], check=True)
    plan, tested = check.node_plan(op, op.cases[0], "float32", tmp_path), op.cases[0]
    engine = load_engine(plan, native=True)
    arrays = dict(zip(op.inputs(), check.random_inputs(tested, "float32"), strict=True))
    ((name, want),) = engine.run(arrays).items()
    given = []
    for tensor, array in arrays.items():
        array.tofile(tmp_path / tensor)
        given.append(f"{tensor}={'x'.join(map(str, array.shape))}:{tmp_path / tensor}")
    (tensorrt,) = (file for library, file in surroundings.loaded().items() if library == "libtensorrt_rtx")
    command = [
        tmp_path / "loader",
        tensorrt,
        native.library(),
        plan,
        *given,
        "--",
        f"{name}={want.nbytes}:{tmp_path / name}",
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert np.array_equal(np.fromfile(tmp_path / name, want.dtype).reshape(want.shape), want)
