"""Inputs turned into constants: what `--bake` says, checked against the model, and written into it."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from trtconvert import graph as onnx_graph
from trtconvert.errors import ConvertError
from trtconvert.shapes import show, unknown_input

_FILES = (".npy", ".pb")
_WORDS = {"true": True, "false": False, "1": True, "0": False}


def parse(texts: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE`: the value as text, which is read when the input's dtype is known. ConvertError for other text."""
    given = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ConvertError(
                f"cannot read --bake {text!r}",
                fix="write --bake NAME=VALUE; the value is a number, 1,2,3, [[1,2],[3,4]], or a .npy or .pb file",
            )
        given[name] = value
    return given


def bake(model: ModelProto, given: Mapping[str, Any]) -> dict[str, TensorProto]:
    """Turn inputs of the model into constants, in place, and return these.

    given: input name to value: a numpy array (or TensorProto) of the input's dtype and shape; or a number, nested lists,
    or text as in `--bake`, which take the input's dtype. ConvertError for a name that is no input, and for a value of
    another dtype or shape.
    """
    inputs = {i.name: i for i in model.graph.input}
    tensors = {}
    for name, value in given.items():
        if name not in inputs:
            raise unknown_input("--bake", name, inputs)
        tensors[name] = _tensor(inputs[name], value)
    for name, tensor in tensors.items():
        _replace(model, inputs[name], tensor)
    return tensors


def encode(tensors: Mapping[str, TensorProto]) -> dict[str, dict[str, Any]]:
    """The constants as a manifest keeps them: dtype, shape, and the ONNX tensor in base64."""
    return {
        name: {
            "dtype": _dtype_name(tensor.data_type),
            "shape": list(tensor.dims),
            "tensor": base64.b64encode(tensor.SerializeToString(deterministic=True)).decode(),
        }
        for name, tensor in tensors.items()
    }


def decode(kept: Mapping[str, Mapping[str, Any]]) -> dict[str, TensorProto]:
    """What `encode` wrote."""
    return {name: TensorProto.FromString(base64.b64decode(entry["tensor"])) for name, entry in kept.items()}


def _replace(model: ModelProto, declared: ValueInfoProto, tensor: TensorProto) -> None:
    """An initializer in the input's place. Before IR 4 every initializer is declared as an input too."""
    graph, name = model.graph, declared.name
    if any(output.name == name for output in graph.output):  # TensorRT's parser takes no output that is an initializer
        tensor.name = f"{name}_baked"
        nodes = [helper.make_node("Identity", [tensor.name], [name], name=f"{name}_Identity"), *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
    kept = [t for t in graph.initializer if t.name != name]
    del graph.initializer[:]
    graph.initializer.extend([*kept, tensor])
    if model.ir_version >= 4:
        graph.input.remove(declared)
    else:
        declared.CopyFrom(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


# --- values --------------------------------------------------------------------------------------------------------


def _tensor(declared: ValueInfoProto, value: Any) -> TensorProto:
    """The value as an ONNX tensor of the input's name, dtype and shape."""
    name = declared.name
    if not declared.type.HasField("tensor_type"):
        kind = (declared.type.WhichOneof("value") or "unknown").removesuffix("_type")
        raise ConvertError(f"--bake {name}: the input is of type {kind}, only tensors can be constants")
    elem_type = declared.type.tensor_type.elem_type
    path = file_named(value)
    if path is not None:
        value = _read(name, path)
    if isinstance(value, TensorProto):
        tensor = _whole(name, value, path)
    elif isinstance(value, np.ndarray | np.generic):
        tensor = numpy_helper.from_array(_viewed(np.asarray(value), elem_type))
    else:
        tensor = _converted(name, value, elem_type, onnx_graph.describe(declared).shape)
    tensor.name = name
    if tensor.data_type != elem_type:
        raise ConvertError(
            f"--bake {name}: expected {_dtype_name(elem_type)}, got {_dtype_name(tensor.data_type)}",
            where=str(path) if path else None,
            fix=f"give an array of dtype {_dtype_name(elem_type)}",
        )
    _check_shape(name, tuple(tensor.dims), onnx_graph.describe(declared).shape, path)
    return tensor


def _check_shape(name: str, got: tuple[int, ...], declared: onnx_graph.Shape | None, path: Path | None) -> None:
    if declared is None:
        return
    fits = len(got) == len(declared) and all(d == g for d, g in zip(declared, got, strict=True) if isinstance(d, int))
    named: dict[str, int] = {}
    pairs = zip(declared, got, strict=False)
    fits = fits and all(named.setdefault(d, g) == g for d, g in pairs if isinstance(d, str))
    if not fits:
        raise ConvertError(
            f"--bake {name}: expected shape {show(declared)}, got {list(got)}",
            where=str(path) if path else None,
            fix="write nested lists such as [[1,2],[3,4]], or give a .npy file of that shape",
        )


def file_named(value: Any) -> Path | None:
    """The file that the value names: after @, or by its suffix."""
    if isinstance(value, Path):
        return value
    if isinstance(value, str) and (value.startswith("@") or value.endswith(_FILES)):
        return Path(value.removeprefix("@"))
    return None


def _read(name: str, path: Path) -> Any:
    if path.suffix not in _FILES:
        raise ConvertError(f"--bake {name}: not a .npy or .pb file", where=str(path), fix="write it with numpy.save")
    if not path.is_file():
        raise ConvertError(f"--bake {name}: file not found", where=str(path), fix="check the path")
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        return TensorProto.FromString(path.read_bytes())
    except (OSError, EOFError, ValueError, MemoryError, DecodeError) as error:
        raise ConvertError(f"--bake {name}: the file cannot be read: {error}", where=str(path)) from error


def _whole(name: str, value: TensorProto, path: Path | None) -> TensorProto:
    """A copy of a tensor that holds the data which its dtype and shape ask for."""
    fault = "the tensor's data is missing"
    try:
        if value.data_location != TensorProto.EXTERNAL and value.data_type != TensorProto.UNDEFINED:
            return numpy_helper.from_array(numpy_helper.to_array(value))
    except (ValueError, TypeError, KeyError, MemoryError) as error:
        fault = f"the tensor does not hold together: {error}"
    raise ConvertError(f"--bake {name}: {fault}", where=str(path) if path else None)


def _viewed(array: NDArray[Any], elem_type: int) -> NDArray[Any]:
    """Arrays of bfloat16 and the like come out of .npy files as bytes without a type; text as fixed-width characters."""
    if array.dtype.kind in "US":
        return array.astype(object)
    wanted = np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))
    return array.view(wanted) if array.dtype.kind == "V" and array.dtype == f"V{wanted.itemsize}" else array


def _converted(name: str, value: Any, elem_type: int, shape: onnx_graph.Shape | None) -> TensorProto:
    """Text, numbers and lists as a tensor of that dtype; one number also serves for a shape of ones."""
    try:
        array = np.array(_lists(value) if isinstance(value, str) else value, dtype=object)
        if any(isinstance(element, list) for element in array.flat):
            raise ValueError("lists differ in length")
    except (ValueError, RecursionError) as error:
        raise ConvertError(
            f"--bake {name}: cannot read {value!r}", fix="write 5, 1,2,3 or [[1,2],[3,4]], lists of equal length"
        ) from error
    elements = [_element(name, element, elem_type) for element in array.flat]
    if array.ndim == 0 and shape and all(d == 1 for d in shape if isinstance(d, int)):
        array = array.reshape([1] * len(shape))
    if elem_type == TensorProto.STRING:
        typed = np.array(elements, dtype=object)
    else:
        typed = np.array(elements, dtype=helper.tensor_dtype_to_np_dtype(elem_type))
    return numpy_helper.from_array(typed.reshape(array.shape))


def _lists(text: str) -> Any:
    """`5`, `1,2,3` or `[[1,2],[3,4]]` as nested lists of words."""
    if not text.lstrip().startswith("["):
        words = [word.strip() for word in text.split(",")]
        return words if len(words) > 1 else words[0]
    return json.loads(re.sub(r"[^\[\],\s]+", lambda word: json.dumps(word[0].strip("\"'")), text))


def _element(name: str, value: Any, elem_type: int) -> Any:
    """One element as Python's bool, int, float, complex or str, which the dtype can hold."""
    if elem_type == TensorProto.STRING:
        return value if isinstance(value, str) else _refuse(name, value, elem_type)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))
    try:
        if dtype.kind == "b":
            return _WORDS[str(value).lower()]
        if dtype.kind == "c":
            return complex(value)
        if dtype.kind in "iu" or dtype.name.startswith(("int", "uint")):
            number = int(value, 0) if isinstance(value, str) else int(value)
            limits = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
            whole = isinstance(value, str) or number == value
            return number if whole and limits.min <= number <= limits.max else _refuse(name, value, elem_type)
        real = float(value)
        with np.errstate(over="ignore"):
            fits = not math.isfinite(real) or bool(np.isfinite(np.float64(real).astype(dtype).astype(np.float64)))
        return real if fits else _refuse(name, value, elem_type)
    except (ValueError, TypeError, KeyError, OverflowError):
        return _refuse(name, value, elem_type)


def _refuse(name: str, value: Any, elem_type: int) -> Any:
    raise ConvertError(
        f"--bake {name}: {value!r} is no {_dtype_name(elem_type)}", fix="give values of the input's dtype"
    )


def _dtype_name(elem_type: int) -> str:
    """As numpy names it; "string" and unknown types by ONNX's name."""
    known = elem_type in TensorProto.DataType.values()
    if not known or elem_type in (TensorProto.STRING, TensorProto.UNDEFINED):
        return str(TensorProto.DataType.Name(elem_type)).lower() if known else f"type {elem_type}"
    return str(np.dtype(helper.tensor_dtype_to_np_dtype(elem_type)).name)
