"""If of known condition: the branch taken stands in its place, with the same outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from trtconvert import BuildOptions, build, gpu, reference
from trtconvert import model as onnx_model
from trtconvert.lowering import branches
from trtconvert.preflight import inspect_model
from trtconvert.shapes import parse

X = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
IF = """
    y = If ({condition}) <
        then_branch = t () => (float[M, N] a) {{ a = Neg (x) }},
        else_branch = e () => (float[M, N] a) {{ a = Abs (x) }}
    >
"""


def model(body: str, inputs: str = "float[2,4] x", outputs: str = "float[M,N] y", extra: str = "") -> ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({outputs}) {extra} {{ {body} }}'
    return onnx.parser.parse_model(text)


def assert_folds(original: ModelProto, expected: list[str], feed: dict[str, NDArray[Any]] | None = None) -> ModelProto:
    """These branches are taken, in this order; what is left is valid and computes the same."""
    folded = onnx_model.copy(original)
    assert [fold.branch for fold in branches.fold(folded)] == expected
    onnx.checker.check_model(folded, full_check=True)
    feed = feed or {"x": X}
    wanted = ReferenceEvaluator(original).run(None, feed)  # onnxruntime minds a name that comes again later
    for a, b in zip(wanted, reference.session(folded).run(None, feed), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.allclose(a, b, rtol=1e-5)
    return folded


def ops(folded: ModelProto) -> list[str]:
    return [node.op_type for node in folded.graph.node]


# --- conditions ------------------------------------------------------------------------------------------------------

ONE = "w = Constant <value_int = 1> ()"
FIRST = "s = Shape (x) k = Constant <value_int = 0> () d = Gather (s, k)"
CONDITIONS = [
    ("c = Constant <value = bool {1}> ()", "then"),
    ("c = Constant <value = bool {0}> ()", "else"),
    ("c = Constant <value = bool[1] {1}> ()", "then"),
    ("c = Constant <value = bool[1,1] {0}> ()", "else"),
    ("i = Constant <value_int = 1> () c = Cast <to = 9> (i)", "then"),
    ("i = Constant <value = bool {1}> () j = Not (i) c = Identity (j)", "else"),
    (f"{FIRST} w = Constant <value_int = 2> () c = Equal (d, w)", "then"),
    (f"s = Shape (x) k = Constant <value_ints = [1]> () d = Gather (s, k) {ONE} c = Equal (d, w)", "else"),
    ("s = Shape <start = 1> (x) w = Constant <value_ints = [4]> () c = Equal (s, w)", "then"),
    ("s = Size (x) w = Constant <value_int = 8> () c = Less (s, w)", "else"),
    ("s = Shape (x) f = Constant <value_ints = [-1]> () l = Constant <value_ints = [9]> () "
     "d = Slice (s, f, l) c = Equal (d, l)", "else"),
    (f"n = Neg (x) s = Shape (n) p = ReduceProd <keepdims = 0> (s) {ONE} c = Greater (p, w)", "then"),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "branch"), CONDITIONS)
def test_condition(condition: str, branch: str) -> None:
    """The branch is all that is left: what computed the condition goes too."""
    folded = assert_folds(model(condition + IF.format(condition="c")), [branch])
    assert ops(folded) == ["Neg" if branch == "then" else "Abs"]
    assert folded.graph.node[0].output == ["y"]


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("value", [True, False])
def test_initializer(value: bool, shape: tuple[int, ...]) -> None:
    original = model(IF.format(condition="c"))
    original.graph.initializer.append(numpy_helper.from_array(np.full(shape, value), "c"))
    folded = assert_folds(original, ["then" if value else "else"])
    assert not folded.graph.initializer


UNKNOWN = [
    ("float[2,4] x, bool c", ""),
    ("float[B,4] x", f"{FIRST} {ONE} c = Equal (d, w)"),
    ("float[2,4] x", "s = ReduceSum <keepdims = 0> (x) w = Constant <value = float {0}> () c = Less (s, w)"),
    ("float[2,4] x", "n = NonZero (x) s = Shape (n) f = Constant <value_ints = [1]> () d = Gather (s, f) c = Equal (d, f)"),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "condition"), UNKNOWN)
def test_unknown_condition_stays(inputs: str, condition: str) -> None:
    original = model(condition + IF.format(condition="c"), inputs)
    folded = onnx_model.copy(original)
    assert branches.fold(folded) == []
    assert folded == original


def test_an_initializer_that_is_an_input_is_only_a_default() -> None:
    original = model(IF.format(condition="c"), "float[2,4] x, bool c")
    original.graph.initializer.append(numpy_helper.from_array(np.asarray(True), "c"))
    assert branches.fold(onnx_model.copy(original)) == []


@pytest.mark.parametrize(("given", "expected"), [([2, None], ["else"]), ([1, 4], ["then"]), ([None, 4], [])])
def test_dimensions_from_the_profile(given: list[int | None], expected: list[str]) -> None:
    """A dimension that the engine has but the model leaves open decides; the model's input stays as it was."""
    inputs, condition = UNKNOWN[1]
    original = model(condition + IF.format(condition="c"), inputs)
    folded = onnx_model.copy(original)
    assert [fold.branch for fold in branches.fold(folded, shapes={"x": given})] == expected
    assert folded.graph.input == original.graph.input


def test_one_known_dimension_among_open_ones() -> None:
    condition = "s = Shape (x) k = Constant <value_int = 1> () d = Gather (s, k) w = Constant <value_int = 4> () c = Equal (d, w)"
    assert_folds(model(condition + IF.format(condition="c"), "float[B,4] x"), ["then"])


# --- branches ---------------------------------------------------------------------------------------------------------

TRUE = "c = Constant <value = bool {1}> ()"


@pytest.mark.parametrize(
    "outer", ["a = Relu (x) y0 = Add (y, a)", "z = Exp (a1) y0 = Mul (y, z)", "y0 = Identity (y) a = Relu (x)"]
)
def test_names_that_collide(outer: str) -> None:
    """A branch's own tensor is renamed where the graph has one of that name; captured ones keep theirs."""
    body = f"""{TRUE} a1 = Sin (x)
        y = If (c) <
            then_branch = t () => (float[2,4] b) {{ a2 = Neg (a1) b = Add (a2, x) }},
            else_branch = e () => (float[2,4] b) {{ a2 = Abs (x) b = Sub (a2, x) }}
        > {outer}"""
    original = model(body, outputs="float[2,4] y0")
    inner = original.graph.node[2].attribute[0].g
    inner.node[0].output[0] = inner.node[1].input[0] = "a"  # the graph's a comes after the If or before it
    if outer.startswith("a"):
        first = original.graph.node[3]
        assert first.output == ["a"]
    assert_folds(original, ["then"])


def test_two_ifs_with_the_same_names_inside() -> None:
    second = IF.format(condition="c").replace("y = If", "w = If").replace("(x)", "(y)")
    sum_ = "z = Add (w, y)"
    folded = assert_folds(model(TRUE + IF.format(condition="c") + second + sum_, outputs="float[M,N] z"), ["then"] * 2)
    assert ops(folded) == ["Neg", "Neg", "Add"]


@pytest.mark.parametrize("inner", ["b", "y", "w"])
@pytest.mark.parametrize("second", [0, 1])
def test_nested(second: int, inner: str) -> None:
    """An If in the branch taken is folded next; names inside it may equal those outside."""
    body = f"""{TRUE} d = Constant <value = bool {{{second}}}> ()
        y, w = If (c) <
            then_branch = t () => (float[2,4] p, float[2,4] q) {{
                p = Neg (x)
                q = If (d) <
                    then_branch = tt () => (float[2,4] {inner}) {{ {inner} = Exp (p) }},
                    else_branch = te () => (float[2,4] k) {{ k = Sin (p) }}
                >
            }},
            else_branch = e () => (float[2,4] p, float[2,4] q) {{ p = Abs (x) q = Identity (x) }}
        >"""
    original = model(body, outputs="float[2,4] y, float[2,4] w")
    folded = onnx_model.copy(original)
    assert [fold.branch for fold in branches.fold(folded)] == ["then", "then" if second else "else"]
    onnx.checker.check_model(folded, full_check=True)
    y, w = reference.session(folded).run(None, {"x": X})
    assert np.array_equal(y, -X)
    assert np.allclose(w, np.exp(-X) if second else np.sin(-X), rtol=1e-6)
    assert "If" not in ops(folded)


@pytest.mark.parametrize("inner", ["b", "y", "w"])
def test_nested_with_an_unknown_condition_stays_inside(inner: str) -> None:
    body = f"""{TRUE}
        y, w = If (c) <
            then_branch = t () => (float[2,4] p, float[2,4] q) {{
                p = Neg (x)
                q = If (d) <
                    then_branch = tt () => (float[2,4] {inner}) {{ {inner} = Exp (p) }},
                    else_branch = te () => (float[2,4] k) {{ k = Sin (p) }}
                >
            }},
            else_branch = e () => (float[2,4] p, float[2,4] q) {{ p = Abs (x) q = Identity (x) }}
        >"""
    original = model(body, "float[2,4] x, bool d", "float[2,4] y, float[2,4] w")
    folded = onnx_model.copy(original)
    assert [fold.branch for fold in branches.fold(folded)] == ["then"]
    onnx.checker.check_model(folded, full_check=True)
    for d in (True, False):
        y, w = reference.session(folded).run(None, {"x": X, "d": np.asarray(d)})
        assert np.array_equal(y, -X)
        assert np.allclose(w, np.exp(-X) if d else np.sin(-X), rtol=1e-6)


def test_outputs_that_no_node_of_the_branch_makes() -> None:
    """An initializer of the branch, a captured tensor, and one tensor as two outputs."""
    body = f"""{TRUE}
        y, w, v, u = If (c) <
            then_branch = t () => (float[2,4] k, float[2,4] x1, float[2,4] p, float[2,4] p2) {{
                x1 = Identity (x) p = Neg (x) p2 = Identity (p)
            }},
            else_branch = e () => (float[2,4] x2, float[2,4] x3, float[2,4] x4, float[2,4] x5) {{
                x2 = Abs (x) x3 = Abs (x) x4 = Abs (x) x5 = Abs (x)
            }}
        >"""
    original = model(body, outputs="float[2,4] y, float[2,4] w, float[2,4] v, float[2,4] u")
    then = original.graph.node[1].attribute[0].g
    then.initializer.append(numpy_helper.from_array(X * 2, "k"))
    del then.node[2], then.node[0]
    then.output[1].name, then.output[3].name = "x", "p"
    folded = onnx_model.copy(original)
    branches.fold(folded)
    onnx.checker.check_model(folded, full_check=True)
    y, w, v, u = reference.session(folded).run(None, {"x": X})
    assert all(np.array_equal(a, b) for a, b in ((y, X * 2), (w, X), (v, -X), (u, -X)))


def test_an_output_that_nobody_asks_for() -> None:
    original = model(TRUE + IF.format(condition="c").replace("y = If", "y, w = If"))
    for attribute in original.graph.node[1].attribute:
        attribute.g.output.add().CopyFrom(attribute.g.output[0])
    original.graph.node[1].output[1] = ""
    folded = onnx_model.copy(original)
    branches.fold(folded)
    assert ops(folded) == ["Neg"]


def test_what_only_the_dead_branch_read_goes() -> None:
    """Node and weights; what nobody read before stays."""
    body = f"{TRUE} o = Sin (x) n = Add (x, k)" + IF.format(condition="c").replace("Abs (x)", "Abs (n)")
    original = model(body)
    original.graph.initializer.append(numpy_helper.from_array(X, "k"))
    folded = assert_folds(original, ["then"])
    assert ops(folded) == ["Sin", "Neg"]
    assert not folded.graph.initializer


def test_in_the_body_of_a_loop() -> None:
    """The condition comes from the graph around it."""
    branch = IF.format(condition="k").replace("y = If", "r = If").replace("(x)", "(v)")
    body = f"""n = Constant <value_int = 3> () k = Constant <value = bool {{1}}> () t = Constant <value = bool {{1}}> ()
        y = Loop (n, t, x) <body = b (int64 i, bool ci, float[2,4] v) => (bool co, float[2,4] r) {{
            co = Identity (ci) {branch}
        }}>"""
    folded = assert_folds(model(body, outputs="float[2,4] y"), ["then"])
    assert [node.op_type for node in onnx_model.all_nodes(folded)].count("Neg") == 1


# --- the tool -----------------------------------------------------------------------------------------------------------

SQUEEZE = """s = Shape (x) k = Constant <value_int = 0> () d = Gather (s, k) one = Constant <value_int = 1> ()
    c = Equal (d, one) axes = Constant <value_ints = [0]> ()
    y = If (c) <
        then_branch = t () => (float[M,N] a) { a = Squeeze (x, axes) },
        else_branch = e () => (float[B,M,N] b) { b = Identity (x) }
    >"""


@pytest.mark.skipif(gpu.current() is not None, reason="asserts ahead-of-time builds, as on a CPU")
@pytest.mark.parametrize(
    ("inputs", "outputs", "shape"),
    [
        ("float[1,2,4] x", "float[2,4] y", None),
        ("float[3,2,4] x", "float[3,2,4] y", None),
        ("float[B,2,4] x", "float[M,N] y", "x=1x2x4"),
    ],
)
def test_branches_of_different_rank_build(inputs: str, outputs: str, shape: str | None, tmp_path: Path) -> None:
    """What an exporter writes for squeeze(): TensorRT alone parses it and fails to build."""
    path = tmp_path / "m.onnx"
    onnx.save(model(SQUEEZE, inputs, outputs), path)
    options = BuildOptions(targets=("sm_86",), shapes=parse([shape]) if shape else {})
    result = build(path, options=options)
    taken = "else" if "[3" in inputs else "then"
    assert result.notices[-1] == f"If y: its condition is constant, the {taken} branch was taken"


def test_inspect_agrees(tmp_path: Path) -> None:
    """Nodes of a branch that is never taken are no obstacle."""
    path = tmp_path / "m.onnx"
    original = model(TRUE + IF.format(condition="c"))
    original.graph.node[1].attribute[1].g.node[0].CopyFrom(helper.make_node("Acme", ["x"], ["a"], domain="acme"))
    original.opset_import.append(helper.make_opsetid("acme", 1))
    onnx.save(original, path)
    found = [(n.op, n.status) for n in inspect_model(path).nodes]
    assert ("If", "folded") in found
    assert ("acme::Acme", "folded") in found
    assert ("Neg", "native") in found
    assert "unsupported" not in dict(found).values()
