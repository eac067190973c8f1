"""An engine's buffers for one set of input shapes: written, executed, read, and executions captured in a CUDA graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trtconvert import adapter, gpu
from trtconvert.errors import ConvertError
from trtconvert.model import numpy_dtype

if TYPE_CHECKING:
    from trtconvert.backend import types
    from trtconvert.engine import Engine
    from trtconvert.manifest import IO
    from trtconvert.runtime.arrays import View


@dataclass(frozen=True)
class HostMemory:
    """Host memory where TensorRT wants a tensor's values there: it computes shapes with them."""

    array: NDArray[np.uint8]

    @property
    def handle(self) -> int:
        return int(self.array.ctypes.data)


@dataclass(eq=False)
class Buffer:
    """Memory of one tensor, `size` bytes, on the device unless it is HostMemory. shape: None until an execution has told it,
    where it depends on the data."""

    memory: Any
    size: int
    shape: tuple[int, ...] | None
    dtype: np.dtype[Any]

    @property
    def address(self) -> int:
        return int(self.memory.handle)

    @property
    def values(self) -> NDArray[Any] | None:
        """The tensor itself where it lies in host memory."""
        if not isinstance(self.memory, HostMemory):
            return None
        return self.memory.array[: self.size].view(self.dtype).reshape(self.shape or ())


@dataclass(frozen=True)
class Graph:
    """A CUDA graph of `executions` in a row of what was bound. launch() puts it on the engine's stream and does not wait.

    A replay runs no Python. It reads what the buffers hold when it runs, so `bound.write` comes before and `bound.read` after.
    """

    bound: Bound
    executions: int
    launch: Callable[[], None]


class Bound:
    """Buffers for an engine's inputs and outputs at these input shapes, allocated once; inputs hold zeros until written, shape
    tensors their `values`, or those that the profile calls opt. Other values of these make other outputs, allocated anew.

    shapes: input name to dimensions. values: input name to array; those of shape tensors count, since only with them can
    TensorRT tell the outputs' shapes. stream: cuda.core's, the engine's unless given. views: inputs that are read where they lie
    on the device. allocators: those that the context has from earlier bindings, by output; it calls them as long as it lives. The
    context serves this binding alone as long as it is in use. ConvertError for a missing name, or a dtype, shape or value that
    the engine does not take.
    """

    def __init__(
        self,
        engine: Engine,
        context: types.IExecutionContext,
        shapes: Mapping[str, Sequence[int]],
        values: Mapping[str, NDArray[Any]],
        stream: Any = None,
        views: Mapping[str, View] | None = None,
        allocators: dict[str, Any] | None = None,
    ) -> None:
        engine.check_names(shapes)
        self.engine, self.context, self._stream = engine, context, stream or engine.stream
        self.stream, self._views = int(self._stream.handle), views or {}
        self.inputs = {t.name: self._input(t, tuple(shapes[t.name]), values.get(t.name)) for t in engine.inputs}
        self._allocators: dict[str, Any] = {} if allocators is None else allocators  # TensorRT holds none of them alive
        self._captured = False
        self.outputs = {t.name: self._output(t) for t in engine.outputs}

    def _input(self, tensor: IO, shape: tuple[int, ...], given: NDArray[Any] | None) -> Buffer:
        if not self.context.set_input_shape(tensor.name, shape):
            self.engine.log.take_cause()  # it names no input
            raise ConvertError(
                f"input {tensor.name!r} has shape {list(shape)}, outside the engine's profile {tensor.shape}",
                fix="build with a --shape range that holds it",
            )
        if view := self._views.get(tensor.name):
            return self._placed(tensor.name, Buffer(view, view.size, shape, numpy_dtype(tensor.dtype)))
        buffer = self._allocate(tensor, shape)
        if buffer.values is not None:
            opt = self.engine.engine.get_tensor_profile_values(0, tensor.name)[1]
            buffer.values[...] = np.reshape(opt, shape) if given is None else self._allowed(tensor.name, given)
        else:
            gpu.clear(buffer.address, buffer.size, self.stream)
        return buffer

    def _output(self, tensor: IO) -> Buffer:
        asked: Any = self.engine.engine
        if source := asked.get_aliased_input_tensor(tensor.name):  # TensorRT writes over the input
            self.context.set_tensor_address(tensor.name, self.inputs[source].address)
            return self.inputs[source]
        shape = tuple(adapter.sizes(self.context.get_tensor_shape(tensor.name)))
        if -1 not in shape:
            return self._allocate(tensor, shape)
        largest = self.context.get_max_output_size(tensor.name)
        if largest < 0:
            raise ConvertError(f"TensorRT gives no upper bound for the size of output {tensor.name!r}")
        buffer = self._allocate(tensor, None, largest)
        if tensor.name not in self._allocators:
            allocator = _allocator_class(self.engine.backend.trt)()
            if not self.context.set_output_allocator(tensor.name, allocator):
                raise ConvertError(
                    f"TensorRT takes no output allocator for {tensor.name!r}: {self.engine.log.take_cause()}"
                )
            self._allocators[tensor.name] = allocator
        self._allocators[tensor.name].output = weakref.ref(buffer)
        return buffer

    def _allocate(self, tensor: IO, shape: tuple[int, ...] | None, size: int = 0) -> Buffer:
        dtype = numpy_dtype(tensor.dtype)
        if shape is not None:
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        memory: Any
        if self.engine.engine.get_tensor_location(tensor.name) == self.engine.backend.trt.TensorLocation.HOST:
            memory = HostMemory(np.zeros(max(size, 8), np.uint8))
        else:
            memory = self.engine.device.allocate(max(size, 1), stream=self._stream)
        return self._placed(tensor.name, Buffer(memory, size, shape, dtype))

    def _placed(self, name: str, buffer: Buffer) -> Buffer:
        self.context.set_tensor_address(name, buffer.address)
        return buffer

    def check_dtype(self, name: str, got: np.dtype[Any]) -> None:
        """ConvertError unless the input is of that dtype."""
        if got != self.inputs[name].dtype:
            raise ConvertError(f"input {name!r} is {got}, the engine takes {self.inputs[name].dtype}")

    def write(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Copy host arrays into the inputs' buffers, ordered on the stream. ConvertError for a wrong name, dtype or shape."""
        self.engine.check_names(feeds)
        self.put(feeds)

    def put(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Write these inputs, and leave the others as they are."""
        for name in feeds:
            buffer = self.inputs[name]
            array = np.asarray(feeds[name], order="C")  # the copy takes memory as it lies
            self.check_dtype(name, array.dtype)
            if feeds[name].shape != buffer.shape:
                raise ConvertError(
                    f"input {name!r} has shape {list(array.shape)}, bound was {list(buffer.shape or ())}"
                )
            if buffer.values is None and array.nbytes:
                gpu.copy(buffer.address, array.ctypes.data, array.nbytes, self.stream, to_device=True)
        self._write_values(feeds)

    def _write_values(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Shape tensors: TensorRT reads them on the host when an execution is queued."""
        held = {name: values for name in feeds if (values := self.inputs[name].values) is not None}
        changed = {name: feeds[name] for name, values in held.items() if not np.array_equal(values, feeds[name])}
        if not changed:
            return
        if self._captured:
            raise ConvertError(
                f"the values of {', '.join(map(repr, changed))} are part of the CUDA graph that was captured",
                where=str(self.engine.path),
                fix="bind again, write, then capture",
            )
        allowed = {name: self._allowed(name, array) for name, array in changed.items()}
        self.sync()
        for name, array in allowed.items():
            held[name][...] = array
        self.outputs = {t.name: self._output(t) for t in self.engine.outputs}

    def _allowed(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        low, _, high = np.array(self.engine.engine.get_tensor_profile_values(0, name))
        if ((values.ravel() < low) | (values.ravel() > high)).any():
            raise ConvertError(
                f"input {name!r} is {values.tolist()}, the engine takes values from {low.tolist()} to {high.tolist()}",
                where=str(self.engine.path),
                fix="build with a --value range that holds it",
            )
        return values

    def read(self) -> dict[str, NDArray[Any]]:
        """Wait for the stream and copy the outputs to host arrays."""
        arrays = {}
        for name, buffer in self.outputs.items():
            if buffer.shape is None:
                raise ConvertError(f"the shape of output {name!r} depends on the data, and nothing was executed yet")
            if buffer.values is not None:
                self.sync()
                arrays[name] = buffer.values.copy()
                continue
            arrays[name] = array = np.empty(buffer.shape, buffer.dtype)
            if array.nbytes:
                gpu.copy(buffer.address, array.ctypes.data, array.nbytes, self.stream, to_device=False)
        self.sync()
        return arrays

    def execute(self) -> None:
        """Put one execution on the engine's stream, without waiting for it."""
        if not self.context.execute_async_v3(self.stream):
            adapter.raise_failure()
            raise ConvertError(f"the engine failed: {self.engine.log.take_cause()}", where=str(self.engine.path))

    def sync(self) -> None:
        """Wait until all that was put on the stream is done."""
        self._stream.sync()

    def capture(self, executions: int = 1) -> Graph:
        """Capture executions in a CUDA graph, after one outside of it, in which TensorRT sets up what it needs.

        ConvertError where that is impossible: an output's shape depends on the data, or a layer makes the host wait.
        """
        if self._allocators:
            raise ConvertError(
                f"no CUDA graph of this engine: the shape of output {next(iter(self._allocators))!r} depends on the data, "
                "and a replay tells the host nothing",
                where=str(self.engine.path),
            )
        self.execute()
        self.sync()

        def work() -> None:
            for _ in range(executions):
                self.execute()

        try:
            launch = gpu.capture(self.stream, work)
            self._captured = True
        except ConvertError as error:
            raise ConvertError(
                f"no CUDA graph of this engine: {error.what}",
                where=str(self.engine.path),
                fix="run it without a graph",
            ) from error
        return Graph(self, executions, launch)


@lru_cache
def _allocator_class(trt: Any) -> Any:
    """TensorRT's way to ask for the memory of an output of unknown shape, and to tell the shape.

    It gets the buffer of the size that it gave as upper bound; the reference to that is weak, since an allocator lives as long
    as its context.
    """

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        output: weakref.ref[Buffer]

        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)

        def reallocate_output(self, _name: str, _memory: int, size: int, _alignment: int) -> int:
            buffer = self.output()
            return buffer.address if buffer is not None and size <= max(buffer.size, 1) else 0

        def reallocate_output_async(self, name: str, memory: int, size: int, alignment: int, _stream: int) -> int:
            return self.reallocate_output(name, memory, size, alignment)

        def notify_shape(self, _name: str, shape: Any) -> None:
            buffer = self.output()
            if buffer is not None:
                buffer.shape = tuple(adapter.sizes(shape))

    return Allocator
