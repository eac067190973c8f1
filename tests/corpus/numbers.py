"""Source and fused model side by side, in a process of its own: onnxruntime without its optimizer, which is wrong on some of
these graphs and crashes on one; ONNX's reference evaluator for what onnxruntime has no kernels for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from trtconvert import fuse, reference
from trtconvert import model as onnx_model

PATTERN = ("layernorm-gelu",)  # what the corpus is about
SCALES = (1.0, 3e-3, 1e-5)
Run = Callable[[dict[str, NDArray[Any]]], list[Any]]
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def compare(path: Path, shapes: dict[str, list[int]]) -> list[str] | None:
    """What differs between the file and what fuse makes of it, at each input scale; None if nothing can run it.

    float32: relative L2 at most 1e-5, unless the source itself is further than that from the model computed in float64 (the
    LayerNormalization of onnxruntime 1.23 is) and the fused model is not. 16-bit: at most 2e-2, and no further from float64
    than twice the source's own distance. Other dtypes: equal.
    """
    source, fused = onnx.load(path), fuse(path, PATTERN).model
    make = next((make for make in (_onnxruntime, _evaluator) if _runs(make, source, shapes)), None)
    if make is None:
        return None
    if not _runs(make, fused, shapes):
        return ["the fused model cannot be run, the source can"]
    runs = [make(model) for model in (source, fused)]
    exact = None
    faults = []
    for scale in SCALES:
        feeds = _feeds(source, shapes, scale)
        wanted, got = (run(feeds) for run in runs)
        for name, a, b in zip([o.name for o in source.graph.output], wanted, got, strict=True):
            difference, wide = _distance(b, a), a.dtype.name not in ("float16", "bfloat16")
            limit = 2e-2 if not wide else 1e-5 if a.dtype.kind == "f" else 0.0
            if difference <= limit and wide:
                continue
            exact = exact or _evaluator(_in_float64(source))
            best = exact({k: v.astype(np.float64) if k in _float_inputs(source) else v for k, v in feeds.items()})
            value = dict(zip([o.name for o in source.graph.output], best, strict=True))[name]
            own, ours = _distance(a, value), _distance(b, value)
            near = own > limit >= ours if wide else difference <= limit and ours <= 2 * own + 1e-7
            if not near:
                faults.append(f"{name} at scale {scale:g}: {difference:.2g}; to float64 {ours:.2g}, source {own:.2g}")
    return faults


def _onnxruntime(model: ModelProto) -> Run:
    session = reference.session(model)
    return lambda feeds: session.run(None, feeds)


def _evaluator(model: ModelProto) -> Run:
    evaluator = reference.evaluator(model)
    return lambda feeds: evaluator.run(None, feeds)


def _runs(make: Callable[[ModelProto], Run], model: ModelProto, shapes: dict[str, list[int]]) -> bool:
    try:
        make(model)(_feeds(model, shapes, 1.0))
    except Exception:  # noqa: BLE001  # both raise errors of many types
        return False
    return True


def _distance(got: NDArray[Any], want: NDArray[Any]) -> float:
    if got.shape != want.shape:
        return float("inf")
    if got.dtype.kind in "biu":
        return float((got != want).any())
    a, b = got.astype(np.float64), want.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    return float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1.0))


def _float_inputs(model: ModelProto) -> set[str]:
    return {i.name for i in model.graph.input if i.type.tensor_type.elem_type in FLOATS}


def _feeds(model: ModelProto, shapes: dict[str, list[int]], scale: float) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(0)
    feeds = {}
    constant = {t.name for t in model.graph.initializer}
    for value in model.graph.input:
        if value.name in constant:
            continue
        dims = [d.dim_value or (2 if i == 0 else 40) for i, d in enumerate(value.type.tensor_type.shape.dim)]
        shape = shapes.get(value.name, dims)
        dtype = onnx_model.numpy_dtype(onnx_model.dtype_name(value.type.tensor_type.elem_type))
        if value.type.tensor_type.elem_type in (*FLOATS, TensorProto.DOUBLE):
            feeds[value.name] = (random.standard_normal(shape) * scale).astype(dtype)
        else:
            feeds[value.name] = random.integers(0, 2, shape).astype(dtype)
    return feeds


def _in_float64(model: ModelProto) -> ModelProto:
    """The same model with every float type made double, for ONNX's reference evaluator."""
    wide = onnx_model.copy(model)
    for graph in onnx_model.all_graphs(wide.graph):
        del graph.value_info[:]
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type in FLOATS:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Cast" and attribute.name == "to" and attribute.i in FLOATS:
                    attribute.i = TensorProto.DOUBLE
                if node.op_type == "Constant" and attribute.name == "value_float":
                    attribute.CopyFrom(helper.make_attribute("value", helper.make_tensor("", 11, [], [attribute.f])))
    for tensor in onnx_model.all_tensors(wide):
        if tensor.data_type in FLOATS:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    return wide
