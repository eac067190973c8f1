"""`verify --bisect`: where a comparison failed, the first node behind it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from onnx import ModelProto

from trtconvert import reference
from trtconvert.accuracy import engines, references, rules
from trtconvert.accuracy.bisect import BEYOND, bisect
from trtconvert.accuracy.finding import Finding, describe
from trtconvert.accuracy.parts import Arrays, Parts
from trtconvert.accuracy.proof import Proof
from trtconvert.accuracy.rules import Rule
from trtconvert.accuracy.wrong import Distance, Run, Suspect
from trtconvert.bodies import add_bodies
from trtconvert.manifest import AS_IN_MODEL, Manifest
from trtconvert.model import copy
from trtconvert.monitor import Progress
from trtconvert.remake import remake


@dataclass(frozen=True)
class Failed:
    """A comparison that failed: on which inputs, with which outputs, and which of these are wrong."""

    comparison: str
    label: str
    feeds: Arrays
    outputs: Arrays
    wrong: tuple[str, ...]


def in_engine(
    failed: Failed, described: Manifest, plan: Path, proof: Proof, progress: Progress | None = None
) -> Finding:
    """The first node that is wrong in the plan's engine. ConvertError where engines cannot be made or run."""
    remade = remake(described, plan)
    lowered = remade.lowered()
    known = copy(remade.ready)
    reference.take_over(known, described)
    add_bodies(known)
    dtypes = Parts(known, remade.maker.source.parent).dtypes
    run = _told(engines.runs(remade.maker, lowered, remade.profile, failed.feeds), progress)
    kinds = (False, True) if proof.compute == "tf32" and references.convolves(proof.computed) else (False,)
    twins = [Parts(references.twin_of(proof.computed, cuts), proof.computed_folder) for cuts in kinds]
    alike = tuple(Parts(other.model, proof.folder) for other in proof.suspects.values())
    suspect = Suspect(lowered.model, run, failed.outputs, dtypes, failed.wrong, alike)
    wrong = bisect(suspect, _right(proof), twins, failed.feeds, distance(proof.rule, proof.tolerance, proof.is_source))
    converted = described.precision.name != AS_IN_MODEL
    where = failed.comparison, failed.label
    return describe(wrong, lowered.model, remade.source, described.fusions, converted, *where)


def in_fused(failed: Failed, described: Manifest, fused: ModelProto, proof: Proof) -> Finding:
    """The first node of the fused model, run in onnxruntime, that is not what the source model says."""
    written = references.reference_of(fused)
    rule = Rule(proof.rule.name, rules.SAME_MATHS[proof.compute], 0.0, "")
    run, dtypes = _in_onnxruntime(proof.folder, failed.feeds), Parts(written, proof.folder).dtypes
    suspect = Suspect(written, run, failed.outputs, dtypes)
    wrong = bisect(suspect, _right(proof), (), failed.feeds, distance(rule, proof.tolerance, proof.is_source))
    return describe(wrong, written, proof.model, described.fusions, False, failed.comparison, failed.label)


def _right(proof: Proof) -> Parts:
    return Parts(references.reference_of(proof.model), proof.folder)


def _in_onnxruntime(folder: Path, feeds: Arrays) -> Run:
    def run(model: ModelProto, given: Arrays) -> Arrays:
        return Parts(model, folder).run([output.name for output in model.graph.output], {**feeds, **given})

    return run


def _told(run: Run, progress: Progress | None) -> Run:
    """Says before each engine how many there were."""
    count = itertools.count()

    def told(model: ModelProto, given: Arrays) -> Arrays:
        if progress is not None:
            progress("searching for the first wrong node", next(count), 0)
        return run(model, given)

    return told


def distance(rule: Rule, tolerance: float | None = None, overflows: bool = True) -> Distance:
    """verify's checks as one figure: the largest error over what the check allows; above 1 exactly where verify fails."""

    def far(got: NDArray[Any], want: NDArray[Any], twin: NDArray[Any] | None) -> float:
        quantized = want.dtype.name == "int8"  # inside an engine there are no others of that type
        verdict = rules.judge(got, want, twin, rule, tolerance, quantized, overflows)
        if verdict.fault and (not verdict.limit > 0 or "NaN or Inf" in verdict.fault):
            return float("inf")
        if not verdict.limit > 0:
            return 0.0
        allowed = rules.limits(rule, want, verdict.twin, tolerance)
        errors = verdict.errors
        found = [errors.rel_l2 / allowed.rel_l2, errors.max_abs / allowed.peak]
        found += [errors.channel.rel_l2 / allowed.slice] if errors.channel is not None else []
        found += [low / allowed.bias[name] for name, (low, _) in errors.bias.items() if allowed.bias.get(name)]
        return max(*found, BEYOND) if verdict.fault else min(max(found), 1.0)

    return far
