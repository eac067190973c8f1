"""Hostile files through `inspect` and `build`: whatever comes, an engine or a ConvertError, never a crash or a traceback.

    python -m tests.suites.fuzz bytes|models [--seconds 300] [--folder FOLDER]

bytes: the sample models with bytes changed, cut out and doubled. models: structurally valid models with hostile names, shapes and
attributes, cycles, deep subgraphs, thousands of inputs, external data outside the folder. hypothesis makes them; each runs in a
child process. A file that does harm is kept in --folder (or the current one). Exit code 1 if there was one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.bench.child import Child
from trtconvert import BuildOptions, ConvertError, build
from trtconvert.preflight import inspect

SAMPLES = Path(__file__).parents[2] / "sample_models"
LIMIT_S = 120
EXAMPLES = 40  # that hypothesis makes in a go; between two goes the clock is looked at
MOST_BYTES = 200_000  # of a sample that is mutated


def attempt(data: bytes) -> str:
    """Inspect and build these bytes: "built" or "refused"; anything else is raised, or ends the process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(data)
        outcome = "built"
        for act in (
            lambda: inspect(path),
            lambda: build(path, Path(folder) / "e.plan", BuildOptions(targets=("sm_89",))),
        ):
            try:
                act()
            except ConvertError:
                outcome = "refused"
        left = {p.name for p in Path(folder).iterdir()} - {"model.onnx"}
        if left - {"e.plan", "e.plan.json"} or (outcome == "refused" and left):
            raise AssertionError(f"files were left: {left}")
        return outcome


# --- bytes ---------------------------------------------------------------------------------------------------------


def mutated() -> st.SearchStrategy[bytes]:
    """A sample with up to 8 changes."""
    samples = [p.read_bytes() for p in sorted(SAMPLES.glob("*.onnx"))]
    samples = [data for data in samples if len(data) <= MOST_BYTES]
    place = st.floats(0, 1, exclude_max=True)
    change = st.tuples(
        st.sampled_from(["set", "flip", "cut", "double", "insert", "end"]),
        place,
        place,
        st.binary(min_size=1, max_size=8),
    )
    return st.builds(_mutate, st.sampled_from(samples), st.lists(change, min_size=1, max_size=8))


def _mutate(data: bytes, changes: list[tuple[str, float, float, bytes]]) -> bytes:
    changed = bytearray(data)
    for kind, where, length, new in changes:
        at = int(where * len(changed))
        end = min(len(changed), at + 1 + int(length**4 * 200))
        if kind == "set":
            changed[at : at + len(new)] = new
        elif kind == "flip" and changed:
            changed[at] ^= 1 << (new[0] % 8)
        elif kind == "cut":
            del changed[at:end]
        elif kind == "double":
            changed[at:at] = changed[at:end]
        elif kind == "insert":
            changed[at:at] = new
        elif kind == "end":
            del changed[max(at, 1) :]
    return bytes(changed)


# --- models --------------------------------------------------------------------------------------------------------

NAMES = st.one_of(
    st.sampled_from(
        ["", " ", "x", "y", "../x", "/etc/passwd", "a/b", "x\n", "\u0000", "名", "%s%n", "x" * 5000, "trtconvert", "1"]
    ),
    st.text(max_size=6),
)
SIZES = st.one_of(
    st.integers(-2, 5),
    st.sampled_from([2**31 - 1, 2**31, 2**40, 2**63 - 1, -(2**63), 0]),
    st.sampled_from(["n", "", "?"]),
)
SHAPES = st.one_of(st.none(), st.lists(SIZES, max_size=5), st.just([1] * 40))
DTYPES = st.sampled_from(sorted({*TensorProto.DataType.values(), 77} - {0}))
OPS = (
    "Relu", "Add", "MatMul", "Conv", "Reshape", "Transpose", "Softmax", "LayerNormalization", "Gelu", "Concat", "Split",
    "Gather", "ReduceMean", "Cast", "Slice", "TopK", "NonZero", "Resize", "Squeeze", "Unsqueeze", "Pad", "Erf",
    "QuantizeLinear", "DequantizeLinear", "Constant", "ConstantOfShape", "Range", "Shape", "Identity", "If", "Loop", "Scan",
    "LSTM", "Einsum", "NoSuchOp", "LayerNormGelu", "FusedRelu", "SequenceEmpty", "StringNormalizer",
    "InstanceNormalization", "Tile", "Expand", "Where",
)  # fmt: skip
VALUES = st.one_of(
    st.integers(-3, 5), st.sampled_from([2**31, 2**62, -(2**63)]), st.floats(width=32), st.text(max_size=4),
    st.lists(st.integers(-2, 7), max_size=4), st.lists(st.floats(width=32), min_size=1, max_size=3),
)  # fmt: skip
ATTRIBUTES = st.sampled_from(
    ["axis", "axes", "epsilon", "perm", "to", "kernel_shape", "pads", "strides", "keepdims", "approximate", "value_ints",
     "equation", "k", "group", "alpha", "hidden_size", "plugin_version", "plugin_namespace", "body", "bogus", ""]
)  # fmt: skip


UNARY = ("Relu", "Erf", "Identity", "Sigmoid", "Softmax", "Neg", "Gelu", "LogSoftmax", "Abs", "Flatten", "Transpose")
BINARY = ("Add", "Mul", "Sub", "Max", "Where", "MatMul", "Concat")


@st.composite
def sound(draw: st.DrawFn) -> bytes:
    """A model that ONNX takes, with strange names and sizes: most of these are to be built."""
    names = draw(st.lists(NAMES.filter(lambda name: name.strip("\0")), min_size=8, max_size=8, unique=True))
    shape = draw(st.sampled_from([[2, 4], [1], [], [3, 0, 2], ["n", 4], [1] * 8, [2] * 9, [2**20, 2**20], [4, 4]]))
    known, nodes = names[:2], []
    for i, name in enumerate(names[2 : 3 + draw(st.integers(0, 5))]):
        op = draw(st.sampled_from(UNARY + BINARY))
        inputs = [draw(st.sampled_from(known)) for _ in range(1 if op in UNARY else 3 if op == "Where" else 2)]
        node = helper.make_node(op, inputs, [name], name=draw(NAMES), **({"axis": 0} if op == "Concat" else {}))
        nodes.append(node if i or draw(st.booleans()) else helper.make_node("Identity", inputs[:1], [name]))
        known.append(name)
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names[:2]]
    output = helper.make_tensor_value_info(known[-1], TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, draw(NAMES), inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], producer_name=draw(NAMES))
    model.ir_version = 9
    return bytes(model.SerializeToString())


@st.composite
def models(draw: st.DrawFn) -> bytes:
    """A model of a few nodes, most of them on tensors that are there."""
    known = [*draw(st.lists(NAMES, min_size=1, max_size=3)), "x"]
    try:
        graph = _graph(draw, known, draw(st.integers(0, 2)))
    except DecodeError:  # deeper than protobuf reads
        reject()
    for name in dict.fromkeys(known):
        graph.input.append(_value(draw, name))
    for _ in range(draw(st.integers(0, 2))):
        graph.initializer.append(_tensor(draw, draw(NAMES)))
    opset = draw(st.sampled_from([1, 7, 11, 13, 17, 18, 20, 21, 23, 99, -1]))
    domains = [helper.make_opsetid(d, v) for d, v in (("", opset), (draw(NAMES), draw(st.integers(-1, 3))))]
    model = helper.make_model(graph, opset_imports=domains[: draw(st.integers(0, 2))])
    model.ir_version = draw(st.sampled_from([3, 4, 8, 10, 13, 999, 0]))
    if draw(st.booleans()):
        body = [helper.make_node(draw(st.sampled_from(OPS)), ["a"], ["b"])]
        model.functions.append(
            helper.make_function("acme", draw(st.sampled_from(OPS)), ["a"], ["b"], body, [helper.make_opsetid("", 17)])
        )
    many = draw(st.sampled_from([0] * 20 + [10_000]))
    model.graph.input.extend(helper.make_tensor_value_info(f"many_{i}", TensorProto.FLOAT, [1]) for i in range(many))
    return bytes(model.SerializeToString())


def _graph(draw: st.DrawFn, known: list[str], depth: int) -> onnx.GraphProto:
    nodes, tensors = [], [*known]
    for i in range(draw(st.integers(0, 5))):
        op = draw(st.sampled_from(OPS))
        inputs = [draw(st.sampled_from([*tensors, "later", ""])) for _ in range(draw(st.integers(0, 3)))]
        outputs = [draw(st.sampled_from([f"t{i}", "later", "x"])) for _ in range(draw(st.integers(0, 2)))]
        node = helper.make_node(
            op, inputs, outputs, name=draw(NAMES), domain=draw(st.sampled_from(["", "", "", "acme", "com.microsoft"]))
        )
        for name, value in draw(st.dictionaries(ATTRIBUTES, VALUES, max_size=2)).items():
            node.attribute.append(_attribute(name, value))
        if op in ("If", "Loop", "Scan") and depth:
            for name in ("then_branch", "else_branch") if op == "If" else ("body",):
                node.attribute.append(helper.make_attribute(name, _deep(draw, tensors, depth - 1)))
        nodes.append(node)
        tensors += outputs
    graph = helper.make_graph(nodes, "g", [], [])
    graph.output.extend(
        _value(draw, draw(st.sampled_from([*tensors, "nowhere"]))) for _ in range(draw(st.integers(0, 2)))
    )
    return graph


def _deep(draw: st.DrawFn, tensors: list[str], depth: int) -> onnx.GraphProto:
    """A graph inside, or one inside many others."""
    graph = _graph(draw, tensors, depth)
    for _ in range(draw(st.sampled_from([0, 0, 0, 3, 20]))):
        node = helper.make_node("If", [tensors[0]], ["d"])
        node.attribute.extend(
            [
                helper.make_attribute("then_branch", graph),
                helper.make_attribute("else_branch", helper.make_graph([], "e", [], [])),
            ]
        )
        graph = helper.make_graph([node], "d", [], [helper.make_tensor_value_info("d", TensorProto.FLOAT, None)])
    return graph


def _attribute(name: str, value: Any) -> onnx.AttributeProto:
    empty = isinstance(value, list) and not value
    return helper.make_attribute(name, value, attr_type=onnx.AttributeProto.INTS if empty else None)


def _value(draw: st.DrawFn, name: str) -> onnx.ValueInfoProto:
    shape, value = draw(SHAPES), onnx.ValueInfoProto(name=name)
    value.type.tensor_type.elem_type = draw(st.sampled_from([1, 1, 1, 10, 7])) if draw(st.booleans()) else draw(DTYPES)
    for size in shape or ():
        dim = value.type.tensor_type.shape.dim.add()
        if isinstance(size, str):
            dim.dim_param = size
        else:
            dim.dim_value = size
    return value


def _tensor(draw: st.DrawFn, name: str) -> TensorProto:
    """An initializer: right, of the wrong size, or with its data in a file that is not to be read."""
    tensor = numpy_helper.from_array(np.ones(draw(st.lists(st.integers(0, 4), max_size=3)), np.float32), name)
    kind = draw(st.sampled_from(["right", "right", "wrong size", "huge", "outside", "dtype"]))
    if kind == "wrong size":
        tensor.dims.append(7)
    elif kind == "huge":
        tensor.dims.extend([2**40, 2**40])
    elif kind == "dtype":
        tensor.data_type = draw(DTYPES)
    elif kind == "outside":
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        places = ["../secret", "/etc/passwd", "x/../../secret", "", "model.onnx", "\u0000", "."]
        for key, value in (
            ("location", draw(st.sampled_from(places))),
            ("offset", draw(st.sampled_from(["0", "-1", "9" * 30, "x"]))),
        ):
            tensor.external_data.add(key=key, value=value)
    return tensor


# --- running -------------------------------------------------------------------------------------------------------


def fuzz(kind: str, seconds: float, keep: Path, report: Callable[[str], None] = print) -> int:
    """Run for that long; the number of files that did harm. report: told of each, and of the counts."""
    strategy = mutated() if kind == "bytes" else st.one_of(models(), sound())
    child, counts, bad = Child(attempt, LIMIT_S), Counter[str](), 0
    end, start = time.monotonic() + seconds, int(time.time())

    def one(data: bytes) -> None:
        nonlocal bad
        if time.monotonic() > end:
            return
        status, answer = child(data)
        counts[answer if status == "ok" else status] += 1
        if status != "ok":
            bad += 1
            path = keep / f"fuzz_{kind}_{bad}.onnx"
            path.write_bytes(data)
            report(f"{status}: {answer} ({path})")

    while time.monotonic() < end:
        start += 1
        options = settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        seed(start)(options(given(strategy)(one)))()
    child.close()
    report(f"{kind}: {sum(counts.values())} files in {seconds:g} s: {dict(counts)}")
    return bad


def main() -> None:
    """Fuzz as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites.fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("kind", choices=("bytes", "models"))
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--folder", type=Path, default=Path())
    arguments = parser.parse_args()
    sys.exit(fuzz(arguments.kind, arguments.seconds, arguments.folder) > 0)


if __name__ == "__main__":
    main()
