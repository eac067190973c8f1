"""Faults that TensorRT makes without a word: another op, another name, another type, an empty engine. Avoided, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from onnxruntime import InferenceSession

from tests.conftest import Run, assert_clean_error
from tests.graphs import X, Y, built, graph, named, refused
from trtconvert import ConvertError, gpu
from trtconvert.backend import select, supports
from trtconvert.diagnosis import contract
from trtconvert.lower import lower
from trtconvert.manifest import IO

SIGMOID = '<domain: "acme", opset_import: ["" : 17]> Relu (a) => (b) { b = Sigmoid (a) }'
WHILE = """y = Loop ("", c, x) <body = body (int64 i, bool ci, float[2,4] v) => (bool co, float[2,4] w)
    { s = ReduceSum <keepdims = 0> (v)  co = Less (s, limit)  w = Add (v, v) }>"""
FOR = """y = Loop (t, "", x) <body = body (int64 i, bool ci, float[2,4] v) => (bool co, float[2,4] w)
    { co = Identity (ci)  w = Add (v, v) }>"""


def lowered(model: ModelProto) -> ModelProto:
    return lower(model, Path(), supports(select("rtx"))).model


def test_function_named_like_a_standard_op(tmp_path: Path) -> None:
    """The function's body is built, not the op of its name."""
    model = graph("y = acme.Relu (x)", functions=SIGMOID)
    nodes = [(n.domain, n.op_type) for n in lowered(model).graph.node]
    assert nodes == [("", "Sigmoid")]
    built(model, tmp_path)


def test_function_named_like_a_standard_op_inside_another(tmp_path: Path) -> None:
    outer = (
        '<domain: "acme", opset_import: ["" : 17, "acme" : 1]> Twice (a) => (c) { b = acme.Relu (a) c = acme.Relu (b) }'
    )
    model = graph("y = acme.Twice (x)", functions=outer + SIGMOID)
    assert [n.op_type for n in lowered(model).graph.node] == ["Sigmoid", "Sigmoid"]
    built(model, tmp_path)


def test_custom_op_named_like_a_standard_op(tmp_path: Path) -> None:
    text = refused(named(graph("y = acme.Relu (x)"), "mine"), tmp_path)
    for words in ("mine (acme::Relu)", "also a standard ONNX op"):
        assert words in text


@pytest.mark.parametrize("nodes", [WHILE, FOR])
def test_inputs_that_a_loop_reads(nodes: str, tmp_path: Path) -> None:
    """They keep their names and their order, and the Loop computes the same."""
    inputs = "bool c, float[2,4] x" if nodes == WHILE else "int64 t, float[2,4] x"
    model = graph(nodes, inputs, weights="float limit = {9}" if nodes == WHILE else "")
    result = built(model, tmp_path)
    assert [io.name for io in result.manifest.engine_inputs] == ["c" if nodes == WHILE else "t", "x"]
    feeds = {"x": np.full((2, 4), 0.1, np.float32), "c": np.asarray(True), "t": np.asarray(3, np.int64)}
    feeds = {name: feeds[name] for name in (i.name for i in model.graph.input)}
    expected, got = (InferenceSession(m.SerializeToString()).run(None, feeds)[0] for m in (model, lowered(model)))
    assert np.array_equal(expected, got)


@pytest.mark.parametrize("ir", [3, 8])
def test_weight_that_is_an_input_too(ir: int, tmp_path: Path) -> None:
    """A default value from IR 4 on: it is built in, and the build says so."""
    model = graph(
        "y = Add (x, w)", "float[2,4] x, float[4] w", weights="float[4] w = {1,2,3,4}", opset=9, ir=ir, domains=""
    )
    if not any(t.name == "w" for t in model.graph.initializer):
        model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [4], [1, 2, 3, 4]))
    result = built(model, tmp_path)
    assert [io.name for io in result.manifest.engine_inputs] == ["x"]
    assert any(notice.startswith("w: ") for notice in result.notices) == (ir >= 4)


@pytest.mark.parametrize(
    ("outputs", "words"), [("float[3,5] y", "dimension 0"), ("float[8] y", "rank"), ("float16[2,4] y", "float32")]
)
def test_output_declared_as_something_else(outputs: str, words: str, tmp_path: Path) -> None:
    text = refused(named(graph("y = Relu (x)", outputs=outputs), "relu_1"), tmp_path)
    assert words in text
    assert "relu_1" in text


def test_output_of_a_plugin_declared_as_something_else(tmp_path: Path) -> None:
    """ONNX cannot infer it; what the plugin makes is compared with what the model says."""
    text = refused(graph("y = acme.FusedRelu (x)", outputs="float[2,5] y"), tmp_path)
    assert "[2, 5]" in text
    assert "[2, 4]" in text
    text = refused(graph("y = acme.FusedRelu (x)", outputs="float16[2,4] y"), tmp_path)
    assert "float16" in text
    assert "float32" in text
    built(graph("y = acme.FusedRelu (x)", outputs="float[A,B] y"), tmp_path)


def test_model_without_nodes(tmp_path: Path, run: Run) -> None:
    assert "no nodes" in refused(graph("", outputs="float[2,4] x"), tmp_path)
    (tmp_path / "empty.onnx").write_bytes(b"")
    assert_clean_error(run("build", "empty.onnx"), "0 bytes")


def test_output_that_is_an_input(tmp_path: Path) -> None:
    text = refused(graph("y = Relu (x)", outputs=f"{Y}, {X}"), tmp_path)
    assert "x: this output is an input too" in text
    assert "Identity" in text


def test_output_that_is_a_weight(tmp_path: Path) -> None:
    model = graph("y = Relu (x)", outputs=f"{Y}, float[4] w", weights="float[4] w = {1,2,3,4}")
    assert [io.name for io in built(model, tmp_path).manifest.engine_outputs] == ["y", "w"]


def test_domain_without_an_operator_set(tmp_path: Path) -> None:
    model = named(graph("y = acme.FusedRelu (x)", domains=""), "mine")
    text = refused(model, tmp_path)
    for words in ("no opset_import", "'acme'", "mine (acme::FusedRelu)", "make_opsetid"):
        assert words in text
    model = graph("y = Relu (x)")
    del model.opset_import[:]
    assert "no opset_import for the standard ops" in refused(model, tmp_path)


def test_contract_of_a_parsed_network() -> None:
    model = graph("y = Relu (x)", "float[N,4] x", "float[N,4] y")
    x, y = IO("x", "float32", [-1, 4]), IO("y", "float32", [-1, 4])
    contract.check(model, [x], [y], "TensorRT")
    for inputs, outputs, words in (
        ([IO("ci", "float32", [-1, 4])], [y], "expected x, got ci"),
        ([x], [IO("y", "float16", [-1, 4])], "float16"),
        ([x], [IO("y", "float32", [4])], r"\[4\]"),
        ([x], [IO("y", "float32", [-1, 5])], "5"),
        ([x], [], "expected y"),
    ):
        with pytest.raises(ConvertError, match=words):
            contract.check(model, inputs, outputs, "TensorRT")


@pytest.mark.skipif(gpu.current() is not None, reason="asserts ahead-of-time builds, as on a CPU")
def test_contract_of_a_loaded_engine(tmp_path: Path) -> None:
    described = built(graph("y = Relu (x)"), tmp_path).manifest
    contract.check_loaded(described, described.engine_inputs, described.engine_outputs)
    for renamed in (IO("ci", "float32", [2, 4]), IO("x", "float16", [2, 4]), IO("x", "float32", [8])):
        with pytest.raises(ConvertError, match="its manifest says"):
            contract.check_loaded(described, [renamed], described.engine_outputs)


def test_nodes_get_names_before_they_are_parsed(tmp_path: Path) -> None:
    """So that TensorRT's own messages name a node."""
    names = [n.name for n in lowered(graph("a = Relu (x) b = Relu (a) y = Add (a, b)")).graph.node]
    assert len(set(names)) == 3
    assert all(names)
    onnx.checker.check_model(lowered(graph("a = Relu (x) y = Neg (a)")))
