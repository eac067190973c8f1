"""Running plans from Python as far as it needs no GPU: registration, what a plan needs, arrays, contexts on a stand-in."""

from __future__ import annotations

import ctypes
import gc
import json
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import SAMPLES, Run
from tests.native_libraries import needs_compiler
from tests.test_custom_ops import node, python_op, save
from trtconvert import BuildOptions, ConvertError, adapter, backend, build, engine, gpu, manifest, native, registration
from trtconvert.backend import Log
from trtconvert.custom_ops import creators
from trtconvert.manifest import IO
from trtconvert.model import numpy_dtype
from trtconvert.runtime import contents, dlpack, needs
from trtconvert.runtime.arrays import DeviceArray, View, on_device, on_host
from trtconvert.runtime.context import Context, stream_handle

# --- versions and namespaces side by side --------------------------------------------------------------------------

OTHERS = """

class Two(Scale):
    name = "Scale"
    version = "2"
    by: float = 3.0


class Mine(Scale):
    name = "Scale"
    namespace = "mine"
    by: float = 5.0
"""


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan with one plugin in versions 1 and 2, and in a namespace, each with its own attribute."""
    folder = tmp_path_factory.mktemp("versions")
    file = python_op(folder / "scale.py", "Scale", by="float = 2.0")
    file.write_text(file.read_text() + OTHERS)
    nodes = (
        node("Scale", ["x"], "a", name="one", plugin_version="1", plugin_namespace=""),
        node("Scale", ["a"], "b", name="two", plugin_version="2"),
        node("Scale", ["b"], "y", name="mine", plugin_namespace="mine"),
    )
    build(save(folder / "m.onnx", *nodes), folder / "m.plan", BuildOptions(plugins=(str(file),), targets=("sm_86",)))
    return folder / "m.plan"


KEYS = {("Scale", "1", ""), ("Scale", "2", ""), ("Scale", "1", "mine")}


def test_versions_and_namespaces_side_by_side(side_by_side: Path, run: Run) -> None:
    described = manifest.read(side_by_side)
    assert {(p.name, p.version, p.namespace): p.nodes for p in described.plugins} == {
        ("Scale", "1", ""): ["one"],
        ("Scale", "2", ""): ["two"],
        ("Scale", "1", "mine"): ["mine"],
    }
    found = {p.key: p.attributes for p in contents.plugins_in(side_by_side.read_bytes())}
    assert found == {
        ("Scale", "1", ""): {"by": "2"},
        ("Scale", "2", ""): {"by": "3"},
        ("Scale", "1", "mine"): {"by": "5"},
    }
    lines = run("inspect", side_by_side).stdout.splitlines()
    assert sorted(line for line in lines if line.startswith("plugin")) == [
        "plugin    Scale version 1 in namespace mine, 1 layer, kernel k: by 5",
        "plugin    Scale version 1, 1 layer, kernel k: by 2",
        "plugin    Scale version 2, 1 layer, kernel k: by 3",
    ]


def test_registered_from_sixteen_threads_at_once(side_by_side: Path) -> None:
    """In a process that has loaded nothing yet: TensorRT is imported once, each creator is registered once."""
    assert registered_by_threads(side_by_side, "Scale", None) == str(sorted(KEYS))


@needs_compiler
def test_the_library_registered_from_sixteen_threads_at_once(tmp_path: Path) -> None:
    native.library()  # compiled before
    plan = build(SAMPLES / "sam_upscaler.onnx", tmp_path / "e.plan", BuildOptions(fuse="all", targets=("sm_86",))).plan
    assert registered_by_threads(plan, "LayerNormGelu", True) == "[('LayerNormGelu', '1', '')]"


def registered_by_threads(plan: Path, name: str, native: bool | None) -> str:
    """Keys of that name in the registry of a process in which 16 threads register what the plan wants."""
    code = """
import sys, threading
from pathlib import Path
from trtconvert import engine, manifest
from trtconvert.custom_ops import creators
plan, name, faults, start = Path(sys.argv[1]), sys.argv[2], [], threading.Barrier(16)
native = {"True": True, "None": None}[sys.argv[3]]
def work():
    try:
        start.wait()
        for _ in range(20):
            engine.register(*manifest.read_plan(plan), plan, "auto", native)
    except BaseException as error:
        faults.append(error)
threads = [threading.Thread(target=work) for _ in range(16)]
[t.start() for t in threads]; [t.join() for t in threads]
chosen = engine.register(*manifest.read_plan(plan), plan)
assert not faults, faults
print(sorted(c.key for c in creators.registered(chosen, ours=True) if c.name == name))
"""
    command = [sys.executable, "-c", code, str(plan), name, str(native)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.strip()


def test_a_plan_without_manifest_registers_its_own_plugins(side_by_side: Path, tmp_path: Path) -> None:
    data = side_by_side.read_bytes()
    chosen = engine.register(data, None, tmp_path / "e.plan")
    assert {c.key for c in creators.registered(chosen, ours=True)} >= KEYS


# --- what a plan needs ---------------------------------------------------------------------------------------------

NEEDS = """\
needs here
TensorRT-RTX VERSION yes PATH/libtensorrt_rtx.so.1
GPU: sm_86 no no NVIDIA driver on this machine
plugin Scale version 1 yes in the plan, launch format 2; read up to 2
plugin Scale version 1 in namespace mine yes in the plan, launch format 2; read up to 2
plugin Scale version 2 yes in the plan, launch format 2; read up to 2
library libtrtconvert_plugins.so, for C++ and Triton no not compiled yet; Python does without
"""
FIXES = """\
fix: GPU: sm_86: run it on a machine with an NVIDIA GPU and its driver
fix: library libtrtconvert_plugins.so, for C++ and Triton: trtconvert plugins build-native, which needs g++
"""
LIBRARY = "library libtrtconvert_plugins.so, for C++ and Triton"


def masked(text: str) -> str:
    """Without what differs between machines: paths, TensorRT's version, the width of columns."""
    text = re.sub(r"/\S+/(?=lib)", "PATH/", text.replace(backend.select("rtx").version, "VERSION"))
    return "".join(f"{' '.join(line.split())}\n" for line in text.splitlines())


@pytest.mark.skipif(gpu.current() is not None, reason="this machine has a GPU")
def test_inspect_runtime(side_by_side: Path, run: Run, tmp_path: Path) -> None:
    """Where the C++ library is not, and where it is."""
    empty = {"TRTCONVERT_CACHE_DIR": str(tmp_path / "cache")}
    result = run("inspect", side_by_side, "--runtime", env=empty)
    carried = (native.sources() / native.NAME).is_file()
    if not carried:
        assert masked(result.stdout) == NEEDS
        assert result.stderr == FIXES
    described = json.loads(run("inspect", side_by_side, "--runtime", "--json", env=empty).stdout)
    assert [need["here"] for need in described] == [True, False, True, True, True, carried]


def test_inspect_runtime_with_the_library(side_by_side: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / native.NAME).touch()
    monkeypatch.setattr(native, "place", lambda: tmp_path / native.NAME)
    assert needs.needs(side_by_side)[-1] == needs.Need(LIBRARY, True, str(tmp_path / native.NAME))


def test_inspect_runtime_of_what_is_missing(side_by_side: Path, tmp_path: Path, run: Run) -> None:
    """Another version of TensorRT-RTX, in a plan without manifest."""
    data = side_by_side.read_bytes()
    (tmp_path / "e.plan").write_bytes(data[:24] + bytes((1, 3, 0, 35)) + data[28:])
    result = run("inspect", tmp_path / "e.plan", "--runtime")
    sentence = "no the plan was built with TensorRT-RTX 1.3.0.35, this machine has VERSION"
    assert masked(result.stdout).splitlines()[1] == f"TensorRT-RTX 1.3.0.35 {sentence}"
    assert "fix: TensorRT-RTX 1.3.0.35: pip install tensorrt-rtx==1.3.0.35, or build the plan again" in result.stderr


# --- arrays --------------------------------------------------------------------------------------------------------


class Stream:
    """A stream's place holder; `handle` is all that is asked of it."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def sync(self) -> None:
        pass


class Memory:
    """ "Device" memory that is host memory."""

    def __init__(self, size: int) -> None:
        self.bytes = ctypes.create_string_buffer(size + 512)
        self.handle = -(-ctypes.addressof(self.bytes) // 256) * 256
        self.size = size


class OnDevice:
    """An array that says it lies on the GPU, as torch's tensors do; it remembers the streams that it was asked for."""

    def __init__(
        self, array: NDArray[Any], offset: int = 0, strides: tuple[int, ...] | None = None, device: int = 0
    ) -> None:
        self.memory, self.shape, self.dtype, self.device = (
            Memory(array.nbytes + offset),
            array.shape,
            array.dtype,
            device,
        )
        self.address = self.memory.handle + offset
        ctypes.memmove(self.address, np.ascontiguousarray(array).ctypes.data, array.nbytes)
        self.asked: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device

    def __dlpack__(self, *, stream: int | None = None, **_wishes: Any) -> Any:
        self.asked.append(stream)
        return dlpack.capsule(self, self.address, self.shape, self.dtype, self.device)


class Exported:
    """Host memory in a capsule of ours, for numpy to read."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU, 0

    def __dlpack__(self, **_wishes: Any) -> Any:
        return dlpack.capsule(self, self.array.ctypes.data, self.array.shape, self.array.dtype, -1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int32", "int8", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (5,), (), (0, 3), (1, 0)])
def test_numpy_reads_our_capsules(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    got = np.from_dlpack(Exported(array))
    assert np.array_equal(got, array)
    assert got.dtype == array.dtype
    assert got.ctypes.data == array.ctypes.data or not array.size


def test_a_capsule_keeps_its_owner_until_it_was_read_and_dropped() -> None:
    owner = Exported(np.arange(6.0))
    alive = weakref.ref(owner)
    unread = owner.__dlpack__()
    reader = np.from_dlpack(owner)
    del owner
    gc.collect()
    assert alive() is not None
    del unread
    assert alive() is not None
    del reader
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_a_view_reads_what_we_export(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result of one engine is an input of another, bfloat16 too, ordered behind it."""
    waits: list[tuple[int, int]] = []
    monkeypatch.setattr(gpu, "wait", lambda stream, other: waits.append((stream, other)))
    array = DeviceArray(Memory(24), (3, 2), numpy_dtype(dtype), Stream(7))
    view = View("x", array, stream=9)
    assert (view.handle, view.shape, view.dtype) == (array.address, (3, 2), array.dtype)
    assert waits == [(9, 7)]
    del view, array
    gc.collect()
    assert waits == [(9, 7), (7, 9)]  # the memory is free once the reader's stream is through


def test_a_result_is_handed_over_as_it_is() -> None:
    """Who asks for a copy, or for host memory, is not given the memory itself."""
    array = DeviceArray(Memory(24), (3, 2), np.dtype(np.float32), Stream(0))
    assert array.__dlpack__(stream=1, dl_device=(dlpack.CUDA, 0), copy=False, max_version=(1, 0))
    for wishes in ({"copy": True}, {"dl_device": (dlpack.CPU, 0)}, {"dl_device": (dlpack.CUDA, 1)}):
        with pytest.raises(BufferError, match="without a copy"):
            array.__dlpack__(stream=1, **wishes)  # type: ignore[arg-type]


def test_arrays_that_cannot_be_inputs() -> None:
    square = np.arange(16.0).reshape(4, 4)
    with pytest.raises(ConvertError, match="'x' lies on GPU 1, the engine on GPU 0"):
        View("x", OnDevice(square, device=1), 5)
    with pytest.raises(ConvertError, match="'x' is no array: dict"):
        on_host("x", {})
    assert not on_device(square)
    assert not on_device(Exported(square))
    assert on_device(OnDevice(square))
    assert on_device(SimpleNamespace(__cuda_array_interface__={}))


def test_streams_of_others() -> None:
    assert stream_handle(5) == 5
    assert stream_handle(SimpleNamespace(cuda_stream=6)) == 6  # torch
    assert stream_handle(SimpleNamespace(ptr=7)) == 7  # cupy
    assert stream_handle(SimpleNamespace(__cuda_stream__=lambda: (0, 8))) == 8  # cuda.core
    with pytest.raises(ConvertError, match="str is no CUDA stream"):
        stream_handle("main")


# --- contexts on a stand-in engine ---------------------------------------------------------------------------------


class Execution:
    """An execution context of y = 2 x, x [N]; counts what is asked of it."""

    def __init__(self, log: Log) -> None:
        self.shape: tuple[int, ...] = ()
        self.addresses: dict[str, int] = {}
        self.runs: list[int] = []  # the stream of each
        self.fails, self.log = "", log

    def set_input_shape(self, _name: str, shape: tuple[int, ...]) -> bool:
        self.shape = shape
        return shape[0] <= 8

    def set_tensor_address(self, name: str, address: int) -> None:
        self.addresses[name] = address

    def get_tensor_shape(self, _name: str) -> tuple[int, ...]:
        return self.shape

    def execute_async_v3(self, stream: int) -> bool:
        if self.fails:
            self.log.errors.append(self.fails)
            return False
        x, y = ((ctypes.c_float * self.shape[0]).from_address(self.addresses[name]) for name in "xy")
        y[:] = [2 * value for value in x]
        self.runs.append(stream)
        return True


class StandIn:
    inputs: Sequence[IO] = [IO("x", "float32", [-1])]
    outputs: Sequence[IO] = [IO("y", "float32", [-1])]
    host_inputs: set[str] = set()  # noqa: RUF012
    path = Path("e.plan")
    capturable = True

    def __init__(self) -> None:
        self.backend = SimpleNamespace(trt=SimpleNamespace(TensorLocation=SimpleNamespace(HOST=1)))
        self.streams = iter(range(100, 200))
        self.device = SimpleNamespace(
            allocate=lambda size, stream: Memory(size),
            create_stream=lambda: Stream(next(self.streams)),
            set_current=lambda: None,
        )
        self.contexts: list[Execution] = []
        self.engine, self.log = self, Log(errors=["what another run left"])

    def check_names(self, given: Any) -> None:
        if set(given) != {"x"}:
            raise ConvertError(f"got {sorted(given)}")

    def get_tensor_location(self, _name: str) -> int:
        return 0

    def get_aliased_input_tensor(self, _name: str) -> str:
        return ""

    def new_context(self, final_kernels: bool = False) -> Execution:
        self.contexts.append(Execution(self.log))
        return self.contexts[-1]


class Mark:
    passed = True
    waits: ClassVar[list[tuple[int, int]]] = []  # stream, and the one that it waits for

    def __init__(self, stream: int) -> None:
        self.stream = stream

    def hold(self, stream: int) -> None:
        self.waits.append((stream, self.stream))

    def sync(self) -> None:
        pass


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    def copy(device: int, host: int, size: int, _stream: int, to_device: bool) -> None:
        ctypes.memmove(*((device, host) if to_device else (host, device)), size)

    made = StandIn()

    def capture(_stream: int, work: Any) -> Any:
        if not made.capturable:
            raise ConvertError("a layer makes the host wait")
        return work

    monkeypatch.setattr(gpu, "copy", copy)
    monkeypatch.setattr(gpu, "clear", lambda device, size, _stream: ctypes.memset(device, 0, size))
    monkeypatch.setattr(gpu, "move", lambda target, source, size, _stream: ctypes.memmove(target, source, size))
    monkeypatch.setattr(gpu, "sync", lambda _stream: None)
    monkeypatch.setattr(gpu, "wait", lambda _stream, _other: None)
    monkeypatch.setattr(gpu, "Mark", Mark)
    monkeypatch.setattr(gpu, "capture", capture)
    return made


def ones(count: int) -> NDArray[np.float32]:
    return np.arange(1, count + 1, dtype=np.float32)


def test_numpy_in_numpy_out(stand_in: Any) -> None:
    context = Context(stand_in)
    for count in (3, 3, 5, 3):
        result = context.run({"x": ones(count)})["y"]
        assert isinstance(result, np.ndarray)
        assert np.array_equal(result, 2 * ones(count))
    assert len(stand_in.contexts) == 1
    with pytest.raises(ConvertError, match="outside the engine's profile"):
        context.run({"x": ones(9)})
    with pytest.raises(ConvertError, match="'x' is float64, the engine takes float32"):
        context.run({"x": np.ones(3)})
    assert np.array_equal(context.run({"x": ones(2)})["y"], 2 * ones(2))  # a failed run leaves the context in order


def test_a_failed_run_tells_its_own_cause(stand_in: Any) -> None:
    context = Context(stand_in)
    with pytest.raises(ConvertError, match="outside the engine's profile"):
        context.run({"x": ones(9)})
    for cause in ("an illegal address", "another"):
        stand_in.contexts[0].fails = cause
        with pytest.raises(ConvertError, match=f"the engine failed: {cause}"):
            context.run({"x": ones(3)})
    stand_in.contexts[0].fails = ""
    assert np.array_equal(context.run({"x": ones(3)})["y"], 2 * ones(3))


def test_a_log_of_months() -> None:
    log = Log()
    for number in range(5000):
        log.add(log.warnings, str(number))
    assert log.warnings[:2] == ["0", "1"]
    assert len(log.warnings) == 1000


def test_device_in_device_out_without_a_copy(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "copy", lambda *_: pytest.fail("a copy between host and device"))
    monkeypatch.setattr(gpu, "move", lambda *_: pytest.fail("a copy on the device"))
    context, array = Context(stand_in), OnDevice(ones(4))
    first = context.run({"x": array})["y"]
    (execution,) = stand_in.contexts
    assert isinstance(first, DeviceArray)
    assert execution.addresses == {"x": array.address, "y": first.address}
    assert array.asked == [int(context.stream.handle)]  # what made it comes first
    second = context.run({"x": OnDevice(ones(4) * 3)})["y"]
    monkeypatch.undo()
    values = [np.array((ctypes.c_float * 4).from_address(y.address)) for y in (first, second)]
    assert np.array_equal(values, [2 * ones(4), 6 * ones(4)])  # the first is not written over
    with pytest.raises(ConvertError, match="'x' is int64, the engine takes float32"):
        Context(stand_in).run({"x": OnDevice(np.ones(3, np.int64))})


def test_an_input_between_two_addresses_that_tensorrt_takes_is_copied(stand_in: Any) -> None:
    array = OnDevice(ones(4), offset=4)
    result = Context(stand_in).run({"x": array})["y"]
    assert np.array_equal(result.numpy(), 2 * ones(4))
    assert stand_in.contexts[-1].addresses["x"] % 256 == 0


def test_the_callers_stream(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuda.core.Stream", SimpleNamespace(from_handle=Stream))
    monkeypatch.setattr(Mark, "passed", False)
    monkeypatch.setattr(Mark, "waits", [])
    context = Context(stand_in)
    own, array = int(context.stream.handle), OnDevice(ones(2))
    result = context.run({"x": array}, stream=SimpleNamespace(cuda_stream=55))["y"]
    context.run({"x": array}, stream=0)
    context.run({"x": array}, stream=0)
    context.run({"x": array})
    assert stand_in.contexts[0].runs == [55, 1, 1, own]
    assert Mark.waits == [(1, 55), (own, 1)]  # one run at a time, without the host's waiting
    assert array.asked == [55, 1, 1, own]
    assert result.stream == 55


def test_inputs_live_until_the_gpu_has_read_them(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mark, "passed", False)
    context, array = Context(stand_in), OnDevice(ones(2))
    alive = weakref.ref(array)
    context.run({"x": array})
    del array
    gc.collect()
    assert alive() is not None
    monkeypatch.setattr(Mark, "passed", True)
    context.run({"x": ones(2)})
    gc.collect()
    assert alive() is None


def test_inputs_on_the_host_live_as_long(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside one on the GPU nobody waits, and what is pinned is then read while the host goes on."""
    monkeypatch.setattr(Mark, "passed", False)
    stand_in.inputs, stand_in.check_names = [*StandIn.inputs, IO("b", "float32", [-1])], lambda _given: None
    context, host = Context(stand_in), ones(2)
    alive = weakref.ref(host)
    context.run({"x": OnDevice(ones(2)), "b": host})
    del host
    gc.collect()
    assert alive() is not None


def test_graphs_are_kept_by_shape(stand_in: Any) -> None:
    """Two shapes, each captured once in a context of its own; the one used longest ago goes for a third."""
    context = Context(stand_in, graphs=2)
    for count in (3, 4, 3, 4, 3):
        assert np.array_equal(context.run({"x": ones(count)})["y"], 2 * ones(count))
        result = context.run({"x": OnDevice(ones(count) * 3)})["y"]
        assert np.array_equal(result.numpy(), 6 * ones(count))
    assert len(stand_in.contexts) == 1 + 2
    context.run({"x": ones(5)})  # 4 goes
    context.run({"x": ones(3)})
    assert len(stand_in.contexts) == 1 + 3
    context.run({"x": ones(4)})
    assert len(stand_in.contexts) == 1 + 4
    assert context.graph_fault == ""


def test_without_a_graph_where_there_can_be_none(stand_in: Any) -> None:
    stand_in.capturable = False
    context = Context(stand_in, graphs=2)
    assert np.array_equal(context.run({"x": ones(3)})["y"], 2 * ones(3))
    assert context.graph_fault == "no CUDA graph of this engine: a layer makes the host wait"


class Loaded(engine.Engine):
    """An Engine on the stand-in, with everything that it does by itself."""

    def __init__(self, stand_in: StandIn) -> None:
        self.__dict__ |= vars(stand_in) | {"graphs": 0, "_own": threading.local(), "stand_in": stand_in}
        self.inputs, self.outputs, self.host_inputs = list(StandIn.inputs), list(StandIn.outputs), set()
        self.new_context = stand_in.new_context  # type: ignore[method-assign,assignment]


def test_a_context_for_each_thread(stand_in: Any) -> None:
    loaded, faults = Loaded(stand_in), list[str]()
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        start.wait()
        for turn in range(50):
            x = ones(1 + (seed + turn) % 8) * seed
            if not np.array_equal(loaded(x)["y"], 2 * x) or not np.array_equal(loaded(x=x)["y"], 2 * x):
                faults.append(f"thread {seed}, turn {turn}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert len(stand_in.contexts) == 8
    with pytest.raises(ConvertError, match="the engine has 1 inputs, got 2 arrays"):
        loaded(ones(1), ones(1))
    with pytest.raises(ConvertError, match="given twice, by place and by name: x"):
        loaded(ones(1), x=ones(1))


def test_a_plugin_that_fails_says_why_to_its_own_engine(stand_in: Any) -> None:
    """Whether TensorRT makes it with the engine or with a context; an engine that is fine hears nothing of it."""
    loaded = Loaded(stand_in)
    del loaded.new_context
    stand_in.create_execution_context = lambda: None
    loaded.backend, loaded.path = backend.select("rtx"), StandIn.path
    creator = adapter.creator(loaded.backend, "Damaged", "1", "")
    for _ in range(2):
        assert creator.create_plugin("", [], loaded.backend.trt.TensorRTPhase.RUNTIME) is None
    with pytest.raises(ConvertError, match="plugin Damaged in this plan was not built by trtconvert"):
        loaded.new_context()
    with pytest.raises(ConvertError, match="cannot load the plan: what another run left"):
        loaded.new_context()
    creator.create_plugin("", [], loaded.backend.trt.TensorRTPhase.RUNTIME)
    stand_in.create_execution_context = lambda: "a context"
    assert loaded.new_context() == "a context"
    adapter.failure()


def test_no_context_is_made_while_creators_change(stand_in: Any) -> None:
    """TensorRT looks for them then, and use_native and use_python take them away for a moment."""
    loaded = Loaded(stand_in)
    del loaded.new_context
    stand_in.create_execution_context = lambda: "a context"
    stand_in.backend.is_rtx = False
    made = list[Any]()
    thread = threading.Thread(target=lambda: made.append(loaded.new_context()))
    with registration.lock:
        thread.start()
        thread.join(0.1)
        assert not made
    thread.join()
    assert made == ["a context"]


def test_an_engine_goes_with_its_last_reference(stand_in: Any) -> None:
    """At once, and with it the memory of its contexts: no cycle waits for the garbage collector."""
    loaded = Loaded(stand_in)
    loaded(ones(3))
    gone = weakref.ref(loaded)
    gc.disable()
    try:
        del loaded
        assert gone() is None
    finally:
        gc.enable()


def test_a_plan_without_plugins_needs_none(tmp_path: Path, run: Run) -> None:
    assert run("build", SAMPLES / "tanh_gelu.onnx", "-o", tmp_path / "e.plan", "--fuse", "none").returncode == 0
    result = run("inspect", tmp_path / "e.plan", "--runtime")
    assert result.returncode == 0
    assert "plugin" not in result.stdout
