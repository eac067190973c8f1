"""All that an engine of one model is compared with, made once, and the comparison of one set of outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from trtconvert import saturation
from trtconvert.accuracy import blame, metrics, references, rules, suspects
from trtconvert.accuracy.results import Errors, OutputResult
from trtconvert.accuracy.rules import Rule, Verdict
from trtconvert.accuracy.running import FirstThatRuns, ModelRun, Runnable, run_all
from trtconvert.accuracy.shares import Trial
from trtconvert.accuracy.suspects import Suspect
from trtconvert.errors import ConvertError
from trtconvert.inputs import Arrays
from trtconvert.lowering.functions import inline_local
from trtconvert.model import copy

REFERENCE, TWIN, TWIN_CUT = "reference", "twin", "twin, cut off"
_SMALL = 256 << 20  # bytes of weights up to which fp64 costs little
_LARGE = 1 << 30  # beyond which suspects would take more memory than they are worth
_QUANTIZERS = ("QuantizeLinear", "LayerNormGeluQuantize", "LayerNormQuantize", "DequantizeGeluQuantize")


class Proof:
    """Reference, twin and suspects of a model, ready to run.

    model: the source, with function bodies for ops of ours; folder: of its external data. converted: the same in the engine's
    precision, if it was converted, and its folder; NaN and Inf that conversion brings are then faults. fusions: as the manifest
    has them, for messages.
    """

    def __init__(
        self,
        model: ModelProto,
        folder: Path,
        tolerance: float | None = None,
        converted: tuple[ModelProto, Path] | None = None,
        fusions: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.model, self.folder, self.tolerance, self.fusions = model, folder, tolerance, fusions
        self.computed, self.computed_folder = converted or (model, folder)
        self.is_source = converted is None
        self.precision = references.precision_of(self.computed)
        products = self.precision in ("float32", "float64") and references.multiplies(self.computed)
        mixed = self.precision == "int8" and references.has_narrow_floats(self.computed)
        self.compute = "tf32" if products else rules.MIXED if mixed else self.precision
        self.rule = rules.RULES[self.compute]
        widened = references.reference_of(model)
        self.runs: dict[str, Runnable] = {
            REFERENCE: self._reference(model, widened),
            TWIN: ModelRun(references.twin_of(self.computed), self.computed_folder),
        }
        if self.compute == "tf32" and references.convolves(self.computed):
            self.runs[TWIN_CUT] = ModelRun(references.twin_of(self.computed, cuts=True), self.computed_folder)
        self.suspects: dict[str, Suspect] = {}
        self._too_large = references.weight_bytes(model) > _LARGE
        # What suspects change is less than bfloat16's own rounding
        looked_for = not self._too_large and self.precision != "bfloat16"
        for suspect in suspects.suspects(widened) if looked_for else ():
            name = f"suspect {len(self.suspects)}"
            try:
                self.runs[name] = ModelRun(suspect.model, folder)
            except ConvertError:  # an op that does not take what was changed; then it is not looked for
                continue
            self.suspects[name] = suspect
        self.trials: dict[str, Trial] = {}
        self._twins: dict[str, tuple[Arrays, dict[str, Errors]]] = {}  # outputs and their errors
        self._first: str | None = None  # what makes NaN or Inf in the twin
        self.quantized = {
            value.name
            for value in model.graph.output
            if (node := blame.maker(model, value.name)) is not None and node.op_type in _QUANTIZERS
        }

    def _reference(self, model: ModelProto, widened: ModelProto) -> Runnable:
        """In fp64 for an fp32 model that is small enough to, where onnxruntime takes it so."""
        if references.precision_of(model) in ("float32", "int8") and references.weight_bytes(model) <= _SMALL:
            try:
                run = ModelRun(references.in_fp64(model), self.folder)
                if not run.notice:
                    return FirstThatRuns(run, lambda: ModelRun(widened, self.folder))
            except ConvertError:  # ops that take two dtypes, of which fp64 is none
                pass
        return ModelRun(widened, self.folder)

    @property
    def reference(self) -> str:
        """What is compared with, in words."""
        run = self.runs[REFERENCE]
        return references.IN_FP64 if isinstance(run, FirstThatRuns) and not run.fell_back else references.IN_FP32

    @property
    def notices(self) -> list[str]:
        """What is to be told about how the models run."""
        told = [run.notice for run in self.runs.values() if isinstance(run, ModelRun) and run.notice]
        if saturation.concerns(self.model):
            told.append(saturation.NOTE)
        if self._too_large:
            told.append("the model is large: errors of a known kind were not looked for below the noise")
        return told

    def same_maths(self, model: ModelProto) -> ModelRun:
        """Another writing of the source model, widened as the reference is."""
        return ModelRun(references.reference_of(model), self.folder)

    @property
    def same_maths_floor(self) -> float:
        """Relative L2 that another writing of the source model may differ by."""
        return rules.SAME_MATHS[self.compute]

    def run(self, others: Mapping[str, Runnable], feeds: Arrays) -> dict[str, Arrays]:
        """Outputs of reference, twin and suspects, and of others, for the same inputs."""
        return run_all({**self.runs, **others}, feeds)

    def rows(
        self, comparison: str, label: str, feeds: Arrays, outputs: Mapping[str, Arrays], floor: float | None = None
    ) -> Iterator[OutputResult]:
        """Verdicts on outputs[comparison], output by output. floor: of the relative L2, for what no twin excuses."""
        expected, got, plain = outputs[REFERENCE], outputs[comparison], floor is not None
        twins = {} if plain else {name: self._nearest_twin(name, got, outputs) for name in expected}
        twin = {name: outputs[which].get(name) for name, which in twins.items()}
        rule = self.rule if floor is None else Rule(self.rule.name, floor, 0.0, self.rule.origin)
        verdicts = {
            name: rules.judge(
                got.get(name),
                want,
                twin.get(name),
                rule,
                self.tolerance,
                name in self.quantized,
                self.is_source,
                None if plain else self._of_twin(name, outputs, twins[name]),
            )
            for name, want in expected.items()
        }
        known = {} if plain or self.tolerance is not None else self._suspected(comparison, outputs, twin)
        for name, verdict in verdicts.items():
            told = [verdict.fault] * bool(verdict.fault) + known.get(name, [])
            node = ""
            if told:
                told += self._swapped(name, got, expected, verdicts)
                node = self._blame(name, verdict, feeds)
            yield OutputResult(
                comparison,
                label,
                name,
                verdict.errors,
                verdict.limit,
                "--tolerance" if self.tolerance is not None else rules.describe(rule, verdict.twin),
                "; ".join(told),
                verdict.twin,
                verdict.first_bad,
                node,
                _evidence(got.get(name), expected[name]),
            )

    def rows_of_expected(
        self, comparison: str, label: str, got: Arrays, expected: Arrays, outputs: Mapping[str, Arrays]
    ) -> Iterator[OutputResult]:
        """Verdicts on outputs against those that came with the inputs. They may differ by what the twin's precision costs, which
        its distance to the reference tells."""
        for name, want in expected.items():
            allowed, rule = self.tolerance, "--tolerance"
            if allowed is None and name in outputs[REFERENCE]:
                cost = self._of_twin(name, outputs)
                allowed = rules.limits(self.rule, outputs[REFERENCE][name], cost).rel_l2
                rule = rules.describe(self.rule, cost)
            verdict = rules.judge(got.get(name), want, None, self.rule, allowed, name in self.quantized)
            yield OutputResult(
                comparison,
                label,
                name,
                verdict.errors,
                verdict.limit,
                rule,
                verdict.fault,
                first_bad=verdict.first_bad,
                node=blame.made_by(self.model, name, self.fusions) if verdict.fault else "",
                evidence=_evidence(got.get(name), want),
            )

    def _nearest_twin(self, name: str, got: Arrays, outputs: Mapping[str, Arrays]) -> str:
        """Which of the twins rounds as the engine does."""
        here, twins = got.get(name), [which for which in (TWIN, TWIN_CUT) if name in outputs.get(which, {})]
        if here is None or len(twins) < 2 or any(outputs[which][name].shape != here.shape for which in twins):
            return TWIN
        return min(twins, key=lambda which: metrics.measure(here, outputs[which][name]).rel_l2)

    def _of_twin(self, name: str, outputs: Mapping[str, Arrays], which: str = TWIN) -> Errors | None:
        if which not in self._twins or self._twins[which][0] is not outputs[which]:
            self._twins[which] = (outputs[which], {})
        known, twin, want = self._twins[which][1], outputs[which].get(name), outputs[REFERENCE][name]
        if name not in known and twin is not None and twin.shape == want.shape:
            known[name] = metrics.measure(twin, want)
        return known.get(name)

    def _suspected(
        self, comparison: str, outputs: Mapping[str, Arrays], twin: Mapping[str, NDArray[Any] | None]
    ) -> dict[str, list[str]]:
        """For each output, the suspects that show in it and explain the errors of all outputs on all inputs so far."""
        if not self.suspects:
            return {}
        trial, got = self.trials.setdefault(comparison, Trial(len(self.suspects))), outputs[comparison]
        shown = {
            name: trial.hear(got[name], want, twin[name], [outputs[key][name] for key in self.suspects])
            for name, want in outputs[REFERENCE].items()
            if name in got and (want.dtype.kind not in "iub" or name in self.quantized)
        }
        found = {number: self._explains(number, share) for number, share in trial.found()}
        return {name: [found[number] for number in numbers if number in found] for name, numbers in shown.items()}

    def _explains(self, number: int, share: float) -> str:
        suspect = [*self.suspects.values()][number]
        nodes = ", ".join(suspect.nodes[:3]) + (f" and {len(suspect.nodes) - 3} more" if suspect.nodes[3:] else "")
        return f"{suspect.says} explains the error ({share:.2f} of its effect): {nodes}"

    def _swapped(self, name: str, got: Arrays, expected: Arrays, verdicts: Mapping[str, Verdict]) -> Iterator[str]:
        """Whether it holds what belongs into another output."""
        here = got.get(name)
        if here is None or not verdicts[name].fault:
            return
        for other, want in expected.items():
            alike = other != name and want.shape == here.shape and want.dtype.kind == expected[name].dtype.kind
            if alike and verdicts[other].fault and not np.array_equal(want, expected[name]):
                distance = metrics.measure(here, want).rel_l2
                if distance <= (verdicts[other].limit or 0.0):
                    yield f"it holds what belongs into {other}"

    def _blame(self, name: str, verdict: Verdict, feeds: Arrays) -> str:
        """The node that makes the output, or what first makes its NaN and Inf."""
        node = blame.made_by(self.model, name, self.fusions)
        made = f"made by {node}" if node else "no node makes it"
        off = verdict.twin.rel_l2 if verdict.twin else 0.0
        lost = off > self.rule.most
        if "NaN or Inf where" not in verdict.fault and not lost:
            return made
        if self._first is None:
            written = inline_local(copy(self.computed))
            self._first = blame.source_of(references.twin_of(self.computed), self.computed_folder, feeds, written)
        if lost:
            cause = f", for NaN or Inf {self._first}" if self._first else ""
            return f"{made}; in this precision the model itself is off by {off:.2g}{cause}"
        return self._first or (
            f"the same model in the same precision stays finite in onnxruntime: only the engine makes them, at {node}"
        )


def _evidence(got: NDArray[Any] | None, expected: NDArray[Any]) -> Any:
    return metrics.evidence(got, expected) if got is not None and got.shape == expected.shape else None
