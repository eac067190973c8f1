"""Arrays as they come and go: numpy's, and those of torch, cupy and others on the GPU, which are never copied to look at them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtconvert import gpu
from trtconvert.errors import ConvertError
from trtconvert.runtime import dlpack

_MANAGED = 13  # DLDeviceType; the host sees that memory too


def on_device(array: Any) -> bool:
    """Whether the array says that it lies in device memory."""
    if isinstance(array, np.ndarray):
        return False
    if hasattr(array, "__dlpack_device__"):
        return array.__dlpack_device__()[0] in (dlpack.CUDA, _MANAGED)
    return hasattr(array, "__cuda_array_interface__")


def on_host(name: str, array: Any) -> NDArray[Any]:
    """The array as numpy's; ConvertError if it is none."""
    try:
        found = np.asarray(array)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:  # torch has no numpy array of bfloat16, nor of what needs a gradient
        raise ConvertError(f"input {name!r} is no array that numpy takes: {error}", fix="give a numpy array") from error
    if found.dtype == object:
        raise ConvertError(f"input {name!r} is no array: {type(array).__name__}", fix="give an array of numbers")
    return found


class View:
    """An input where it lies on the device, alive as long as the view. Work put on `stream` from now on sees its data."""

    def __init__(self, name: str, array: Any, stream: int, device: int = 0) -> None:
        from cuda.core.utils import StridedMemoryView  # loads CUDA

        try:
            self._view: Any = StridedMemoryView.from_any_interface(_detached(array), stream_ptr=stream or 1)
            self.dtype: np.dtype[Any] = np.dtype(self._view.dtype)
        except (BufferError, TypeError, ValueError, NotImplementedError, RuntimeError) as error:
            raise ConvertError(
                f"input {name!r} cannot be taken from the GPU: {error}", fix="give a numpy array"
            ) from error
        self.handle, self.shape = int(self._view.ptr), tuple(self._view.shape)
        self.size = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        if self._view.device_id != device and self.size:
            raise ConvertError(
                f"input {name!r} lies on GPU {self._view.device_id}, the engine on GPU {device}",
                fix=f"move it to GPU {device}",
            )
        if not _dense(self.shape, self._view.strides):
            raise ConvertError(
                f"input {name!r} is not contiguous: shape {list(self.shape)}, strides {list(self._view.strides)}",
                fix="give a contiguous array, in torch tensor.contiguous(), in cupy ascontiguousarray",
            )

    def copied(self, memory: Any) -> View:
        """The same, in other memory; what it was copied from stays alive."""
        other: View = object.__new__(View)
        other._view, other.handle = (self._view, memory), int(memory.handle)
        other.dtype, other.shape, other.size = self.dtype, self.shape, self.size
        return other


def _detached(array: Any) -> Any:
    """torch exports no tensor that requires a gradient."""
    return array.detach() if getattr(array, "requires_grad", False) else array


def _dense(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Whether elements lie row by row, without gaps; the strides of axes of size 1 do not count."""
    if strides is None or 0 in shape:
        return True
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


class DeviceArray:
    """A result that lies on the GPU, dense and row-major: `torch.from_dlpack(array)`, `cupy.from_dlpack(array)` and whatever
    reads `__cuda_array_interface__` take it without a copy, ordered behind the execution; `numpy()` waits and copies.

    It keeps its memory for its readers. What they put on their stream comes before the memory is used again. stream:
    cuda.core's, on which it was made.
    """

    def __init__(self, memory: Any, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Any, device: int = 0) -> None:
        self.memory, self.shape, self.dtype, self.device = memory, shape, dtype, device
        self._stream, self.stream = stream, int(stream.handle)
        self._readers: set[int] = set()

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype.name}, device={self.device})"

    @property
    def address(self) -> int:
        """Where it begins in device memory."""
        return int(self.memory.handle)

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def numpy(self) -> NDArray[Any]:
        """A copy in host memory."""
        array = np.empty(self.shape, self.dtype)
        if array.nbytes:
            gpu.copy(self.address, array.ctypes.data, array.nbytes, self.stream, to_device=False)
        gpu.sync(self.stream)
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("the array lies on the GPU: numpy gets a copy")
        return self.numpy().astype(dtype or self.dtype, copy=False)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
        **_wishes: Any,
    ) -> Any:
        """stream: the reader's, 1 or None for the legacy default stream, -1 if it sees to the order itself. BufferError where a
        copy or another device is asked for."""
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("the array is handed over on its GPU, without a copy; numpy() gives one in host memory")
        if stream != -1:
            self._order(stream or 1)
        return dlpack.capsule(self, self.address, self.shape, self.dtype, self.device)

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]:
        """Version 3. numpy has no type string for bfloat16: raw memory of two bytes an element."""
        data = (self.address if self.nbytes else 0, False)
        typestr = "<V2" if self.dtype.name == "bfloat16" else self.dtype.str
        return {"shape": self.shape, "typestr": typestr, "data": data, "version": 3, "stream": self.stream or 1}

    def _order(self, reader: int) -> None:
        if reader != (self.stream or 1):
            gpu.wait(reader, self.stream)
            self._readers.add(reader)

    def __del__(self) -> None:
        # The memory is freed in the order of its own stream; a reader's may still be at work with it.
        for reader in getattr(self, "_readers", ()):
            with suppress(ConvertError):  # the reader's stream is gone
                gpu.wait(self.stream, reader)
