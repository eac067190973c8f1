"""ONNX's own node tests (onnx.backend.test.case.node) through `build`: built, explained, crashed, by op and reason.

    python -m tests.suites.onnx_nodes [--only REGEX] [--plain] [--check-lowered] [--run] [--output FILE.md]

Each model is built for one target by TensorRT-RTX in a child process, which may crash or hang without harm. Where a
shape, an axis, a length or the like is an input, the test's own value of it is baked in, as `--bake NAME=VALUE` does; dynamic
inputs get the shapes of the test's data. --plain does the same with TensorRT's parser and builder alone, on the same files, for
comparison. --check-lowered runs the model that the parser is given on the test's inputs in onnxruntime or ONNX's reference
evaluator, and compares with the expected outputs: what was rewritten still computes the same. --run does so with the engines, on
a GPU.
"""

from __future__ import annotations

import argparse
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

from tests.bench.child import Child
from tests.suites import attempts

LIMIT_S = 60.0
WORKERS = 2


# Inputs, by their names in ONNX' schemas, that say how large something is, or along which axis: parameters, not data.
PARAMETERS = frozenset(
    (
        "K", "axes", "block_shape", "image_shape", "axis", "depth", "dft_length", "ends", "frame_length", "frame_step", "k",
        "output_shape", "pads", "repeats", "roi", "scales", "shape", "size", "sizes", "split", "starts", "steps",
        "start", "limit", "delta", "num_mel_bins", "sample_rate", "lower_edge_hertz", "upper_edge_hertz",
        "max_output_boxes_per_class", "iou_threshold", "score_threshold", "ratio", "training_mode", "M",
    )
)  # fmt: skip
OF_OPS = {("ConstantOfShape", "input")}


@dataclass(frozen=True)
class Case:
    """A test model as a file, and its data: inputs and expected outputs by name, None for what is no tensor."""

    name: str
    op: str
    model: bytes
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    rtol: float
    atol: float
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """What came of one case. outcome: built, explained, crashed, traceback or hang; baked: inputs turned into constants."""

    name: str
    op: str
    outcome: str
    reason: str = ""
    where: str = ""
    baked: tuple[str, ...] = ()
    checks: tuple[tuple[str, str], ...] = ()  # lowered or engine, and "equal" or how it differs


# --- cases ---------------------------------------------------------------------------------------------------------


def cases(only: str = "") -> list[Case]:
    """The node tests whose name the expression matches."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tests compute overflows and logarithms of zero
        from onnx.backend.test.case.node import collect_testcases

        found = collect_testcases(None)
    models = {test.name: test.model for test in found}
    whole = [models.get(test.name.removesuffix("_expanded"), test.model) for test in found]
    return [_case(test, model) for test, model in zip(found, whole, strict=True) if re.search(only, test.name)]


def _case(test: Any, whole: ModelProto) -> Case:
    """whole: the test's model, or where that is the op written as a function, the one with the op itself."""
    model: ModelProto = test.model
    inputs, outputs = test.data_sets[0] if test.data_sets else ([], [])
    nodes = model.graph.node
    return Case(
        test.name,
        nodes[0].op_type if len(nodes) == 1 else _main_op(test.name, nodes),
        model.SerializeToString(),
        _named(model.graph.input, inputs),
        _named(model.graph.output, outputs),
        test.rtol,
        test.atol,
        tuple(parameters(whole)),
    )


def parameters(model: ModelProto) -> list[str]:
    """The model's inputs that are parameters of an op, such as axes, and nothing else."""
    uses: dict[str, set[bool]] = {}
    for node in model.graph.node:
        version = next((o.version for o in model.opset_import if o.domain == node.domain), 1)
        formal = list(onnx.defs.get_schema(node.op_type, version, node.domain).inputs)
        for index, name in enumerate(node.input):
            declared = formal[min(index, len(formal) - 1)].name
            known = declared in PARAMETERS or (node.op_type, declared) in OF_OPS
            uses.setdefault(name, set()).add(known)
    return [i.name for i in model.graph.input if uses.get(i.name) == {True}]


def _main_op(name: str, nodes: Sequence[onnx.NodeProto]) -> str:
    """Of a test of several nodes, such as those by which ONNX defines an op, the op that the test is named after."""
    plain = name.replace("_", "")
    named = [s.name for s in onnx.defs.get_all_schemas() if plain.startswith(f"test{s.name.lower()}")]
    return max(named, key=len) if named else nodes[-1].op_type


def _named(infos: Iterable[onnx.ValueInfoProto], values: Sequence[Any]) -> dict[str, Any]:
    return {info.name: _array(value) for info, value in zip(infos, values, strict=False)}


def _array(value: Any) -> Any:
    """The tensor as numpy array (ml_dtypes for what numpy lacks), None for sequences and optionals."""
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    return None


# --- runs ----------------------------------------------------------------------------------------------------------


def run_all(found: Sequence[Case], attempt: attempts.Attempt, workers: int = WORKERS) -> Iterator[Row]:
    """A row for each case, as they come in."""
    free: SimpleQueue[Child] = SimpleQueue()
    children = [Child(attempts.run, LIMIT_S) for _ in range(workers)]
    for child in children:
        free.put(child)

    def one(case: Case) -> Row:
        child = free.get()
        try:
            return _row(case, *child(case, attempt))
        finally:
            free.put(child)

    try:
        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(one, found)
    finally:
        for child in children:
            child.close()


def _row(case: Case, status: str, answer: Any) -> Row:
    if status == "ok":
        return Row(case.name, case.op, *answer)
    if status == "error":
        return Row(case.name, case.op, "traceback", answer)
    return Row(case.name, case.op, "hang" if "took over" in answer else "crashed", answer)


# --- tables --------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.onnx_nodes", description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--check-lowered", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--dump", type=Path)
    given = parser.parse_args()
    started = time.monotonic()
    found = cases(given.only)
    attempt = attempts.Attempt("" if given.run else "sm_89", given.plain, given.check_lowered, given.run)
    rows = list(run_all(found, attempt, given.workers))
    if given.dump:
        import dataclasses
        import json

        given.dump.write_text(json.dumps([dataclasses.asdict(r) for r in rows]))
    print(Counter(r.outcome for r in rows), f"{time.monotonic() - started:.0f} s")
    print(Counter(c[1][:40] for r in rows for c in r.checks).most_common(30))


if __name__ == "__main__":
    main()
