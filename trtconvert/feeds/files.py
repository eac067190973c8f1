"""Inputs from the user's files: .npz, a folder with one .npy per input, ONNX test data, or a folder of several of these."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from trtconvert.errors import ConvertError
from trtconvert.feeds.contract import Batch, Contract
from trtconvert.inputs import Arrays

KINDS = "an .npz file, a folder with one .npy per input, or a test_data_set folder with input_0.pb"


def batches(path: Path, contract: Contract) -> list[Callable[[], Batch]]:
    """What reads each batch of a file or folder, in the order of the names. ConvertError if there is none; reading raises it for
    what is damaged or does not fit the model."""
    if not path.exists():
        raise ConvertError("input file not found", where=str(path), fix=f"give {KINDS}")
    if reader := _reader(path):
        return [partial(_read, reader, path, contract)]
    inside = [each for each in sorted(path.iterdir(), key=_natural) if each.is_dir() or each.suffix == ".npz"]
    found = [(reader, each) for each in inside if (reader := _reader(each))]
    if not found:
        raise ConvertError("the folder holds no inputs", where=str(path), fix=f"give {KINDS}, or a folder of several")
    return [partial(_read, reader, each, contract) for reader, each in found]


Reader = Callable[[Path, Contract], "tuple[Arrays, Arrays]"]
"""Inputs and expected outputs."""


def _reader(path: Path) -> Reader | None:
    if path.is_file():
        return _npz
    if any(path.glob("input_*.pb")):
        return _test_data
    return _npy if any(path.glob("*.npy")) else None


def _read(reader: Reader, path: Path, contract: Contract) -> Batch:
    inputs, outputs = reader(path, contract)
    contract.check(inputs, str(path))
    return Batch(path.name, inputs, expected=outputs)


def _npz(path: Path, _contract: Contract) -> tuple[Arrays, Arrays]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            return {name: data[name] for name in data.files}, {}
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise ConvertError(f"not an .npz file: {error}", where=str(path), fix="write it with numpy.savez") from error


def _npy(path: Path, contract: Contract) -> tuple[Arrays, Arrays]:
    """NAME.npy per input; a character that no file name may have is written as _."""
    names = {_file_name(io.name): io.name for io in contract.inputs}
    arrays = {}
    for file in sorted(path.glob("*.npy")):
        try:
            arrays[names.get(file.stem, file.stem)] = np.load(file, allow_pickle=False)
        except (OSError, EOFError, ValueError) as error:
            raise ConvertError(f"not an .npy file: {error}", where=str(file), fix="write it with numpy.save") from error
    return arrays, {}


def _file_name(name: str) -> str:
    return re.sub(r'[/\\:*?"<>|\0]', "_", name)


def _test_data(path: Path, contract: Contract) -> tuple[Arrays, Arrays]:
    """input_0.pb and so on, and output_0.pb where they are there, as ONNX's model zoo and node tests have them."""
    inputs = _tensors(path, "input", [io.name for io in contract.inputs], contract.baked)
    return inputs, _tensors(path, "output", contract.outputs, ())


def _tensors(path: Path, side: str, names: Sequence[str], others: Sequence[str]) -> Arrays:
    """Tensors by the names that they have, or in the model's order where these are not its names. others: names of tensors that
    are left out."""
    files = sorted(path.glob(f"{side}_*.pb"), key=_natural)
    read = [_tensor(file) for file in files]
    known = {*names, *others}
    if all(name in known for name, _ in read):
        return {name: array for name, array in read if name not in others}
    if len(read) != len(names):
        raise ConvertError(
            f"there are {len(read)} {side} files, the model has {len(names)} {side}s: {', '.join(names)}",
            where=str(path),
            fix=f"give one {side}_N.pb for each, in the model's order",
        )
    return dict(zip(names, (array for _, array in read), strict=True))


def _tensor(file: Path) -> tuple[str, NDArray[Any]]:
    tensor = TensorProto()
    try:
        tensor.ParseFromString(file.read_bytes())
        if tensor.data_type == TensorProto.UNDEFINED:
            raise ValueError("it is no tensor; a sequence, map or optional is none that TensorRT takes")
        return tensor.name, np.asarray(numpy_helper.to_array(tensor, str(file.parent)))
    except (OSError, DecodeError, ValueError, TypeError, onnx.checker.ValidationError) as error:
        raise ConvertError(
            f"not a tensor file: {str(error).splitlines()[0]}",
            where=str(file),
            fix="write it as a serialized TensorProto",
        ) from error


def _natural(path: Path) -> list[tuple[int, str]]:
    """A key that puts input_10 behind input_9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]
