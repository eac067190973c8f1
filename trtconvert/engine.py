"""A plan in use: its creators registered, loaded on this machine's GPU, run on arrays of the host or of the GPU."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from threading import local
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from trtconvert import adapter, manifest, registration
from trtconvert.backend import Backend, logger, select
from trtconvert.bound import Bound
from trtconvert.custom_ops import creators, libraries
from trtconvert.diagnosis import contract
from trtconvert.errors import ConvertError
from trtconvert.manifest import IO, Manifest
from trtconvert.runtime import contents, faults
from trtconvert.runtime.context import Context

if TYPE_CHECKING:
    from trtconvert.backend import types


def load_engine(plan: str | Path, backend: str = "auto", native: bool | None = None, *, graphs: int = 0) -> Engine:
    """Load a plan: register the creators that it asks for, check backend, version, plugins and GPU, make it ready to run.

    Works without the manifest too, when all plugins are trtconvert's. native: whether the C++ library's creators make the
    plugins from now on (True), or the Python ones (False); whichever the process has where nothing is said. graphs: see
    runtime.context.Context. Raises ConvertError that says what is missing: first what is wrong with the plan or with what is
    installed, then NoUsableGpuError where no GPU can run it.
    """
    path = Path(plan)
    return load(path, *manifest.read_plan(path), backend, native, graphs=graphs)


def load(
    path: Path,
    data: bytes,
    described: Manifest | None,
    backend: str = "auto",
    native: bool | None = None,
    *,
    graphs: int = 0,
) -> Engine:
    """`load_engine` of a plan that has been read and checked; the manifest's paths are relative to path's folder."""
    chosen = register(data, described, path, backend, native)
    faults.check_gpu(described, chosen, path)
    engine = Engine(chosen, data, path, graphs)
    if described:
        contract.check_loaded(described, engine.inputs, engine.outputs)
    return engine


def register(
    data: bytes, described: Manifest | None, path: Path, backend: str = "auto", native: bool | None = None
) -> Backend:
    """All of `load_engine` that needs no GPU: the backend, with every creator registered that the plan wants. Safe to repeat,
    and in threads."""
    chosen = select(faults.check_plan(data, described, path, backend))
    faults.check_version(contents.header(data), described, chosen, path)
    if described is not None:
        there = [file for file in described.plugin_files if (path.parent / file).exists()]
        libraries.load_libraries(path.parent, there, chosen.name)
    if native is not None:
        (registration.use_native if native else registration.use_python)(chosen)
    register_creators(chosen, data, described)
    if described is not None:
        wanted = [((p.name, p.version, p.namespace), p.provider) for p in described.plugins]
        faults.check_plugins(wanted, creators.registered(chosen, ours=True), path)
    return chosen


def register_creators(backend: Backend, plan: bytes, described: Manifest | None) -> None:
    """Register a creator for each plugin that the manifest or the plan itself names; TensorRT's own are there then too."""
    creators.initialize(backend)
    wanted = {p.key for p in contents.plugins_in(plan)}
    if described is not None:
        wanted |= {(p.name, p.version, p.namespace) for p in described.plugins if p.kind == "IPluginV3"}
    for name, version, namespace in sorted(wanted):
        registration.ensure_creator(backend, name, version, namespace)


class Engine:
    """A loaded engine. inputs and outputs: name, dtype and shape, -1 for dynamic; host_inputs: those that decide shapes by their
    values, which TensorRT reads on the host. Makes GPU 0 the current one of each thread that uses it."""

    def __init__(self, backend: Backend, plan: bytes, path: Path, graphs: int = 0) -> None:
        from cuda.core import Device  # needs a driver

        self.backend, self.path, self.graphs = backend, path, graphs
        self.device = Device(0)
        self.device.set_current()
        self.logger, self.log = logger(backend)
        self.runtime: types.Runtime = backend.trt.Runtime(self.logger)
        with registration.lock:
            self.engine: types.ICudaEngine = self.runtime.deserialize_cuda_engine(plan)
        if self.engine is None:
            raise self._load_error()
        self.stream = self.device.create_stream()
        names = [self.engine.get_tensor_name(i) for i in range(self.engine.num_io_tensors)]
        tensors = [self._io(name) for name in names]
        is_input, on_host = backend.trt.TensorIOMode.INPUT, backend.trt.TensorLocation.HOST
        self.inputs = [t for t in tensors if self.engine.get_tensor_mode(t.name) == is_input]
        self.outputs = [t for t in tensors if self.engine.get_tensor_mode(t.name) != is_input]
        self.host_inputs = {t.name for t in self.inputs if self.engine.get_tensor_location(t.name) == on_host}
        self._own = local()
        self._own.context = self._thread_context()  # a plugin that is missing shows here

    def _io(self, name: str) -> IO:
        dtype = adapter.dtype_name(self.engine.get_tensor_dtype(name))
        return IO(name, dtype, [*adapter.sizes(self.engine.get_tensor_shape(name))])

    def _load_error(self) -> ConvertError:
        """What a plugin says of itself, else what TensorRT's log tells."""
        return adapter.failure() or faults.load_error(
            self.log, self.backend, self.path, creators.registered(self.backend, ours=True)
        )

    def bind(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, NDArray[Any]] | None = None) -> Bound:
        """Device buffers for these input shapes, with an execution context of their own, to be executed many times.

        values: of inputs that decide shapes; without, what the profile calls opt.

        Bindings of several shapes may live side by side, each with its CUDA graph. ConvertError as for `run`.
        """
        return Bound(self, self.new_context(final_kernels=True), shapes, values or {})

    def context(self, graphs: int | None = None) -> Context:
        """A context of its own, for a thread that wants to hold it; `graphs` as for load_engine."""
        return Context(self, self.graphs if graphs is None else graphs)

    def new_context(self, final_kernels: bool = False) -> types.IExecutionContext:
        """TensorRT's own execution context. final_kernels: with TensorRT-RTX, none but the kernels made for a shape."""
        context: types.IExecutionContext | None
        with registration.lock:
            if final_kernels and self.backend.is_rtx and any(-1 in (t.shape or ()) for t in self.inputs):
                # RTX runs a fallback kernel until one for the shape is compiled in the background; a graph would keep that.
                config: Any = self.engine.create_runtime_config()
                strategy = self.backend.trt.DynamicShapesKernelSpecializationStrategy.EAGER
                config.dynamic_shapes_kernel_specialization_strategy = strategy
                context = self.engine.create_execution_context(config)
            else:
                context = self.engine.create_execution_context()
        if context is None:
            raise self._load_error()
        return context

    def run(self, feeds: Mapping[str, Any], stream: Any = None) -> dict[str, Any]:
        """Run once, in a context of the calling thread: see Context.run. Threads run beside each other."""
        context: Context | None = getattr(self._own, "context", None)
        if context is None:
            context = self._own.context = self._thread_context()
        return context.run(feeds, stream)

    def _thread_context(self) -> Context:
        """It goes with the engine, so it must not keep the engine alive."""
        weak: Any = weakref.proxy(self)
        return Context(weak, self.graphs)

    def __call__(self, *arrays: Any, **feeds: Any) -> dict[str, Any]:
        """`run` with the inputs as arguments, in their order or by name."""
        if len(arrays) > len(self.inputs):
            raise ConvertError(f"the engine has {len(self.inputs)} inputs, got {len(arrays)} arrays")
        placed = {t.name: array for t, array in zip(self.inputs, arrays, strict=False)}
        if twice := placed.keys() & feeds.keys():
            raise ConvertError(f"given twice, by place and by name: {', '.join(sorted(twice))}")
        return self.run(placed | feeds)

    def check_names(self, given: Iterable[str]) -> None:
        """ConvertError unless these are the names of the inputs."""
        if set(given) != {t.name for t in self.inputs}:
            raise ConvertError(f"the engine's inputs are {[t.name for t in self.inputs]}, got {sorted(given)}")
