"""An engine with new weights: TensorRT's own refitter of ONNX models, and names where that leaves something out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper

from trtconvert import adapter, gpu, manifest
from trtconvert import model as onnx_model
from trtconvert.backend import Backend, logger
from trtconvert.diagnosis.tensorrt_log import plain
from trtconvert.engine import register_creators
from trtconvert.errors import ConvertError
from trtconvert.manifest import Manifest
from trtconvert.refitting.structure import constants
from trtconvert.runtime.faults import load_error

SHOWN = 5


class Refitter(Protocol):
    """What is asked of TensorRT's Refitter."""

    def get_weights_prototype(self, name: str) -> Any: ...
    def set_named_weights(self, name: str, weights: Any) -> bool: ...


@dataclass(frozen=True)
class Refitted:
    """The new plan; the weights that it got, and notes."""

    plan: bytes
    weights: int
    notes: list[str]


def refit_engine(backend: Backend, plan: Path, described: Manifest, model: ModelProto, source: Path) -> Refitted:
    """Give the lowered model's weights to the plan's engine. source: in whose folder its external data lies.

    NoUsableGpuError without a GPU: TensorRT loads an engine to refit it. ConvertError names weights that the model lacks.
    """
    gpu.require()
    trt, plan_bytes = backend.trt, manifest.check_plan(described, plan)
    register_creators(backend, plan_bytes, described)
    log, told = logger(backend)
    runtime = trt.Runtime(log)
    engine = runtime.deserialize_cuda_engine(plan_bytes)
    if engine is None:
        raise load_error(told, backend, plan)
    if not engine.refittable:
        raise ConvertError("the engine cannot be refitted", fix="build it with --refit or --strip-weights")
    refitter = trt.Refitter(engine, log)
    data = onnx_model.serialize(model)
    taken = trt.OnnxParserRefitter(refitter, log).refit_from_bytes(data, str(source.resolve()))
    notes = [] if taken else [f"TensorRT's refitter of ONNX models did not take this one: {plain(told.cause())}"]
    left = refitter.get_missing_weights() if taken else refitter.get_all_weights()
    held = arrays(model, source.parent) if left else {}
    given = by_names(refitter, left, held, lambda array: weights_of(backend, array))
    if not refitter.refit_cuda_engine():
        raise ConvertError(f"{backend.title} did not take the new weights: {plain(told.cause())}")
    adapter.raise_failure()
    if given:
        notes.append(f"given by name: {listed(list(given))}")
    return Refitted(_serialized(trt, engine), len(refitter.get_all_weights()), notes)


def arrays(model: ModelProto, folder: Path) -> dict[str, TensorProto]:
    """The model's constants by name, with their data."""
    found = {}
    for name, tensor in constants(model):
        base = str(folder) if tensor.data_location == TensorProto.EXTERNAL else ""
        found[name] = numpy_helper.from_array(numpy_helper.to_array(tensor, base), name) if base else tensor
    return found


def by_names(
    refitter: Refitter, names: Iterable[str], held: Mapping[str, TensorProto], made: Callable[[NDArray[Any]], Any]
) -> dict[str, NDArray[Any]]:
    """Set these weights to the model's constants of their names; returns them, since TensorRT reads them later. made:
    TensorRT's Weights of an array.

    ConvertError for all that the model has not, or not in the dtype or number that the engine takes.
    """
    given: dict[str, NDArray[Any]] = {}
    faults = []
    for name in names:
        tensor = held.get(name)
        if tensor is None:
            faults.append(f"{name} is not in the model")
            continue
        array = given[name] = np.ascontiguousarray(numpy_helper.to_array(tensor))
        wanted = refitter.get_weights_prototype(name)
        dtype = adapter.dtype_name(wanted.dtype)
        if array.size != wanted.size or array.dtype.name != dtype:
            faults.append(
                f"{name} has {array.size} elements of {array.dtype.name}, the engine takes {wanted.size} of {dtype}"
            )
        elif not refitter.set_named_weights(name, made(array)):
            faults.append(f"{name} was refused by TensorRT")
    if faults:
        raise ConvertError(f"weights are missing: {listed(faults)}", fix="give the model that the plan was built from")
    return given


def listed(texts: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    rest = f"; and {len(texts) - SHOWN} more" if texts[SHOWN:] else ""
    return "; ".join(texts[:SHOWN]) + rest


def weights_of(backend: Backend, array: NDArray[Any]) -> Any:
    """TensorRT's Weights of an array, which must outlive them; numpy itself has no bfloat16."""
    if array.dtype.name == "bfloat16":
        return backend.trt.Weights(backend.trt.DataType.BF16, array.ctypes.data, array.size)
    return backend.trt.Weights(array)


def _serialized(trt: Any, engine: Any) -> bytes:
    """With its weights, and still refittable."""
    config = engine.create_serialization_config()
    config.clear_flag(trt.SerializationFlag.EXCLUDE_WEIGHTS)
    config.set_flag(trt.SerializationFlag.INCLUDE_REFIT)
    return bytes(engine.serialize_with_config(config))
