"""What the child processes of the node-test suite do with one case: build, parse plainly, run what was lowered or built."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from trtconvert import BuildOptions, ConvertError, backend, build, load_engine, reference, shapes
from trtconvert import model as onnx_model
from trtconvert.lower import lower
from trtconvert.profiles import bake

if TYPE_CHECKING:
    from tests.suites.onnx_nodes import Case


NEAR = {
    "lowered": 1e-6,
    "engine": 2e-3,
}  # relative L2 that passes where single elements differ more than the test allows


@dataclass(frozen=True)
class Attempt:
    """What to do with each case. target: architecture, "" for the backend's default."""

    target: str
    plain: bool = False
    check: bool = False
    run: bool = False


@dataclass(frozen=True)
class Answer:
    """outcome: built or explained, and of TensorRT alone, if that was asked for. checks: which, and "equal" or how it differs."""

    outcome: str
    reason: str = ""
    baked: tuple[str, ...] = ()
    plain: str = ""
    checks: tuple[tuple[str, str], ...] = ()


def run(case: Case, attempt: Attempt) -> Answer:
    """Build the case's model, with its parameters baked and its open dimensions given; check what was built."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(case.model)
        alone = plain(path, {})[0] if attempt.plain else ""
        baked = {name: case.inputs[name] for name in case.parameters if case.inputs.get(name) is not None}
        ranges = {}
        for given in onnx.load_from_string(case.model).graph.input:
            array = case.inputs.get(given.name)
            if array is not None and given.name not in baked and is_open(given):
                ranges[given.name] = shapes.Range(array.shape, array.shape, array.shape)
        options = BuildOptions(shapes=ranges, bake=baked, targets=(attempt.target,) if attempt.target else ())
        try:
            build(path, path.with_suffix(".plan"), options)
        except ConvertError as error:
            return Answer("explained", _reason(error), tuple(baked), alone)
        return Answer("built", "", tuple(baked), alone, tuple(_checks(case, path, options, attempt)))


def _reason(error: ConvertError) -> str:
    """The first reason that the message gives, without names of nodes."""
    several = re.search(r"for \d+ reasons$", error.what)
    text = (error.where or "").splitlines()[0] if several else error.what
    text = re.sub(r"^TensorRT[\w-]* [\d.]+ (cannot take the model|could not build the engine): ", "", text)
    return re.sub(r"^nodes? [^()]* \((.*?)\): ", r"\1: ", text)


def is_open(info: onnx.ValueInfoProto) -> bool:
    """Whether the input's shape is not all known."""
    kind = info.type.tensor_type
    if not info.type.HasField("tensor_type"):
        return False
    return not kind.HasField("shape") or any(not d.HasField("dim_value") for d in kind.shape.dim)


def plain(path: Path, ranges: Mapping[str, shapes.Range]) -> tuple[str, str, str]:
    """TensorRT's parser and builder on the file, as its samples use them."""
    chosen = backend.select()
    trt = chosen.trt
    logger, log = backend.logger(chosen)
    builder = trt.Builder(logger)
    network = builder.create_network(chosen.network_flags())
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(path)):
        return "explained", log.cause(), ""
    config = builder.create_builder_config()
    if ranges:
        profile = builder.create_optimization_profile()
        for name, given in ranges.items():
            profile.set_shape(name, *map(trt.Dims, (given.min, given.opt, given.max)))
        config.add_optimization_profile(profile)
    built = builder.build_serialized_network(network, config)
    return ("built", "", "") if built is not None else ("explained", log.cause(), "")


# --- comparisons ---------------------------------------------------------------------------------------------------


def _checks(case: Case, path: Path, options: BuildOptions, attempt: Attempt) -> Iterator[tuple[str, str]]:
    feeds = {name: array for name, array in case.inputs.items() if array is not None}
    if attempt.check:
        model = onnx_model.load(path)
        bake.bake(model, options.bake)
        fixed = shapes.profile(model, options.shapes).fixed
        lowered = lower(model, path.parent, backend.supports(backend.select()), fixed).model
        yield "lowered", difference(case, model, lowered)
    if attempt.run:
        yield "engine", _engine(case, path, feeds)


def difference(case: Case, model: ModelProto, lowered: ModelProto) -> str:
    """ "equal" if the lowered model computes what the case expects; else the first difference, and whether the model has it."""
    feeds = {name: array for name, array in case.inputs.items() if array is not None}
    try:
        found = _compare(case, _outputs(_without_plugins(lowered), feeds), "lowered")
    except Exception as error:  # noqa: BLE001  the evaluators' are of many types
        return f"not run: {type(error).__name__}: {error}"
    if found != "equal" and _compare(case, _outputs(model, feeds), "lowered") == found:
        return f"the model itself differs there: {found}"
    return found


def _without_plugins(model: ModelProto) -> ModelProto:
    """A copy in which standard ops that are plugins, such as NonZero, are ONNX' own again."""
    copy = onnx_model.copy(model)
    for node in onnx_model.all_nodes(copy):
        if any(a.name == "plugin_version" for a in node.attribute):
            attributes = [a for a in node.attribute if not a.name.startswith("plugin_")]
            outputs = [name for name in node.output if "_counted_" not in name]
            del node.attribute[:], node.output[:]
            node.attribute.extend(attributes)
            node.output.extend(outputs)
    return copy


def _engine(case: Case, path: Path, feeds: Mapping[str, Any]) -> str:
    try:
        engine = load_engine(path.with_suffix(".plan"))
        given = {t.name: feeds[t.name].astype(_narrowed(feeds[t.name].dtype)) for t in engine.inputs}
        return _compare(case, engine.run(given), "engine")
    except Exception as error:  # noqa: BLE001  CUDA's and TensorRT's are of many types; the next case may still run
        return f"not run: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _narrowed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """TensorRT reads float64 as float32, as `build` tells."""
    return np.dtype(np.float32) if dtype == np.float64 else dtype


def _outputs(model: ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """In onnxruntime, or in the reference evaluator where that has no kernel."""
    given = {i.name: feeds[i.name] for i in model.graph.input}
    try:
        results = reference.session(model).run(None, given)
    except Exception:  # noqa: BLE001  onnxruntime's exceptions have no common base of their own
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(model).run(None, given)
    return {output.name: np.asarray(result) for output, result in zip(model.graph.output, results, strict=True)}


def _compare(case: Case, got: Mapping[str, NDArray[Any]], which: str) -> str:
    """ "equal", or the first difference."""
    for name, expected in case.outputs.items():
        if name not in got or expected is None:
            return f"{name} is missing"
        actual, wanted = got[name], _narrowed(expected.dtype) if which == "engine" else expected.dtype
        if actual.shape != expected.shape:
            return f"{name} has shape {list(actual.shape)}, expected {list(expected.shape)}"
        if actual.dtype != wanted:
            return f"{name} is {actual.dtype}, expected {wanted}"
        a, b = (np.asarray(x, np.float64 if x.dtype.kind in "fV" else x.dtype) for x in (actual, expected))
        if a.dtype.kind == "f" and not np.allclose(a, b, case.rtol, case.atol, equal_nan=True):
            if not np.linalg.norm(a - b) <= NEAR[which] * np.linalg.norm(b):
                finite = np.isfinite(a) & np.isfinite(b)
                return f"{name} differs by up to {np.abs(a - b)[finite].max(initial=0):.2g}"
        elif a.dtype.kind != "f" and not np.array_equal(a, b):
            return f"{name} differs in {np.count_nonzero(a != b)} of {a.size} elements"
    return "equal"
