"""The GPU of this machine, asked from the CUDA driver; and kernels loaded and launched through it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from trtconvert.errors import ConvertError, NoUsableGpuError
from trtconvert.launch import Launch, Launches, Shapes, Tensor, Work, evaluate


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


def choose_image(images: Mapping[str, bytes], arch: str) -> bytes:
    """The image to load on `arch`: its own cubin, one of the same major version and a lower minor one, else PTX."""
    number = arch_number(arch)
    fits = [
        a for a in images if a.startswith("sm_") and arch_number(a) // 10 == number // 10 and arch_number(a) <= number
    ]
    if fits:
        return images[max(fits, key=arch_number)]
    ptx = [a for a in images if a.startswith("compute_") and arch_number(a) <= number]
    if ptx:
        return images[max(ptx, key=arch_number)]
    raise ConvertError(
        f"the plan's kernels were compiled for {', '.join(sorted(images))}, this GPU is {arch}",
        fix=f"build the plan again with --target {arch}",
    )


@lru_cache(maxsize=256)
def load_kernel(image: bytes, name: str) -> Any:
    """A kernel handle, good in every CUDA context of this process. The image is loaded once."""
    driver = _driver()
    library = _call(driver.cuLibraryLoadData(image, None, None, 0, None, None, 0))
    return driver.CUfunction(int(_call(driver.cuLibraryGetKernel(library, name.encode()))))


_SHARED_UNASKED = 32 * 1024  # bytes; a kernel has 48 KB without asking, some of them perhaps by declaration


def allow_shared(kernel: Any, wanted: int) -> int:
    """Lets the kernel use so many bytes of dynamic shared memory, or as many as a block of this GPU can have if that is
    less; returns how many."""
    if wanted <= _SHARED_UNASKED:
        return wanted
    driver = _driver()
    handle, device, attribute = (
        driver.CUkernel(int(kernel)),
        _call(driver.cuCtxGetDevice()),
        driver.CUfunction_attribute,
    )
    most = _call(
        driver.cuDeviceGetAttribute(
            driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device
        )
    )
    static = _call(driver.cuKernelGetAttribute(attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, handle, device))
    given = min(wanted, int(most) - int(static))
    _call(driver.cuKernelSetAttribute(attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, given, handle, device))
    return given


Run: TypeAlias = Callable[[Sequence[int], Sequence[int], int, int], None]
"""Launches on input pointers, output pointers, the lent memory's pointer and a stream."""


def prepare(launches: Launches, images: Mapping[str, bytes], shapes: Shapes) -> Run | None:
    """Evaluate launches for these input shapes. Returns a function that launches without allocating anything; None when
    all grids are empty, so that there is nothing to compute.
    """
    slots = _Slots([], [], [])
    calls = [call for launch in launches if (call := _prepare_one(launch, images, shapes, slots)) is not None]
    if not calls:
        return None
    launch_kernel = _driver().cuLaunchKernel

    def run(inputs: Sequence[int], outputs: Sequence[int], work: int, stream: int) -> None:
        for pointer, index in slots.inputs:
            pointer.value = inputs[index]
        for pointer, index in slots.outputs:
            pointer.value = outputs[index]
        for pointer, offset in slots.work:
            pointer.value = work + offset
        for kernel, sizes, array, _ in calls:
            (status,) = launch_kernel(kernel, *sizes, stream, array, 0)
            if status:
                _call((status,))

    return run


class _Slots(NamedTuple):
    """Pointer arguments that are filled in before each launch: each with the tensor's index, or the offset in bytes."""

    inputs: list[tuple[ctypes.c_void_p, int]]
    outputs: list[tuple[ctypes.c_void_p, int]]
    work: list[tuple[ctypes.c_void_p, int]]


def _prepare_one(
    launch: Launch, images: Mapping[str, bytes], shapes: Shapes, slots: _Slots
) -> tuple[Any, tuple[int, ...], int, Any] | None:
    """Kernel; grid, block and shared memory; address of the array of arguments, and what it points to, kept alive."""
    sizes = tuple(evaluate(size, shapes) for size in (*launch.grid, *launch.block, launch.shared))
    if 0 in sizes[:3]:
        return None
    kernel = load_kernel(choose_image(images, require().arch), launch.kernel)
    sizes = (*sizes[:6], allow_shared(kernel, sizes[6]))
    values: list[Any] = []
    for argument in launch.args:
        if isinstance(argument, Tensor):
            side, index = argument.slot.split()
            values.append(ctypes.c_void_p())
            (slots.inputs if side == "in" else slots.outputs).append((values[-1], int(index)))
        elif isinstance(argument, Work):
            values.append(ctypes.c_void_p())
            slots.work.append((values[-1], evaluate(argument.offset, shapes)))
        elif isinstance(argument, float):
            values.append(ctypes.c_float(argument))
        else:
            values.append(ctypes.c_longlong(evaluate(argument, shapes)))
    addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    return kernel, sizes, ctypes.addressof(addresses), (addresses, values)


def copy(device: int, host: int, size: int, stream: int, to_device: bool) -> None:
    """Copy `size` bytes between host and device memory, ordered on the stream."""
    driver = _driver()
    if to_device:
        _call(driver.cuMemcpyHtoDAsync(device, host, size, stream))
    else:
        _call(driver.cuMemcpyDtoHAsync(host, device, size, stream))
