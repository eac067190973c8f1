"""ONNX's own node tests (onnx.backend.test.case.node) through `build`: what was built, what was refused and why.

    python -m tests.suites.onnx_nodes [--only REGEX] [--plain] [--check-lowered] [--run] [--output FILE.md]

Each model is built for one GPU architecture, in a child process that may crash or hang without harm. Where a shape, an axis,
a length or the like is an input, the test's own value of it is baked in, as `--bake NAME=VALUE` does; open dimensions get
the sizes of the test's data, as `--shape` does.

--plain: TensorRT's parser and builder alone too, on the same files as they are. --check-lowered: what TensorRT's parser is
given also runs in onnxruntime (or in ONNX's reference evaluator, where that has no kernel) on the test's inputs, and is
compared with the outputs that the test expects: rewritten nodes still compute the same. --run: so does the engine, which
needs a GPU. Elements count as equal within the test's tolerance, a tensor also when it is near as a whole (see attempts.NEAR).
"""

from __future__ import annotations

import argparse
import re
import sys
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
        "K", "M", "axes", "axis", "block_shape", "delta", "depth", "dft_length", "ends", "frame_length", "frame_step",
        "image_shape", "iou_threshold", "k", "limit", "lower_edge_hertz", "max_output_boxes_per_class", "num_mel_bins",
        "output_shape", "pads", "ratio", "repeats", "roi", "sample_rate", "scales", "score_threshold", "shape", "size",
        "sizes", "split", "start", "starts", "steps", "training_mode", "upper_edge_hertz",
    )
)  # fmt: skip
OF_OPS = {("ConstantOfShape", "input")}  # op and input


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
    """What came of one case. outcome: built, explained, crash, traceback or hang."""

    name: str
    op: str
    answer: attempts.Answer


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
    if status == "error":
        answer = attempts.Answer("traceback", answer)
    elif status == "crash":
        answer = attempts.Answer("hang" if "took over" in answer else "crash", answer)
    return Row(case.name, case.op, answer)


# --- tables --------------------------------------------------------------------------------------------------------


def report(rows: Sequence[Row], seconds: float) -> str:
    """Markdown: what was not built, by outcome, op and reason; what differs; counts."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row.answer.outcome != "built":
            key = (row.answer.outcome, row.op, _short(row.answer.reason))
            reasons.setdefault(key, []).append(row.name)
    lines = ["| outcome | op | reason | models | one of them |", "|---|---|---|---|---|"]
    for (outcome, op, reason), names in sorted(reasons.items(), key=lambda item: (item[0][0], -len(item[1]), item[0])):
        lines.append(f"| {outcome} | {op} | {reason} | {len(names)} | {names[0]} |")
    differing = [(row.name, *check) for row in rows for check in row.answer.checks if check[1] != "equal"]
    if differing:
        lines += ["", "| model | what ran | difference |", "|---|---|---|"]
        lines += [f"| {name} | {which} | {difference} |" for name, which, difference in differing]
    return "\n".join([*lines, "", *_counts(rows), f"{seconds:.0f} s", ""])


def _short(reason: str) -> str:
    """One line, without what differs between models of one kind."""
    line = (reason.splitlines() or [""])[0].replace("|", "/")
    line = re.sub(r"\"[^\"]*\"|'[^']*'", "...", line)
    return line if len(line) <= 160 else line[:157] + "..."


def _counts(rows: Sequence[Row]) -> Iterator[str]:
    outcomes = Counter(row.answer.outcome for row in rows)
    yield f"{len(rows)} models: " + ", ".join(
        f"{outcomes[name]} {name}" for name in ("built", "explained", "crash", "traceback", "hang")
    )
    if any(row.answer.plain for row in rows):
        yield f"TensorRT's parser and builder alone: {sum(row.answer.plain == 'built' for row in rows)} built"
    for which in ("lowered", "engine"):
        found = Counter(result == "equal" for row in rows for name, result in row.answer.checks if name == which)
        if found:
            yield f"{which}: {found[True]} of {found.total()} compute what the test expects"


def main() -> None:
    """The command line; exit code 1 if a process crashed, hung or let an exception through."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.suites.onnx_nodes", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="tests whose name matches")
    parser.add_argument("--plain", action="store_true", help="TensorRT's parser and builder alone too")
    parser.add_argument("--check-lowered", action="store_true", help="run what the parser is given in onnxruntime")
    parser.add_argument("--run", action="store_true", help="run the engines, on a GPU")
    parser.add_argument("--target", default="", help="GPU architecture (default: this GPU's, or sm_89)")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="write the tables there too")
    given = parser.parse_args()
    started = time.monotonic()
    target = given.target or ("" if given.run else "sm_89")
    attempt = attempts.Attempt(target, given.plain, given.check_lowered, given.run)
    rows = list(run_all(cases(given.only), attempt, given.workers))
    text = report(rows, time.monotonic() - started)
    print(text, end="")
    if given.output:
        given.output.write_text(text, encoding="utf-8")
    sys.exit(any(row.answer.outcome in ("crash", "traceback", "hang") for row in rows))


if __name__ == "__main__":
    main()
