"""The GPU of this machine, asked from the CUDA driver; and kernels loaded and launched through it."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from trtconvert.errors import ConvertError, NoUsableGpuError
from trtconvert.launch import Launch, Launches, Shapes, Size, Tensor, Work, evaluate


@dataclass(frozen=True)
class Gpu:
    """name; arch as the compiler calls it ("sm_90"); driver: CUDA version that the driver serves, as (13, 0)."""

    name: str
    arch: str
    driver: tuple[int, int]


def _driver() -> Any:
    from cuda.bindings import driver  # only where a GPU is asked for

    return driver


def _call(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if int(status) != 0:
        driver = _driver()
        _, text = driver.cuGetErrorString(status)
        raise ConvertError(f"the CUDA driver reports: {(text or b'unknown error').decode()} ({status.name})")
    return values[0] if len(values) == 1 else tuple(values) if values else None


@lru_cache(maxsize=1)
def find() -> Gpu | str:
    """The first GPU, or the sentence why there is none."""
    try:
        if sys.platform == "linux":
            ctypes.CDLL("libcuda.so.1")  # the bindings take a while to load, and are no use without it
        driver = _driver()
        _call(driver.cuInit(0))
        if _call(driver.cuDeviceGetCount()) == 0:
            return "the CUDA driver finds no GPU"
        device = _call(driver.cuDeviceGet(0))
        version = _call(driver.cuDriverGetVersion())
        name = _call(driver.cuDeviceGetName(128, device)).split(b"\0")[0].decode()
        attribute = driver.CUdevice_attribute
        major = _call(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
        minor = _call(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
    except ConvertError as error:
        return str(error)
    except (ImportError, RuntimeError, OSError):
        return "no NVIDIA driver on this machine"
    return Gpu(name, f"sm_{major}{minor}", (version // 1000, version % 1000 // 10))


def current() -> Gpu | None:
    """The GPU, or None."""
    found = find()
    return found if isinstance(found, Gpu) else None


def require() -> Gpu:
    """The GPU; NoUsableGpuError where there is none."""
    found = find()
    if isinstance(found, str):
        raise NoUsableGpuError(found, fix="run this on a machine with an NVIDIA GPU and its driver")
    return found


def arch_number(arch: str) -> int:
    """89 for "sm_89" and "compute_89"."""
    return int(arch.split("_")[1])


def choose_image(images: Mapping[str, bytes], arch: str) -> str:
    """Of which architecture the image is to load on `arch`: its own cubin, one of the same major version and a lower minor
    one, else PTX."""
    number = arch_number(arch)
    fits = [
        a for a in images if a.startswith("sm_") and arch_number(a) // 10 == number // 10 and arch_number(a) <= number
    ]
    if fits:
        return max(fits, key=arch_number)
    ptx = [a for a in images if a.startswith("compute_") and arch_number(a) <= number]
    if ptx:
        return max(ptx, key=arch_number)
    raise ConvertError(
        f"the plan's kernels were compiled for {', '.join(sorted(images))}, this GPU is {arch}",
        fix=f"build the plan again with --target {arch}",
    )


@lru_cache(maxsize=256)
def load_kernel(image: bytes, name: str) -> Any:
    """A kernel, good in every CUDA context of this process. The image is loaded once."""
    driver = _driver()
    library = _call(driver.cuLibraryLoadData(image, None, None, 0, None, None, 0))
    return _call(driver.cuLibraryGetKernel(library, name.encode()))


_OVERLAP_ARCH = 90  # of the image: an older one does not wait by itself
_SHARED_UNASKED = 32 * 1024  # bytes; a kernel has 48 KB without asking, some of them perhaps by declaration


def allow_shared(kernel: Any, wanted: int) -> int:
    """Lets the kernel use so many bytes of dynamic shared memory, or as many as a block of this GPU can have if that is
    less; returns how many. What it may use already is not taken back: another launch may need it."""
    if wanted <= _SHARED_UNASKED:
        return wanted
    driver = _driver()
    device, attribute = _call(driver.cuCtxGetDevice()), driver.CUfunction_attribute
    optin = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    most = int(_call(driver.cuDeviceGetAttribute(optin, device)))
    static = int(_call(driver.cuKernelGetAttribute(attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel, device)))
    given, dynamic = min(wanted, most - static), attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    if given > int(_call(driver.cuKernelGetAttribute(dynamic, kernel, device))):
        _call(driver.cuKernelSetAttribute(dynamic, given, kernel, device))
    return given


Run: TypeAlias = Callable[[list[int], list[int], int, int], None]
"""Launches on input pointers, output pointers, the lent memory's pointer and a stream."""


def prepare(launches: Launches, images: Mapping[str, bytes], shapes: Shapes) -> Run | None:
    """Evaluate launches for these input shapes, in the current CUDA context. Returns a function that launches without
    allocating anything; None when all grids are empty, so that there is nothing to compute.
    """
    slots = {a.slot for one in launches for a in one.args if isinstance(a, Tensor)}
    ends = [1 + max((int(s.split()[1]) for s in slots if s.startswith(side)), default=-1) for side in ("in", "out")]
    offsets = [evaluate(a.offset, shapes) for one in launches for a in one.args if isinstance(a, Work)]
    pointers = (ctypes.c_uint64 * (sum(ends) + len(offsets)))()
    places = iter(range(sum(ends), len(pointers)))
    calls = [_prepare_one(launch, images, shapes, pointers, ends[0], places) for launch in launches]
    launched = [call for call in calls if call is not None]
    if not launched:
        return None
    return _launcher(launched, pointers, ends, offsets)


class _Call(NamedTuple):
    """A launch, ready: its array of arguments by address; overlaps: with the one before; alive: what the array and its
    entries lie in."""

    function: Any
    sizes: tuple[int, ...]  # grid, block and shared memory
    array: int
    overlaps: bool
    alive: object


def _prepare_one(
    launch: Launch,
    images: Mapping[str, bytes],
    shapes: Shapes,
    pointers: ctypes.Array[ctypes.c_uint64],
    outputs: int,
    works: Iterator[int],
) -> _Call | None:
    """pointers: inputs, then outputs (from index `outputs` on), then an entry for each Work."""
    sizes = tuple(evaluate(size, shapes) for size in (*launch.grid, *launch.block, launch.shared))
    first, addresses = ctypes.addressof(pointers), list[int]()
    values: list[ctypes.c_float | ctypes.c_longlong] = []
    for argument in launch.args:
        if isinstance(argument, Tensor):
            side, index = argument.slot.split()
            addresses.append(first + 8 * (int(index) + (outputs if side == "out" else 0)))
        elif isinstance(argument, Work):
            addresses.append(first + 8 * next(works))
        else:
            values.append(_number(argument, shapes))
            addresses.append(ctypes.addressof(values[-1]))
    if 0 in sizes[:3]:
        return None
    arch = choose_image(images, require().arch)
    kernel = load_kernel(images[arch], launch.kernel)
    sizes = (*sizes[:6], allow_shared(kernel, sizes[6]))
    array = (ctypes.c_void_p * len(addresses))(*addresses)
    function = _call(_driver().cuKernelGetFunction(kernel))
    overlaps = launch.overlaps and arch_number(arch) >= _OVERLAP_ARCH
    return _Call(function, sizes, ctypes.addressof(array), overlaps, (array, values))


def _number(argument: Size | float, shapes: Shapes) -> ctypes.c_float | ctypes.c_longlong:
    return ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_longlong(evaluate(argument, shapes))


def _overlapping(sizes: tuple[int, ...]) -> Any:
    """How cuLaunchKernelEx is told of a launch that may start before the one before it has ended."""
    driver = _driver()
    config, attribute = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
    config.gridDimX, config.gridDimY, config.gridDimZ = sizes[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = sizes[3:6]
    config.sharedMemBytes = sizes[6]
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config.attrs, config.numAttrs = [attribute], 1
    return config


def _launcher(
    calls: Sequence[_Call], pointers: ctypes.Array[ctypes.c_uint64], ends: Sequence[int], offsets: Sequence[int]
) -> Run:
    """The function that is called for each execution: it counts in microseconds."""
    launch_kernel, launch_overlapping = _driver().cuLaunchKernel, _driver().cuLaunchKernelEx
    inputs_end, outputs_end = ends[0], sum(ends)
    overlaps = [n > 0 and call.overlaps for n, call in enumerate(calls)]  # the first would not wait for all before it
    configs = [_overlapping(call.sizes) if over else None for call, over in zip(calls, overlaps, strict=True)]
    ready = [(config, call.function, *call.sizes, call.array) for config, call in zip(configs, calls, strict=True)]

    def run(inputs: list[int], outputs: list[int], work: int, stream: int, _alive: object = calls) -> None:
        pointers[:inputs_end] = [*inputs[:inputs_end]]
        pointers[inputs_end:outputs_end] = [*outputs[: outputs_end - inputs_end]]
        if offsets:
            pointers[outputs_end:] = [work + offset for offset in offsets]
        for config, function, x, y, z, block_x, block_y, block_z, shared, array in ready:
            if config is None:
                (status,) = launch_kernel(function, x, y, z, block_x, block_y, block_z, shared, stream, array, 0)
            else:
                config.hStream = stream
                (status,) = launch_overlapping(config, function, array, 0)
            if status:
                _call((status,))

    return run


def copy(device: int, host: int, size: int, stream: int, to_device: bool) -> None:
    """Copy `size` bytes between host and device memory, ordered on the stream."""
    driver = _driver()
    if to_device:
        _call(driver.cuMemcpyHtoDAsync(device, host, size, stream))
    else:
        _call(driver.cuMemcpyDtoHAsync(host, device, size, stream))


def move(target: int, source: int, size: int, stream: int) -> None:
    """Copy `size` bytes within device memory, ordered on the stream."""
    if size:
        _call(_driver().cuMemcpyDtoDAsync(target, source, size, stream))


def sync(stream: int) -> None:
    """Wait until all that was put on the stream is done."""
    _call(_driver().cuStreamSynchronize(stream))


def wait(stream: int, other: int) -> None:
    """What is put on `stream` from now on waits for what is on the other stream now; the host does not."""
    if stream != other:
        Mark(other).hold(stream)


def clear(device: int, size: int, stream: int) -> None:
    """Set `size` bytes of device memory to zero, ordered on the stream."""
    fill(device, 0, size, stream)


def fill(device: int, value: int, size: int, stream: int) -> None:
    """Set `size` bytes of device memory to that value, ordered on the stream."""
    if size:
        _call(_driver().cuMemsetD8Async(device, value, size, stream))


def capture(stream: int, work: Callable[[], object]) -> Callable[[], None]:
    """Capture what `work` puts on the stream in a CUDA graph. Returns the function that launches the graph there.

    Captured for this thread only: what others do meanwhile is no fault. Raises what `work` raises, and ConvertError where
    it did what cannot be captured.
    """
    driver = _driver()
    handle = driver.CUstream(stream)
    _call(driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    try:
        work()
    except BaseException:
        driver.cuStreamEndCapture(handle)  # so that the stream can be used again; its graph is no good
        raise
    graph = _call(driver.cuStreamEndCapture(handle))
    try:
        ready = _call(driver.cuGraphInstantiate(graph, 0))
    finally:
        driver.cuGraphDestroy(graph)

    def launch() -> None:
        (status,) = driver.cuGraphLaunch(ready, handle)
        if status:
            _call((status,))

    weakref.finalize(launch, driver.cuGraphExecDestroy, ready)
    return launch


class Mark:
    """A point in a stream's work: other streams wait for it, the host asks whether it has passed."""

    def __init__(self, stream: int) -> None:
        driver = _driver()
        flags = int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        self._event = _call(driver.cuEventCreate(flags))
        weakref.finalize(self, driver.cuEventDestroy, self._event)
        _call(driver.cuEventRecord(self._event, stream))

    def hold(self, stream: int) -> None:
        """Let what is put on the stream from now on wait for this point."""
        _call(_driver().cuStreamWaitEvent(stream, self._event, 0))

    def sync(self) -> None:
        """Let the host wait for this point."""
        _call(_driver().cuEventSynchronize(self._event))

    @property
    def passed(self) -> bool:
        """Whether the work before it is done."""
        driver = _driver()
        (status,) = driver.cuEventQuery(self._event)
        if status == driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        _call((status,))
        return True


class Event:
    """A point in a stream's work at which the device takes the time."""

    def __init__(self) -> None:
        driver = _driver()
        self._event, self._record = _call(driver.cuEventCreate(0)), driver.cuEventRecord
        weakref.finalize(self, driver.cuEventDestroy, self._event)

    def record(self, stream: int) -> None:
        """Put the event on the stream."""
        _call(self._record(self._event, stream))

    def microseconds_since(self, earlier: Event) -> float:
        """Time on the device between both, which must have passed: wait for the stream before."""
        return float(_call(_driver().cuEventElapsedTime(earlier._event, self._event))) * 1000
