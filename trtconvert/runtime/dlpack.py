"""DLPack capsules of device memory, for `from_dlpack` of torch, cupy, jax and numpy.

cuda.core's StridedMemoryView reads every array that comes in; it makes no capsule of bfloat16, hence this. The structures are
those of dlpack.h, version 0.8 (DLManagedTensor), which all readers still take.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

CPU, CUDA = 1, 2  # DLDeviceType
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # DLDataTypeCode by numpy's kind
_BFLOAT = 4
_NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_alive: dict[int, tuple[Any, ...]] = {}  # by address of the _Managed: what its memory lies in
_api = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", _api))
_is = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))


def _delete(managed: int) -> None:
    """The reader has done with the memory; it may call this from any thread."""
    _alive.pop(managed, None)


def _drop(capsule: int) -> None:
    """The capsule goes; one that was read has another name, and its reader calls _delete."""
    if _is(capsule, _NAME):
        _alive.pop(_pointer(capsule, _NAME), None)


_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete)
_destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_drop)


def capsule(owner: object, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: int = 0) -> Any:
    """A capsule of dense row-major memory on that CUDA device, of which it keeps `owner` alive. device: -1 for host memory."""
    sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    steps = (ctypes.c_int64 * max(len(shape), 1))(
        *(int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape)))
    )
    code = _BFLOAT if dtype.name == "bfloat16" else _CODES[dtype.kind]
    place = (CPU, 0) if device < 0 else (CUDA, device)
    empty = 0 in shape
    tensor = _Tensor(None if empty else address, *place, len(shape), code, 8 * dtype.itemsize, 1, sizes, steps, 0)
    managed = _Managed(tensor, None, ctypes.cast(_deleter, ctypes.c_void_p))
    at = ctypes.addressof(managed)
    _alive[at] = (owner, managed, sizes, steps)
    return _new(at, _NAME, ctypes.cast(_destructor, ctypes.c_void_p))
