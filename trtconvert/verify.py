"""Proof: the source model against the fused or converted model in onnxruntime, and against the engine where a GPU can run it.

All run on the same inputs. `accuracy.references` says what they are compared with, `accuracy.rules` what passes.
"""

from __future__ import annotations

import dataclasses
import datetime
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from trtconvert import gpu, manifest, reference, shapes
from trtconvert import model as onnx_model
from trtconvert.accuracy import references, rules, trace
from trtconvert.accuracy.finding import Finding
from trtconvert.accuracy.lines import lines
from trtconvert.accuracy.proof import REFERENCE, TWIN, Proof
from trtconvert.accuracy.results import CONVERTED, ENGINE, ENGINE_CONVERTED, FUSED, VerifyResult
from trtconvert.accuracy.running import Runnable
from trtconvert.accuracy.trace import Failed
from trtconvert.backend import select
from trtconvert.bodies import add_bodies
from trtconvert.engine import Engine, load_engine
from trtconvert.errors import ConvertError, NoUsableGpuError
from trtconvert.feeds import contract
from trtconvert.feeds.feed import FeedOptions, feeds
from trtconvert.manifest import Manifest
from trtconvert.monitor import Progress
from trtconvert.remake import converted_model, fuse_again, source_model

COMPARED_WITH_EXPECTED = {"source model / expected outputs": REFERENCE, "engine / expected outputs": ENGINE}


def verify(
    plan: str | Path,
    inputs: str | Path | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    bisect: bool = False,
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
    tolerance: relative L2 that passes, instead of the rules of the compute type.
    bisect: where a comparison fails, find the first node behind it, with engines in which more tensors are outputs.
    The outcome is also noted in the manifest.
    Raises ConvertError when a file is missing or has changed since the build.
    """
    path = Path(plan)
    described = manifest.read(path)
    manifest.check_plan(described, path)
    select(described.backend)  # Polygraphy's switch, before Polygraphy is imported
    source = path.parent / described.model
    original, fused, notices = _models(described, path, source)
    converted = _converted(described, path)
    proof = Proof(original, source.parent, tolerance, converted, described.fusions)
    result = VerifyResult(
        notices=[*notices, *proof.notices],
        precision=proof.rule.name,
        twin=references.TWIN_IN_WORDS,
        rules=[f"relative L2 <= {tolerance:g}  [--tolerance]"]
        if tolerance is not None
        else rules.in_words(proof.rule, rules.COSTS[proof.compute] if converted else None),
    )
    engine = _engine(path, result)
    options = FeedOptions(Path(inputs) if inputs is not None else None, input_script, input_ranges or {}, samples, seed)
    feeding = feeds(options, original, source.parent, contract.of_plan(described))
    result.roles = feeding.roles
    result.notices += feeding.notes
    runs: dict[str, Runnable] = {} if fused is None else {FUSED: proof.same_maths(fused)}
    if engine is not None:
        runs[ENGINE] = engine
    checks = [*_checks(proof, converted, ENGINE in runs, described)]
    failed: dict[str, Failed] = {}
    for batch in feeding.told(progress):
        outputs = proof.run(runs, batch.arrays)
        for check in checks:
            here = outputs if check.proof is proof else {**outputs, **check.proof.run({}, batch.arrays)}
            here = {**here, check.comparison: here[check.run]}
            rows = [*check.proof.rows(check.comparison, batch.title, batch.arrays, here, check.floor)]
            result.rows += rows
            if wrong := tuple(row.output for row in rows if not row.passed):
                told = check.comparison, batch.title, batch.arrays, here[check.run], wrong
                failed.setdefault(check.comparison, Failed(*told))
        for comparison, name in COMPARED_WITH_EXPECTED.items() if batch.expected else ():
            if name in outputs:
                result.rows += proof.rows_of_expected(comparison, batch.title, outputs[name], batch.expected, outputs)
    result.reference = proof.reference
    if bisect and failed:
        result.first_wrong = _first_wrong(failed, checks, described, path, fused, result, progress)
    result.notices = list(dict.fromkeys(result.notices))
    _note(described, path, result)
    return result


@dataclass(frozen=True)
class Check:
    """A comparison: outputs of `run` by the rules of `proof`; floor: see Proof.rows."""

    comparison: str
    proof: Proof
    run: str
    floor: float | None = None


def _checks(
    proof: Proof, converted: tuple[ModelProto, Path] | None, engine_runs: bool, described: Manifest
) -> Iterator[Check]:
    """In the order of the table. The converted model is looked at twice: what it costs, and whether the engine computes it."""
    if converted is None:
        yield Check(FUSED, proof, FUSED, proof.same_maths_floor)
    else:
        yield Check(CONVERTED, proof, TWIN, rules.COSTS[proof.compute])
    if engine_runs:
        yield Check(ENGINE, proof, ENGINE)
        if converted is not None:
            own = Proof(*converted, proof.tolerance, fusions=described.fusions)
            yield Check(ENGINE_CONVERTED, own, ENGINE)


def _first_wrong(
    failed: Mapping[str, Failed],
    checks: Sequence[Check],
    described: Manifest,
    plan: Path,
    fused: ModelProto | None,
    result: VerifyResult,
    progress: Progress | None,
) -> Finding | None:
    """The first wrong node: of the fused model where that is wrong already, else of the engine; noted where none is found."""
    proofs = {check.comparison: check.proof for check in checks}
    found = next((name for name in (FUSED, ENGINE_CONVERTED, ENGINE) if name in failed), None)
    if found is None:
        return None
    try:
        if found == FUSED and fused is not None:
            return trace.in_fused(failed[found], described, fused, proofs[found])
        return trace.in_engine(failed[found], described, plan, proofs[found], progress)
    except ConvertError as error:
        result.notices.append(f"the first wrong node was not found: {error.what}")
        return None


def _models(described: Manifest, plan: Path, source: Path) -> tuple[ModelProto, ModelProto | None, list[str]]:
    """The source model with its inputs baked, and the fused one made from it as the build made it, unless it was converted too;
    custom ops of ours get their bodies."""
    original = source_model(described, plan)
    if described.precision.file:
        _make_runnable(original, described)
        return original, None, []
    fused = onnx_model.copy(original)
    notices = []
    fuse_again(described, fused, source.parent)
    if onnx_model.sha256(onnx_model.serialize(fused), fused, source.parent) != described.fused_sha256:
        notices.append(f"this trtconvert fuses the model differently from {described.tool}, which built the plan")
    for model in (original, fused):
        _make_runnable(model, described)
    return original, fused, notices


def _make_runnable(model: ModelProto, described: Manifest) -> None:
    reference.take_over(model, described)
    add_bodies(model)
    shapes.set_ranks(model, described.profile)  # Polygraphy takes an unknown one for 0


def _converted(described: Manifest, plan: Path) -> tuple[ModelProto, Path] | None:
    """The model in the engine's precision, if it was converted, and its folder."""
    model = converted_model(described, plan)
    if model is None:
        return None
    _make_runnable(model, described)
    return model, plan.parent


def _engine(path: Path, result: VerifyResult) -> Engine | None:
    try:
        return load_engine(path)
    except NoUsableGpuError as error:
        result.engine_skipped = error.what
        return None


def _note(described: Manifest, plan: Path, result: VerifyResult) -> None:
    """Add the outcome to the manifest, with machine and date; of several samples the worst."""
    here = gpu.current()
    entry = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": f"{here.name} ({here.arch})" if here else f"{platform.machine()} CPU, no GPU",
        "engine_run": not result.engine_skipped,
        "passed": result.passed,
        "rows": [line.worst.as_dict(evidence=False) | {"samples": len(line.rows)} for line in lines(result.rows)],
    }
    try:
        manifest.write(dataclasses.replace(described, verifications=[*described.verifications, entry]), plan)
    except ConvertError as error:
        result.notices.append(f"the outcome could not be noted in the manifest: {error.what}")
