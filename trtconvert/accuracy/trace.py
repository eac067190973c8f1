"""`verify --bisect`: where a comparison failed, the first node behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from onnx import ModelProto

from trtconvert import reference
from trtconvert.accuracy import engines, references, rules
from trtconvert.accuracy.bisect import Distance, Run, Suspect, bisect
from trtconvert.accuracy.finding import Finding, describe
from trtconvert.accuracy.parts import Arrays, Parts
from trtconvert.accuracy.proof import Proof
from trtconvert.accuracy.rules import Rule
from trtconvert.bodies import add_bodies
from trtconvert.manifest import AS_IN_MODEL, Manifest
from trtconvert.model import copy
from trtconvert.remake import remake

BEYOND = 1 + 1e-6  # at least, of what a check finds that has no figure


def in_engine(
    described: Manifest, plan: Path, proof: Proof, label: str, feeds: Arrays, outputs: Arrays, comparison: str
) -> Finding:
    """The first node that is wrong in the plan's engine, which gave these outputs. NothingWrongError if the rules let them
    pass; ConvertError where engines cannot be made or run."""
    remade = remake(described, plan)
    lowered = remade.lowered()
    known = copy(remade.ready)
    reference.take_over(known, described)
    add_bodies(known)
    dtypes = Parts(known, remade.maker.source.parent).dtypes
    run = engines.runs(remade.maker, lowered, remade.profile, feeds)
    twin = Parts(references.twin_of(proof.computed), remade.maker.source.parent)
    suspect = Suspect(lowered.model, run, outputs, dtypes)
    wrong = bisect(suspect, _right(proof), twin, feeds, distance(proof.rule, proof.tolerance, proof.is_source))
    converted = described.precision.name != AS_IN_MODEL
    return describe(wrong, lowered.model, remade.source, described.fusions, converted, comparison, label)


def in_fused(
    described: Manifest, fused: ModelProto, proof: Proof, label: str, feeds: Arrays, outputs: Arrays, comparison: str
) -> Finding:
    """The first node of the fused model, run in onnxruntime, that is not what the source model says."""
    written = references.reference_of(fused)
    rule = Rule(proof.rule.name, rules.SAME_MATHS[proof.compute], 0.0, "")
    suspect = Suspect(written, _in_onnxruntime(proof.folder, feeds), outputs, Parts(written, proof.folder).dtypes)
    wrong = bisect(suspect, _right(proof), None, feeds, distance(rule, proof.tolerance, proof.is_source))
    return describe(wrong, written, proof.model, described.fusions, False, comparison, label)


def _right(proof: Proof) -> Parts:
    return Parts(references.reference_of(proof.model), proof.folder)


def _in_onnxruntime(folder: Path, feeds: Arrays) -> Run:
    def run(model: ModelProto, given: Arrays) -> Arrays:
        return Parts(model, folder).run([output.name for output in model.graph.output], {**feeds, **given})

    return run


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
