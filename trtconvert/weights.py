"""Weights that lie in files beside the model: checked, and copied piece by piece, never loaded as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from onnx import TensorProto, helper
from onnx.external_data_helper import ExternalDataInfo, set_external_data

from trtconvert.errors import ConvertError


def check(tensors: Iterable[TensorProto], folder: Path) -> None:
    """Every external tensor must lie inside the model's folder, exist and be long enough."""
    root = folder.resolve()
    for tensor in tensors:
        try:
            info = ExternalDataInfo(tensor)
            if "\0" in info.location or (info.offset or 0) < 0 or (info.length or 0) < 0:
                raise ValueError(f"location {info.location!r}, offset {info.offset}, length {info.length}")
        except (ValueError, TypeError) as error:
            raise ConvertError(
                f"tensor {tensor.name!r} has a malformed reference to external data: {error}",
                where=str(folder),
                fix="export the model again",
            ) from error
        file = (root / info.location).resolve()
        if not file.is_relative_to(root) or Path(info.location).is_absolute():
            raise ConvertError(
                f"tensor {tensor.name!r} keeps its data in {info.location!r}, outside the model's folder",
                where=str(folder),
                fix="move the data file beside the model and export with a relative location",
            )
        if not file.is_file():
            raise ConvertError(
                f"tensor {tensor.name!r} keeps its data in {info.location!r}, which is missing",
                where=str(folder),
                fix="copy the data file to that place: it belongs beside the .onnx file",
            )
        if info.length and size(tensor) not in (0, info.length):
            raise ConvertError(
                f"tensor {tensor.name!r} has {info.length} bytes in {info.location!r}, its type and shape take {size(tensor)}",
                where=str(folder),
                fix="export the model again",
            )
        end = (info.offset or 0) + (info.length or size(tensor))
        if file.stat().st_size < end:
            raise ConvertError(
                f"the data file {info.location!r} is cut short: tensor {tensor.name!r} needs {end} bytes, "
                f"the file has {file.stat().st_size}",
                where=str(folder),
                fix="copy the data file again",
            )


def take_in(tensors: Iterable[TensorProto], folder: Path) -> None:
    """Read the data of checked external tensors into the model, in place: TensorRT and ONNX's checker look for the data of
    initializers only."""
    for tensor in tensors:
        info = ExternalDataInfo(tensor)
        with (folder / info.location).open("rb") as file:
            file.seek(info.offset or 0)
            tensor.raw_data = file.read(info.length or size(tensor))
        del tensor.external_data[:]
        tensor.ClearField("data_location")


def size(tensor: TensorProto) -> int:
    """Bytes of data that the tensor's type and shape take; 0 if they cannot be told."""
    with suppress(KeyError, TypeError):
        count: int = math.prod(tensor.dims)
        return count * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    return 0


def relocate(
    tensors: list[TensorProto], location: str, folder: Path
) -> tuple[Iterator[bytes], list[tuple[TensorProto, TensorProto]]]:
    """Let tensors point into one new data file; the pieces that make it, and the tensors as they were."""
    restore: list[tuple[TensorProto, TensorProto]] = []
    sources: list[tuple[int, bytes | ExternalDataInfo]] = []
    offset = 0
    for tensor in tensors:
        before = TensorProto()
        before.CopyFrom(tensor)
        restore.append((tensor, before))
        external = tensor.data_location == TensorProto.EXTERNAL
        source: bytes | ExternalDataInfo = ExternalDataInfo(before) if external else before.raw_data
        length = len(source) if isinstance(source, bytes) else int(source.length or size(tensor))
        padding = -offset % 4096
        tensor.raw_data = b""  # set_external_data asks for the field
        set_external_data(tensor, location, offset + padding, length)
        tensor.ClearField("raw_data")
        sources.append((padding, source))
        offset += padding + length
    return _pieces(sources, [t for t, _ in restore], folder), restore


def _pieces(
    sources: list[tuple[int, bytes | ExternalDataInfo]], tensors: list[TensorProto], folder: Path
) -> Iterator[bytes]:
    for (padding, source), tensor in zip(sources, tensors, strict=True):
        yield b"\0" * padding
        if isinstance(source, bytes):
            yield source
            continue
        left = int(source.length or size(tensor))
        with (folder / source.location).open("rb") as file:
            file.seek(source.offset or 0)
            while left and (piece := file.read(min(left, 1 << 24))):
                left -= len(piece)
                yield piece
