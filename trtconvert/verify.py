"""Proof: the source model against the fused model in onnxruntime, and against the engine where a GPU can run it.

Runs go through Polygraphy's runners and Comparator, all on the same inputs; the reference is `reference.session`.
"""

from __future__ import annotations

import dataclasses
import datetime
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from trtconvert import gpu, manifest, reference, registry, shapes
from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert.accuracy.results import Errors, OutputResult, VerifyResult
from trtconvert.backend import select
from trtconvert.bodies import add_bodies
from trtconvert.custom_ops import libraries
from trtconvert.engine import Engine, load_engine
from trtconvert.errors import ConvertError, NoUsableGpuError
from trtconvert.feeds import contract
from trtconvert.feeds.feed import FeedOptions, feeds
from trtconvert.fuse import fuse_model
from trtconvert.manifest import Manifest
from trtconvert.monitor import Progress
from trtconvert.profiles.bake import bake, decode

FUSED = "fused model / source model"
ENGINE = "engine / source model"
EXPECTED = "source model / expected outputs"  # that come with the inputs
# Relative L2 that passes, by the least precise dtype in the model; int8: a value that lies between two quantization steps
# may come out as either. Engines may use TF32 for fp32 products.
TOLERANCES = {
    FUSED: {"float64": 1e-6, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2, "int8": 2e-2},
    ENGINE: {"float64": 2e-3, "float32": 2e-3, "float16": 5e-3, "bfloat16": 3e-2, "int8": 3e-2},
}
PEAK = 10  # an element may be off by this many times the tolerance, relative to the largest element


def verify(
    plan: str | Path,
    inputs: str | Path | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    *,
    samples: int | None = None,
    input_script: str = "",
    input_ranges: Mapping[str, tuple[float, float]] | None = None,
    progress: Progress | None = None,
) -> VerifyResult:
    """Compare a plan with the ONNX model it was built from, which its manifest names.

    inputs: .npz, folder of .npy files, ONNX test data, or folder of several, see feeds.files; input_script: FILE.py:FUNCTION,
    see feeds.script; else random ones from `seed` by what the graph says of each input, at the profile's min, opt and max shapes.
    samples: random batches at opt (1), or how many of files or of the script (all). input_ranges: bounds by input.
    progress: is told how far it is.
    tolerance: relative L2 that passes, instead of the defaults. The outcome is also noted in the manifest.
    Raises ConvertError when a file is missing or has changed since the build.
    """
    path = Path(plan)
    described = manifest.read(path)
    manifest.check_plan(described, path)
    select(described.backend)  # Polygraphy's switch, before Polygraphy is imported
    source = path.parent / described.model
    original, fused, notices = _models(described, path, source)
    result = VerifyResult(notices=notices)
    engine = _engine(path, result)
    options = FeedOptions(Path(inputs) if inputs is not None else None, input_script, input_ranges or {}, samples, seed)
    feeding = feeds(options, original, source.parent, contract.of_plan(described))
    result.roles = feeding.roles
    result.notices += feeding.notes
    precision = _precision(original)
    runners: list[tuple[str, Callable[[], Any]]] = [
        ("source", _onnx_runner(original, source.parent, result)),
        (FUSED, _onnx_runner(fused, source.parent, result)),
    ]
    if engine is not None:
        runners.append((ENGINE, lambda: _engine_runner(engine)))
    for batch in feeding.told(progress):
        label = batch.title
        outputs = _run(runners, batch.arrays)
        for name, expected in batch.expected.items():
            limit = tolerance if tolerance is not None else TOLERANCES[ENGINE][precision]
            rule = "--tolerance" if tolerance is not None else f"trtconvert, {precision}"
            result.rows.append(_compare(EXPECTED, label, name, outputs["source"].get(name), expected, limit, rule))
        for comparison, _ in runners[1:]:
            limit = tolerance if tolerance is not None else TOLERANCES[comparison][precision]
            rule = "--tolerance" if tolerance is not None else f"trtconvert, {precision}"
            for name in outputs["source"]:
                got, expected = outputs[comparison].get(name), outputs["source"][name]
                result.rows.append(_compare(comparison, label, name, got, expected, limit, rule))
    result.notices = list(dict.fromkeys(result.notices))
    _note(described, path, result)
    return result


def _models(described: Manifest, plan: Path, source: Path) -> tuple[ModelProto, ModelProto, list[str]]:
    """The source model with its inputs baked, and the fused one made from it as the build made it; custom ops of ours get
    their bodies."""
    libraries.load_plugins((plan.parent / file for file in described.plugin_files), described.backend)
    original = onnx_model.load(source)
    if onnx_model.sha256(source.read_bytes(), original, source.parent) != described.model_sha256:
        raise ConvertError(
            "the source model has changed since the plan was built", where=str(source), fix="build the plan again"
        )
    bake(original, decode(described.baked))
    fused = onnx_model.copy(original)
    notices = []
    if described.patterns:
        kept = {(choice["op"], choice["output"]) for choice in described.choices if choice["kept"]}
        ops = registry.by_pattern(tuple(described.patterns))
        fuse_model(fused, source.parent, ops, lambda key: not described.choices or key in kept)
    if onnx_model.sha256(onnx_model.serialize(fused), fused, source.parent) != described.fused_sha256:
        notices.append(f"this trtconvert fuses the model differently from {described.tool}, which built the plan")
    for model in (original, fused):
        reference.take_over(model, described)
        add_bodies(model)
        shapes.set_ranks(model, described.profile)  # Polygraphy takes an unknown one for 0
    return original, fused, notices


# --- running -------------------------------------------------------------------------------------------------------


def _engine(path: Path, result: VerifyResult) -> Engine | None:
    try:
        return load_engine(path)
    except NoUsableGpuError as error:
        result.engine_skipped = error.what
        return None


def _onnx_runner(model: ModelProto, folder: Path, result: VerifyResult) -> Callable[[], Any]:
    """A Polygraphy runner of the model: onnxruntime, or ONNX's reference evaluator for ops that it has no kernel for."""
    from polygraphy.backend.onnxrt import OnnxrtRunner  # after backend has set its switch

    try:
        session = reference.session(model, folder)
    except Exception as error:  # onnxruntime's exceptions have no common base of their own
        if "NOT_IMPLEMENTED" not in str(error):
            raise ConvertError(f"onnxruntime cannot load the model: {str(error).splitlines()[0]}") from error
        reason = str(error).split("Could not find")[-1].splitlines()[0]
        result.notices.append(f"onnxruntime could not find{reason}: ONNX's reference evaluator stands in for it")
        return lambda: _model_runner(model, reference.evaluator(model))
    return lambda: OnnxrtRunner(session)


def _model_runner(model: ModelProto, evaluator: Any) -> Any:
    """evaluator: what runs the model, with onnxruntime's `run`."""
    names = [output.name for output in model.graph.output]

    def run(feeds: dict[str, Any]) -> dict[str, Any]:
        with np.errstate(all="ignore"):
            return dict(zip(names, evaluator.run(None, feeds), strict=True))

    return _runner([(io.name, io) for io in manifest.model_io(model, "input")], run)


def _engine_runner(engine: Engine) -> Any:
    """Not Polygraphy's own: that one knows no bfloat16, and no output whose shape the data decides."""
    return _runner([(io.name, io) for io in engine.inputs], engine.run)


def _runner(inputs: Sequence[tuple[str, Any]], run: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A function as a Polygraphy runner. inputs: names, and what has their dtype and shape."""
    from polygraphy.backend.base import BaseRunner  # after backend has set its switch
    from polygraphy.common import TensorMetadata

    class Runner(BaseRunner):  # type: ignore[misc]
        def get_input_metadata_impl(self) -> Any:
            metadata = TensorMetadata()
            for name, info in inputs:
                metadata.add(name, onnx_model.numpy_dtype(info.dtype), info.shape)
            return metadata

        def infer_impl(self, feed_dict: Mapping[str, Any]) -> dict[str, Any]:
            outputs = run(dict(feed_dict))
            self.inference_time = 0.0
            return outputs

    return Runner()


def _run(runners: Sequence[tuple[str, Callable[[], Any]]], feed: dict[str, Any]) -> dict[str, dict[str, NDArray[Any]]]:
    """Each runner's outputs for the same inputs, through Polygraphy's Comparator."""
    from polygraphy.comparator import Comparator
    from polygraphy.logger import G_LOGGER

    try:
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
            results = Comparator.run([make() for _, make in runners], data_loader=[feed])
    except Exception as error:  # onnxruntime's and Polygraphy's have no common base of their own
        raise ConvertError(f"a model failed to run: {str(error).splitlines()[0]}") from error
    return {
        name: {output: np.asarray(value) for output, value in iterations[0].items()}
        for (name, _), (_, iterations) in zip(runners, results, strict=True)
    }


# --- comparing -----------------------------------------------------------------------------------------------------


def _precision(model: ModelProto) -> str:
    """The least precise float dtype that the model computes in; int8 if it quantizes."""
    if any(node.op_type == "QuantizeLinear" for node in onnx_model.all_nodes(model)):
        return "int8"
    infos = onnx_graph.infer(model)
    used = {info.dtype for graph in infos.values() for info in graph.values()}
    used |= {onnx_model.dtype_name(t.data_type) for t in onnx_model.all_tensors(model)}
    return next((d for d in ("bfloat16", "float16", "float32", "float64") if d in used), "float32")


def _compare(
    comparison: str, shapes: str, name: str, got: NDArray[Any] | None, expected: NDArray[Any], limit: float, rule: str
) -> OutputResult:
    def row(fault: str, max_abs: float = np.nan, max_rel: float = np.nan, rel_l2: float = np.nan) -> OutputResult:
        errors = Errors(expected.size, max_abs, max_rel, rel_l2)
        return OutputResult(comparison, shapes, name, errors, limit, rule, fault)

    if got is None:
        return row("the output is missing")
    if got.shape != expected.shape:
        return row(f"shape {list(got.shape)}, expected {list(expected.shape)}")
    if expected.dtype.kind in "iub" and expected.dtype != np.int8:
        wrong = int((got != expected).sum())
        return row(f"{wrong} of {expected.size} elements differ" if wrong else "", float(wrong > 0), 0.0, 0.0)
    a, b = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    with np.errstate(invalid="ignore"):
        same = np.isnan(a) == np.isnan(b)
        same &= np.isfinite(b) | np.isnan(b) | (a == b)
        same &= np.isfinite(a) | ~finite
    if not same.all():
        first = tuple(int(i) for i in np.argwhere(~same)[0])
        return row(f"NaN or Inf differ at {list(first)}: {a[first]:g}, expected {b[first]:g}")
    a, b = a[finite], b[finite]
    if b.size == 0:
        return row("", 0.0, 0.0, 0.0)
    difference, scale = np.abs(a - b), float(np.abs(b).max())
    large = np.abs(b) > 1e-3 * scale
    max_abs = float(difference.max())
    max_rel = float((difference[large] / np.abs(b[large])).max()) if large.any() else 0.0
    norm = float(np.linalg.norm(b))
    rel_l2 = float(np.linalg.norm(difference)) / norm if norm else float(np.linalg.norm(difference))
    if rel_l2 > limit:
        return row(f"relative L2 {rel_l2:.2g} > {limit:g}", max_abs, max_rel, rel_l2)
    if max_abs > PEAK * limit * scale and max_abs > 1e-30:
        return row(f"max abs {max_abs:.2g} > {PEAK} x {limit:g} x {scale:.2g}", max_abs, max_rel, rel_l2)
    return row("", max_abs, max_rel, rel_l2)


def _note(described: Manifest, plan: Path, result: VerifyResult) -> None:
    """Add the outcome to the manifest, with machine and date."""
    here = gpu.current()
    entry = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": f"{here.name} ({here.arch})" if here else f"{platform.machine()} CPU, no GPU",
        "engine_run": not result.engine_skipped,
        "passed": result.passed,
        "rows": [row.as_dict(evidence=False) for row in result.rows],
    }
    try:
        manifest.write(dataclasses.replace(described, verifications=[*described.verifications, entry]), plan)
    except ConvertError as error:
        result.notices.append(f"the outcome could not be noted in the manifest: {error.what}")
