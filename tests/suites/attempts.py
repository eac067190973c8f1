"""What the child processes of the node-test suite do with one case: build, parse plainly, run what was lowered or built."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from trtconvert import BuildOptions, ConvertError, backend, bake, build, load_engine, reference, shapes
from trtconvert import model as onnx_model
from trtconvert.lower import lower

if TYPE_CHECKING:
    from tests.suites.onnx_nodes import Case


@dataclass(frozen=True)
class Attempt:
    """What to do with each case. target: architecture, "" for the backend's default."""

    target: str
    plain: bool = False
    check: bool = False
    run: bool = False


Answer = tuple[str, str, str, tuple[str, ...], tuple[tuple[str, str], ...]]


def run(case: Case, attempt: Attempt) -> Answer:
    """Outcome, reason, where, what was baked, and the comparisons that were made."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        proto = onnx.load_from_string(case.model)
        baked = {name: case.inputs[name] for name in case.parameters if case.inputs.get(name) is not None}
        ranges = {}
        for given in proto.graph.input:
            array = case.inputs.get(given.name)
            if array is not None and given.name not in baked and _is_open(given):
                ranges[given.name] = shapes.Range(array.shape, array.shape, array.shape)
        path.write_bytes(proto.SerializeToString())
        if attempt.plain:
            return (*plain(path, ranges), (), ())
        options = BuildOptions(shapes=ranges, bake=baked, targets=(attempt.target,) if attempt.target else ())
        try:
            build(path, path.with_suffix(".plan"), options)
        except ConvertError as error:
            return "explained", error.what, error.where or "", tuple(baked), ()
        checks = list(_checks(case, path, options, attempt))
        return "built", "", "", tuple(baked), tuple(checks)


def _is_open(info: onnx.ValueInfoProto) -> bool:
    kind = info.type.tensor_type
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
        yield "lowered", _compare(case, _lowered_outputs(path, options, feeds))
    if attempt.run:
        engine = load_engine(path.with_suffix(".plan"))
        inputs = {t.name for t in engine.inputs}
        yield "engine", _compare(case, engine.run({k: v for k, v in feeds.items() if k in inputs}))


def _lowered_outputs(path: Path, options: BuildOptions, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Of the model that the parser is given, in onnxruntime, or in the reference evaluator where that has no kernel."""
    model = onnx_model.load(path)
    bake.bake(model, options.bake)
    fixed = shapes.profile(model, options.shapes).fixed
    lowered = lower(model, path.parent, backend.supports(backend.select()), fixed).model
    given = {i.name: feeds[i.name] for i in lowered.graph.input}
    names = [o.name for o in lowered.graph.output]
    try:
        results = reference.session(lowered).run(None, given)
    except Exception:  # noqa: BLE001  onnxruntime's exceptions have no common base of their own
        results = ReferenceEvaluator(lowered).run(None, given)
    return dict(zip(names, results, strict=True))


def _compare(case: Case, got: Mapping[str, Any]) -> str:
    """ "equal", or the first difference."""
    for name, expected in case.outputs.items():
        if name not in got or expected is None:
            return f"{name} is missing"
        actual = np.asarray(got[name])
        if actual.shape != expected.shape:
            return f"{name} has shape {list(actual.shape)}, expected {list(expected.shape)}"
        if actual.dtype != expected.dtype:
            return f"{name} is {actual.dtype}, expected {expected.dtype}"
        a, b = (np.asarray(x, np.float64 if x.dtype.kind in "fV" else x.dtype) for x in (actual, expected))
        if a.dtype.kind == "f" and not (np.allclose(a, b, case.rtol, case.atol, equal_nan=True) or _near(a, b)):
            finite = np.isfinite(a) & np.isfinite(b)
            return f"{name} differs by up to {np.abs(a - b)[finite].max(initial=0):.2g}"
        if a.dtype.kind != "f" and not np.array_equal(a, b):
            return f"{name} differs in {np.count_nonzero(a != b)} of {a.size} elements"
    return "equal"


def _near(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    """Within 1e-6 of each other as a whole: elements near 0 that others cancelled to may differ by more."""
    return bool(np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(b))
