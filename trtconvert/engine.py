"""A plan in use: its creators registered, loaded on this machine's GPU, run on numpy arrays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trtconvert import adapter, gpu, launch, manifest, surroundings
from trtconvert.backend import Backend, Log, logger, select
from trtconvert.bound import Bound
from trtconvert.custom_ops import creators, libraries
from trtconvert.diagnosis import contract, tensorrt_log
from trtconvert.errors import ConvertError, NoUsableGpuError
from trtconvert.manifest import IO, Manifest

if TYPE_CHECKING:
    from trtconvert.backend import types


@dataclass(frozen=True)
class PluginInPlan:
    """A plugin layer as the plan's own bytes describe it."""

    name: str
    version: str
    namespace: str
    attributes: dict[str, str]
    kernel: str


def plugins_in(plan: bytes) -> list[PluginInPlan]:
    """The trtconvert plugins in a plan, read from the launch descriptions that it carries. Needs no GPU.

    TensorRT serializes a layer more than once, so the same one may appear again.
    """
    found = []
    for match in re.finditer(rb"%s \d+\n.*?\nend\n" % launch.MAGIC.encode(), plan, re.DOTALL):
        lines = [line.split(" ", 2) for line in match[0].decode(errors="replace").splitlines()]
        values = {line[0]: line[1:] for line in lines if line[0] in ("op", "kernel")}
        attributes = {line[1]: line[2] for line in lines if line[0] == "attribute" and len(line) == 3}
        name, version, namespace = (*" ".join(values["op"]).split(" "), "")[:3]
        found.append(PluginInPlan(name, version, namespace, attributes, values["kernel"][0]))
    return found


def load_engine(plan: str | Path, backend: str = "auto") -> Engine:
    """Load a plan: register the creators that it asks for, check backend, version and GPU, make it ready to run.

    Works without the manifest too, when all plugins are trtconvert's. Raises ConvertError that says what is missing,
    NoUsableGpuError where no GPU can run it.
    """
    path = Path(plan)
    return load(path, *manifest.read_plan(path), backend)


def load(path: Path, data: bytes, described: Manifest | None, backend: str = "auto") -> Engine:
    """`load_engine` of a plan that has been read and checked; the manifest's paths are relative to path's folder."""
    gpu.require()
    chosen = select(described.backend if described and backend == "auto" else backend)
    if described and chosen.is_rtx and described.backend_version != chosen.version:
        raise ConvertError(
            f"the plan was built with TensorRT-RTX {described.backend_version}, this machine has {chosen.version}",
            where=str(path),
            fix=f"pip install tensorrt-rtx=={described.backend_version}, or build the plan again",
        )
    if described is not None:
        libraries.load_libraries(path.parent, described.plugin_files, chosen.name)
    register_creators(chosen, data, described)
    engine = Engine(chosen, data, path)
    if described:
        contract.check_loaded(described, engine.inputs, engine.outputs)
    return engine


def register_creators(backend: Backend, plan: bytes, described: Manifest | None) -> None:
    """Register a creator for each plugin that the manifest or the plan itself names; TensorRT's own are there then too."""
    creators.initialize(backend)
    wanted = {(p.name, p.version, p.namespace) for p in plugins_in(plan)}
    if described is not None:
        wanted |= {(p.name, p.version, p.namespace) for p in described.plugins if p.kind == "IPluginV3"}
    for name, version, namespace in sorted(wanted):
        adapter.ensure_creator(backend, name, version, namespace)


class Engine:
    """A loaded engine with one execution context. inputs and outputs: name, dtype and shape, -1 for dynamic."""

    def __init__(self, backend: Backend, plan: bytes, path: Path) -> None:
        from cuda.core import Device  # needs a driver

        self.backend, self.path = backend, path
        self.device = Device(0)
        self.device.set_current()
        self.logger, self.log = logger(backend)
        self.runtime: types.Runtime = backend.trt.Runtime(self.logger)
        self.engine: types.ICudaEngine = self.runtime.deserialize_cuda_engine(plan)
        if self.engine is None:
            raise load_error(self.log, backend, path)
        self.stream = self.device.create_stream()
        names = [self.engine.get_tensor_name(i) for i in range(self.engine.num_io_tensors)]
        tensors = [self._io(name) for name in names]
        is_input = backend.trt.TensorIOMode.INPUT
        self.inputs = [t for t in tensors if self.engine.get_tensor_mode(t.name) == is_input]
        self.outputs = [t for t in tensors if self.engine.get_tensor_mode(t.name) != is_input]
        self.context = self._new_context()

    def _io(self, name: str) -> IO:
        dtype = adapter.dtype_name(self.engine.get_tensor_dtype(name))
        return IO(name, dtype, [*adapter.sizes(self.engine.get_tensor_shape(name))])

    def bind(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, NDArray[Any]] | None = None) -> Bound:
        """Device buffers for these input shapes, with an execution context of their own, to be executed many times.

        values: of inputs that decide shapes; without, what the profile calls opt.

        Bindings of several shapes may live side by side, each with its CUDA graph. ConvertError as for `run`.
        """
        return Bound(self, self._new_context(final_kernels=True), shapes, values or {})

    def _new_context(self, final_kernels: bool = False) -> types.IExecutionContext:
        context: types.IExecutionContext | None
        if final_kernels and self.backend.is_rtx and any(-1 in (t.shape or ()) for t in self.inputs):
            # RTX runs a fallback kernel until one for the shape is compiled in the background; a graph would keep that.
            config: Any = self.engine.create_runtime_config()
            strategy = self.backend.trt.DynamicShapesKernelSpecializationStrategy.EAGER
            config.dynamic_shapes_kernel_specialization_strategy = strategy
            context = self.engine.create_execution_context(config)
        else:
            context = self.engine.create_execution_context()
        adapter.raise_failure()
        if context is None:
            raise load_error(self.log, self.backend, self.path)
        return context

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run once on host arrays and wait for the results. ConvertError for a missing name, wrong dtype or shape."""
        arrays = {name: np.asarray(array) for name, array in feeds.items()}
        bound = Bound(self, self.context, {name: array.shape for name, array in arrays.items()}, arrays)
        bound.write(arrays)
        bound.execute()
        return bound.read()

    def check_names(self, given: Iterable[str]) -> None:
        """ConvertError unless these are the names of the inputs."""
        if set(given) != {t.name for t in self.inputs}:
            raise ConvertError(f"the engine's inputs are {[t.name for t in self.inputs]}, got {sorted(given)}")


def load_error(log: Log, backend: Backend, path: Path) -> ConvertError:
    """Why TensorRT did not load the plan, as its log tells."""
    text = " ".join(log.errors)
    missing = re.search(r"Cannot find plugin: ([^,]+), version: ([^,]+), namespace: ?([^.\s]*)", text)
    if missing:
        name, version, namespace = missing.groups()
        return ConvertError(
            f"the plan needs plugin {name}, version {version}{f', namespace {namespace}' if namespace else ''}, "
            "and no creator of that name is registered",
            where=str(path),
            fix="load the plan with trtconvert.load_engine, or load the plugin's library first",
        )
    if "cannot run on this GPU" in text or "compute capability" in text.lower():
        here = gpu.require()
        return NoUsableGpuError(
            f"the engine cannot run on this GPU ({here.name}, {here.arch}): {log.cause()}",
            where=str(path),
            fix=f"build with --target {here.arch}, if {backend.title} supports it",
        )
    if re.search(r"[Vv]ersion tag does not match|magic ?[Tt]ag|serialization.*version|incompatible.*version", text):
        loaded = ", ".join(map(str, surroundings.loaded().values())) or "library unknown"
        return ConvertError(
            f"the plan was built by another TensorRT; running here: {backend.title} ({loaded})",
            where=str(path),
            fix="build it again with the TensorRT that runs it, or run it where it was built",
        )
    return ConvertError(f"{backend.title} cannot load the plan: {tensorrt_log.plain(log.cause())}", where=str(path))
