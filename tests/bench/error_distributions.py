"""How far right engines lie from the reference.

    python -m tests.bench.error_distributions [--seeds 5] [--folder MODELS] [--precisions model,fp16,bf16,int8] [--only NAME]

For each model (the sample models, or those of a folder) in each precision and several inputs: the engine's errors, as parts of
what verify allows, and those of the twin. A converted model is the reference of its own engine. Without a GPU two stand-ins run
in onnxruntime: "few" roundings, as onnxruntime makes, and "many", the twin of the fused model. The floors of
`trtconvert.accuracy.rules` come from this table: no right engine may come near 1.

Columns: outputs compared; median and 95 % quantile of relative L2, of the twin's, and of their quotient; the largest part used of
what is allowed for the whole, for a slice, for a single element and for the systematic part; the largest share of a suspect.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.conftest import SAMPLES
from trtconvert import BuildOptions, ConvertError, build, gpu, load_engine, manifest
from trtconvert.accuracy import metrics, rules
from trtconvert.accuracy.proof import REFERENCE, TWIN, Proof
from trtconvert.accuracy.references import twin_of
from trtconvert.accuracy.running import ModelRun, Runnable
from trtconvert.inputs import Arrays, random_feeds
from trtconvert.precision.options import PrecisionOptions
from trtconvert.verify import _converted, _models

AS_IT_IS = "model"
HEADER = (
    "model", "compute type", "engine", "outputs", "rel L2 50 / 95 %", "twin's 50 / 95 %", "quotient 50 / 95 %",
    "whole", "slice", "element", "systematic", "share", "fails",
)  # fmt: skip


@dataclass
class Seen:
    """Errors of one engine over all inputs."""

    errors: list[float] = field(default_factory=list)
    twins: list[float] = field(default_factory=list)
    whole: float = 0.0
    slice: float = 0.0
    element: float = 0.0
    systematic: float = 0.0
    share: float = 0.0
    fails: int = 0

    def cells(self) -> list[str]:
        """Of the table."""
        pairs = [(e, t) for e, t in zip(self.errors, self.twins, strict=True) if t > 0]
        parts = [f"{part:.2f}" for part in (self.whole, self.slice, self.element, self.systematic, self.share)]
        columns = [self.errors, self.twins, [e / t for e, t in pairs]]
        return [str(len(self.errors)), *map(_quantiles, columns), *parts, str(self.fails)]


def _quantiles(values: list[float]) -> str:
    return " / ".join(f"{q:.2g}" for q in np.quantile(values, (0.5, 0.95))) if values else ""


def look(seen: Seen, proof: Proof, name: str, label: str, feeds: Arrays, outputs: Mapping[str, Arrays]) -> None:
    """Take in the outputs for one set of inputs."""
    for row in proof.rows(name, label, feeds, outputs):
        seen.fails += not row.passed
        expected, twin = outputs[REFERENCE][row.output], outputs[TWIN][row.output]
        if expected.dtype.kind in "iub" or row.errors.rel_l2 != row.errors.rel_l2:
            continue
        allowed = rules.limits(proof.rule, expected, metrics.measure(twin, expected))
        seen.errors.append(row.errors.rel_l2)
        seen.twins.append(row.twin.rel_l2 if row.twin else 0.0)
        seen.whole = max(seen.whole, row.errors.rel_l2 / allowed.rel_l2)
        seen.element = max(seen.element, row.errors.max_abs / allowed.peak)
        if row.errors.channel:
            seen.slice = max(seen.slice, row.errors.channel.rel_l2 / allowed.slice)
        for key, (low, _) in row.errors.bias.items():
            seen.systematic = max(seen.systematic, low / allowed.bias.get(key, np.inf))
    if name in proof.trials:
        seen.share = max([seen.share, *proof.trials[name].shares().values()])


def distributions(model: Path, precision: str, folder: Path, seeds: int) -> Iterator[list[str]]:
    """Rows of one model."""
    here = gpu.current()
    asked = PrecisionOptions("" if precision == AS_IT_IS else precision)
    options = BuildOptions(fuse="all", targets=(here.arch,) if here else ("sm_89",), precision=asked)
    plan = build(model, folder / f"{model.stem}.plan", options).plan
    described = manifest.read(plan)
    original, fused, _ = _models(described, plan, model)
    converted = _converted(described, plan)
    proof = Proof(*converted) if converted else Proof(original, model.parent)
    fused = converted[0] if converted else fused
    runs: dict[str, Runnable] = {}
    if here is not None:
        runs["engine"] = load_engine(plan)
    else:
        runs["few"] = ModelRun(fused, proof.folder)
        runs["many"] = ModelRun(twin_of(fused), proof.folder)
    seen = {name: Seen() for name in runs}
    for seed in range(seeds):
        points = random_feeds(described.onnx_inputs, described.profile, seed, described.values, described.unfit)
        for label, feeds in points:
            outputs = proof.run(runs, feeds)
            for name, of_engine in seen.items():
                look(of_engine, proof, name, label, feeds, outputs)
    for name, of_engine in seen.items():
        yield [model.stem, proof.rule.name, name, *of_engine.cells()]


def main() -> None:
    """Print the table; a model that fails costs its row only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=SAMPLES)
    parser.add_argument("--precisions", default=f"{AS_IT_IS},fp16,bf16,int8")
    parser.add_argument("--only", default="", help="part of a model's name")
    options = parser.parse_args()
    print(f"| {' | '.join(HEADER)} |\n{'|---' * len(HEADER)}|")
    models = [model for model in sorted(options.folder.glob("*.onnx")) if options.only in model.stem]
    for model, precision in itertools.product(models, options.precisions.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            try:
                for cells in distributions(model, precision, Path(folder), options.seeds):
                    print(f"| {' | '.join(cells)} |", flush=True)
            except ConvertError as error:
                print(f"| {model.stem} | {precision}: {error.what} |", flush=True)
            except Exception as error:  # noqa: BLE001  what else a library raises must not stop the others
                print(f"| {model.stem} | {precision}: {type(error).__name__}: {str(error)[:120]!r} |", flush=True)


if __name__ == "__main__":
    main()
