"""An execution context with its stream and what it keeps between runs: buffers, CUDA graphs by shape, inputs still being read."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trtconvert import gpu
from trtconvert.bound import Bound, Graph
from trtconvert.errors import ConvertError
from trtconvert.runtime.arrays import DeviceArray, View, on_device, on_host

if TYPE_CHECKING:
    from trtconvert.engine import Engine

ALIGNMENT = 256  # bytes, of the addresses that TensorRT takes; a slice of a tensor may begin anywhere


class Context:
    """Runs an engine, for one thread at a time; contexts of one engine run beside each other.

    graphs: for how many sets of shapes a CUDA graph is kept, the one used longest ago going first. Inputs that lie on the GPU
    are then copied to the graph's own, and results from them. graph_fault: why there is no graph, where that is impossible.
    """

    def __init__(self, engine: Engine, graphs: int = 0) -> None:
        engine.device.set_current()
        self.engine, self.graphs, self.graph_fault = engine, graphs, ""
        self.stream: Any = engine.device.create_stream()
        self._context = engine.new_context()
        self._allocators: dict[str, Any] = {}  # of outputs whose shape depends on the data
        self._last: tuple[Hashable, Bound] | None = None
        self._captured: OrderedDict[Hashable, tuple[Bound, Graph | None]] = OrderedDict()
        self._streams: dict[int, Any] = {}
        self._latest = self.stream  # on which the context ran last
        self._held: deque[tuple[gpu.Mark, list[Any]]] = deque()  # what runs that may not be over read, and their ends

    def __del__(self) -> None:
        with suppress(ConvertError, ImportError):  # at the end of the process
            self._finish()

    def _finish(self) -> None:
        """Wait for what the context still does: its memory is not to be freed before."""
        while getattr(self, "_held", ()):
            self._held.popleft()[0].sync()

    def run(self, feeds: Mapping[str, Any], stream: Any = None) -> dict[str, Any]:
        """Run once. Arrays on the host give numpy arrays, when all is done. As soon as an input lies on the GPU, the results are
        DeviceArrays, ordered on the stream, and nothing waits.

        stream: the caller's, of torch, cupy, cuda.core or a handle; without, the context's own, which waits for what made the
        inputs: then they are not to be written over before a result was read. ConvertError for a missing name, wrong dtype or
        shape.
        """
        self.engine.check_names(feeds)
        self.engine.device.set_current()
        used = self._use(stream)
        while self._held and self._held[0][0].passed:
            self._held.popleft()
        handle = int(used.handle)
        views = {name: View(name, array, handle) for name, array in feeds.items() if on_device(array)}
        arrays = {name: on_host(name, array) for name, array in feeds.items() if name not in views}
        from_host = not views
        for name in self.engine.host_inputs & views.keys():  # TensorRT computes shapes with it, on the host
            arrays[name] = _fetched(views.pop(name), handle)
        if from_host:
            bound, graph = self._ready(arrays, None, used)
            bound.put(arrays)
            self._execute(bound, graph)
            return dict(bound.read())
        results = self._run_on_device(arrays, views, used)
        # Host memory too: what is pinned is copied while the host goes on.
        self._held.append((gpu.Mark(handle), [*views.values(), *arrays.values()]))
        return results

    def _use(self, stream: Any) -> Any:
        """The stream to run on, behind what the context still does on another."""
        used = self.stream
        if stream is not None:
            handle = stream_handle(stream) or 1  # the legacy default stream by its name
            if handle not in self._streams:
                from cuda.core import Stream  # loads CUDA

                self._streams[handle] = Stream.from_handle(handle)
            used = self._streams[handle]
        if used is not self._latest and self._held:
            self._held[-1][0].hold(int(used.handle))
        self._latest = used
        return used

    def _run_on_device(self, arrays: dict[str, NDArray[Any]], views: dict[str, View], used: Any) -> dict[str, Any]:
        handle = int(used.handle)
        if not self.graphs:
            views = {name: _aligned(self.engine, view, used) for name, view in views.items()}
        bound, graph = self._ready(arrays, views, used)
        bound.put(arrays)
        for name, view in views.items():
            bound.check_dtype(name, view.dtype)
            if (target := bound.inputs[name]).memory is not view:
                gpu.move(target.address, view.handle, view.size, handle)
        self._execute(bound, graph)
        results: dict[str, Any] = {}
        for name, buffer in bound.outputs.items():
            if buffer.values is not None:
                bound.sync()
                results[name] = buffer.values.copy()
                continue
            memory, shape = buffer.memory, buffer.shape or ()
            if self.graphs:  # the next run writes over the bound ones
                size = int(np.prod(shape, dtype=np.int64)) * buffer.dtype.itemsize
                memory = self.engine.device.allocate(max(size, 1), stream=used)
                gpu.move(int(memory.handle), buffer.address, size, handle)
            results[name] = DeviceArray(memory, shape, buffer.dtype, used)
        return results

    def _execute(self, bound: Bound, graph: Graph | None) -> None:
        if graph is None:
            bound.execute()
        else:
            graph.launch()

    def _ready(
        self, arrays: dict[str, NDArray[Any]], views: dict[str, View] | None, used: Any
    ) -> tuple[Bound, Graph | None]:
        """Buffers for these shapes, and the graph if there is one: kept from before or new. Results on the GPU, for which there
        are views, get new ones each time."""
        shapes: dict[str, Any] = {name: array.shape for name, array in arrays.items()}
        shapes |= {name: view.shape for name, view in (views or {}).items()}
        key: Hashable = (int(used.handle), *sorted(shapes.items()))
        if self.graphs:
            decisive = sorted((name, arrays[name].tobytes()) for name in self.engine.host_inputs)
            return self._captured_for((key, *decisive), shapes, arrays, used)
        if views is not None:
            self._last = None
            return Bound(self.engine, self._context, shapes, arrays, used, views, self._allocators), None
        if self._last is None or self._last[0] != key:
            self._last = None  # its memory is free before the new one is asked for
            self._last = key, Bound(self.engine, self._context, shapes, arrays, used, allocators=self._allocators)
        return self._last[1], None

    def _captured_for(
        self, key: Hashable, shapes: dict[str, Any], arrays: dict[str, NDArray[Any]], used: Any
    ) -> tuple[Bound, Graph | None]:
        if key in self._captured:
            self._captured.move_to_end(key)
            return self._captured[key]
        if len(self._captured) >= self.graphs:
            self._finish()
            self._captured.popitem(last=False)
        bound, graph = Bound(self.engine, self.engine.new_context(final_kernels=True), shapes, arrays, used), None
        try:
            graph = bound.capture()
        except ConvertError as error:
            self.graph_fault = error.what
        self._captured[key] = bound, graph
        return bound, graph


def stream_handle(stream: Any) -> int:
    """The handle of a CUDA stream: an int, or what has __cuda_stream__ (cuda.core), cuda_stream (torch), ptr (cupy) or handle."""
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for attribute in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    raise ConvertError(
        f"{type(stream).__name__} is no CUDA stream", fix="give a stream of torch, cupy or cuda.core, or its handle"
    )


def _fetched(view: View, stream: int) -> NDArray[Any]:
    array = np.empty(view.shape, view.dtype)
    if array.nbytes:
        gpu.copy(view.handle, array.ctypes.data, array.nbytes, stream, to_device=False)
    gpu.sync(stream)
    return array


def _aligned(engine: Engine, view: View, used: Any) -> View:
    """The view itself, or a copy of what does not begin where TensorRT wants it."""
    if view.handle % ALIGNMENT == 0 or not view.size:
        return view
    memory = engine.device.allocate(view.size, stream=used)
    gpu.move(int(memory.handle), view.handle, view.size, int(used.handle))
    return view.copied(memory)
