"""What TensorRT does not take is told before anything is built: every node, its path, the reason and the way out."""

from __future__ import annotations

import importlib
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.conftest import Run, assert_clean_error
from tests.graphs import Y, built, graph, named, refused, save
from trtconvert import BuildOptions, ConvertError, gpu
from trtconvert.backend import select, supports
from trtconvert.diagnosis import notices
from trtconvert.lower import lower
from trtconvert.preflight import inspect_model

LOOP = """y, q = Loop (t, "", x) <body = body (int64 i, bool ci, float[3,3] v) => (bool co, float[3,3] w, float d)
    { co = Identity (ci)  w = Add (v, v)  d = Det (v) }>"""
SQUEEZE = """y = If (c) <then_branch = t () => (float[2,4] a) <int64[1] axes = {0}> { a = Squeeze (x, axes) },
    else_branch = e () => (float[1,2,4] b) { b = Identity (x) }>"""
BRANCHES = """y = If (c) <then_branch = t () => (float[A,4] a) <int64[1] s = {0}, int64[1] e = {1}> { a = Slice (x, s, e) },
    else_branch = e () => (float[2,4] b) { b = Neg (x) }>"""


def test_every_failing_node_is_named(tmp_path: Path, run: Run) -> None:
    """Of a standard op, a custom one, a limit that only the builder has, and a type: all in one message, and in inspect."""
    model = named(
        graph(
            "d = Det (a) m = acme.MyGelu (x) t, i = TopK (m, k) q = StringNormalizer (s)",
            "float[2,6000] x, float[2,3,3] a, string[2] s",
            "float[2] d, float[2,5000] t, string[2] q",
            "int64[1] k = {5000}",
        ),
        "det_1", "gelu_1", "top_1", "words_1",
    )  # fmt: skip
    text = refused(model, tmp_path)
    for words in (
        "node det_1 (Det): a standard op",
        "node gelu_1 (acme::MyGelu)",
        "node top_1 (TopK): k is 5000, TensorRT takes at most 3840",
        "node words_1 (StringNormalizer): TensorRT has no strings",
        "s: this input is string",
        "q: this output is string",
        "plugin named Det",
    ):
        assert words in text
    report = inspect_model(save(model, tmp_path))
    assert [n.status for n in report.nodes] == ["unsupported"] * 4
    assert report.totals == {"unsupported": 4}
    assert [fault.node for fault in report.faults] == ["s", "q"]
    result = run("inspect", "model.onnx")
    assert result.returncode == 0
    assert "Unsupported ONNX data type" not in result.stdout + result.stderr  # the parser's own words
    for words in ("det_1 (Det)", "gelu_1", "k is 5000", "fix: use k <= 3840", "4 nodes are unsupported"):
        assert words in result.stdout
    found = json.loads(run("inspect", "model.onnx", "--json").stdout)
    assert {node["status"] for node in found["nodes"]} == {"unsupported"}
    assert found["totals"] == {"unsupported": 4}
    assert all(node["detail"] and node["fix"] for node in found["nodes"])


def test_path_through_subgraphs(tmp_path: Path) -> None:
    model = named(graph(LOOP, "float[3,3] x", "float[3,3] y, float[5] q", "int64 t = {5}"), "loop_1")
    model.graph.node[0].attribute[0].g.node[2].name = "det_in"
    assert "node loop_1/body/det_in (Det)" in refused(model, tmp_path)
    found = {n.node: n.status for n in inspect_model(save(model, tmp_path)).nodes}
    assert found["loop_1/body/det_in"] == "unsupported"
    assert found["loop_1"] == "native"


def test_path_through_functions(tmp_path: Path) -> None:
    function = '<domain: "acme", opset_import: ["" : 17]> Area (a) => (b) { b = Det (a) }'
    model = graph(
        "c = acme.Area (x) d = acme.Area (x) y = Add (c, d)", "float[2,3,3] x", "float[2] y", functions=function
    )
    text = refused(model, tmp_path)
    assert "Area/Det" in text
    assert text.count("a standard op") == 1
    found = {n.node: n.status for n in inspect_model(save(model, tmp_path)).nodes}
    assert found["acme::Area/Det"] == "unsupported"
    assert sorted(found.values()) == ["expanded", "expanded", "native", "unsupported"]


def test_statuses(tmp_path: Path) -> None:
    """Each of the five, and the parameters that are computed before."""
    model = named(
        graph(
            "n = Neg (one) r = ReduceMean (x, n) p = acme.FusedRelu (r) h = HardSwish (p) u = acme.Mystery (h) y = Identity (u)",
            outputs="float[2,1] y",
            weights="int64[1] one = {1}",
            opset=18,
        ),
        "neg", "mean", "relu", "swish", "mystery", "copy",
    )  # fmt: skip
    report = inspect_model(save(model, tmp_path))
    found = {n.node: n.status for n in report.nodes}
    assert found.pop("swish") in ("native", "expanded")
    assert found == {
        "neg": "folded",
        "mean": "native",
        "relu": "plugin",
        "mystery": "unsupported",
        "copy": "native",
    }
    details = {n.node: n.detail for n in report.nodes}
    assert "plugin FusedRelu version 1 from " in details["relu"]
    assert sum(report.totals.values()) == 6


def test_nothing_is_made_of_a_model_that_is_refused(tmp_path: Path) -> None:
    model = graph("t, i = TopK (x, k) y = Relu (t)", "float[2,6000] x", "float[2,5000] y", "int64[1] k = {5000}")
    assert "3840" in refused(model, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


# --- limits --------------------------------------------------------------------------------------------------------


def test_topk_at_its_limit(tmp_path: Path) -> None:
    model = graph("y, i = TopK (x, k)", "float[2,6000] x", "float[2,3840] y, int64[2,3840] i", "int64[1] k = {3840}")
    built(model, tmp_path)


def test_topk_of_a_computed_k(tmp_path: Path) -> None:
    """k as exporters write it: min(k, size)."""
    nodes = "s = Shape (x) n = Gather (s, one) k = Div (n, two) y, i = TopK (x, k)"
    text = refused(
        graph(nodes, "float[2,8000] x", "float[2,4000] y", "int64[1] one = {1}, int64[1] two = {2}"), tmp_path
    )
    assert "k is 4000" in text


@pytest.mark.parametrize(
    ("nodes", "outputs", "words"),
    [
        ("s = SequenceConstruct (x, x) y = ConcatFromSequence <axis=0> (s)", "float[4,4] y", "no sequences"),
        ("s = SplitToSequence (x) y = SequenceAt (s, zero)", "float[1,4] y", "no sequences"),
        ("o = Optional (x) y = OptionalGetElement (o)", Y, "no optional values"),
    ],
)
def test_sequences(nodes: str, outputs: str, words: str, tmp_path: Path) -> None:
    model = graph(nodes, outputs=outputs, weights="int64 zero = {0}", opset=18)
    text = refused(model, tmp_path)
    assert words in text
    for node in model.graph.node:
        assert f"({node.op_type})" in text


# --- opset and structure -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", ["initializer", "computed", "noop"])
def test_axes_as_an_input(axes: str, tmp_path: Path) -> None:
    nodes = {
        "initializer": "y = ReduceMean (x, a)",
        "computed": "b = Neg (a) y = ReduceMean (x, b)",
        "noop": "y = ReduceMean <noop_with_empty_axes = 1> (x, e)",
    }[axes]
    weights = "int64[0] e = {}" if axes == "noop" else "int64[1] a = {1}"
    shape = [2, 4] if axes == "noop" else [2, 1]
    model = graph(nodes, outputs=f"float[2,{shape[1]}] y", weights=weights, opset=18)
    assert built(model, tmp_path).manifest.engine_outputs[0].shape == shape


def test_axes_at_run_time(tmp_path: Path) -> None:
    model = named(graph("y = ReduceMean (x, a)", "float[2,4] x, int64[1] a", "float[2,1] y", opset=18), "mean_1")
    text = refused(model, tmp_path)
    assert "node mean_1 (ReduceMean): its axes (a) are known only at run time" in text
    assert "--bake a=" in text


def test_axes_attribute_in_an_opset_that_has_none(tmp_path: Path) -> None:
    model = named(graph("y = ReduceMean <axes = [1]> (x)", outputs="float[2,1] y", opset=18), "mean_1")
    text = refused(model, tmp_path)
    for words in ("axes", "ReduceMean", "opset 18", "mean_1", "version_converter"):
        assert words in text


def test_versions_that_nobody_knows(tmp_path: Path) -> None:
    newest = onnx.defs.onnx_opset_version()
    model = graph("y = Relu (x)")
    model.opset_import[0].version = newest + 1
    text = refused(model, tmp_path)
    assert f"opset {newest + 1}" in text
    assert str(newest) in text.replace(str(newest + 1), "")
    model = graph("y = Relu (x)")
    model.ir_version = onnx.IR_VERSION + 1
    text = refused(model, tmp_path)
    assert f"IR version {onnx.IR_VERSION + 1}" in text
    assert f"known here is {onnx.IR_VERSION}" in text


def test_ops_newer_than_the_parser(tmp_path: Path) -> None:
    """Only those whose meaning may have changed are told."""
    backend = select("rtx")
    assert not notices.notices(graph("y = Relu (x)", opset=26, ir=13), backend)
    newer = graph("y = Cast <to = 1> (x)", opset=26, ir=13)
    since = onnx.defs.get_schema("Cast", 26, "").since_version
    told = notices.notices(newer, backend)
    assert bool(told) == (since > 24)
    if told:
        assert f"Cast (version {since})" in told[0]


def test_names(tmp_path: Path) -> None:
    """Two nodes of one name, nodes without, empty optional outputs: all build."""
    built(named(graph("a = Relu (x) y = Relu (a)"), "same", "same"), tmp_path)
    built(graph("a = Relu (x) y = Relu (a)"), tmp_path)
    model = graph("a = LayerNormalization (x, s) y = LayerNormalization (a, s)", weights="float[4] s = {1,1,1,1}")
    for node in model.graph.node:
        node.output.extend(["", ""])
    built(model, tmp_path)


def test_tensor_that_two_nodes_make(tmp_path: Path) -> None:
    model = graph("a = Relu (x) b = Neg (x) y = Add (a, x)")
    model.graph.node[1].output[0] = "a"
    text = refused(named(model, "first", "second", "sum"), tmp_path)
    for words in ("'a'", "first (Relu)", "second (Neg)"):
        assert words in text


def test_order_of_nodes(tmp_path: Path) -> None:
    """Only the order is wrong: mended. A ring: refused, with the nodes in it and no others."""
    built(graph("y = Relu (a) a = Neg (x)"), tmp_path)
    model = named(graph("a = Relu (b) b = Neg (a) y = Add (x, b)"), "one", "two", "three")
    text = refused(model, tmp_path)
    for words in ("wait for each other", "one (Relu)", "two (Neg)"):
        assert words in text
    assert "three" not in text


def test_order_of_nodes_inside_a_branch(tmp_path: Path) -> None:
    nodes = """y = If (c) <then_branch = t () => (float[2,4] a) { a = Relu (b) b = Neg (x) },
        else_branch = e () => (float[2,4] d) { d = Identity (x) }>"""
    built(graph(nodes, "bool c, float[2,4] x"), tmp_path)


# --- control flow --------------------------------------------------------------------------------------------------


def test_branches_of_different_rank(tmp_path: Path) -> None:
    """Known before the build where the condition is not; TensorRT alone says so after it."""
    model = named(graph(SQUEEZE, "bool c, float[1,2,4] x", "float[M,N] y"), "if_1")
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    text = refused(model, tmp_path)
    for words in ("node if_1 (If)", "2 (then) and 3 (else) dimensions", "(c)", "--bake c="):
        assert words in text


@pytest.mark.parametrize("weights", ["bool c = {1}", "bool[1] c = {1}"])
def test_condition_that_is_constant(weights: str, tmp_path: Path) -> None:
    result = built(graph(SQUEEZE, "float[1,2,4] x", "float[2,4] y", weights), tmp_path)
    assert result.manifest.engine_outputs[0].shape == [2, 4]


@pytest.mark.parametrize("shape", ["", "[1]"])
def test_branches_of_one_rank(shape: str, tmp_path: Path) -> None:
    model = graph(BRANCHES, f"bool{shape} c, float[2,4] x", "float[A,4] y")
    assert built(model, tmp_path).manifest.engine_outputs[0].shape == [-1, 4]


# --- training, quantization ----------------------------------------------------------------------------------------


def test_quantization_to_uint8(tmp_path: Path) -> None:
    """TensorRT-RTX reads it as int8 and says so in a warning: numbers from 128 on would be wrong."""
    model = named(
        graph("q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)", weights="float s = {0.1}, uint8 z = {0}"),
        "quant", "dequant",
    )  # fmt: skip
    text = refused(model, tmp_path)
    for words in ("uint8", "read as int8", "quant", "dequant"):
        assert words in text


def test_zero_points(tmp_path: Path) -> None:
    nodes = "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)"
    text = refused(graph(nodes, weights="float s = {0.1}, int8 z = {3}"), tmp_path)
    assert "zero point is not 0" in text
    built(graph(nodes, weights="float s = {0.1}, int8 z = {0}"), tmp_path)


# --- element types -------------------------------------------------------------------------------------------------


def typed(nodes: str, elem_type: int, opset: int = 17, ir: int = 8) -> ModelProto:
    model = graph(nodes, opset=opset, ir=ir)
    model.graph.input[0].type.tensor_type.elem_type = elem_type
    return model


@pytest.mark.parametrize(
    "nodes",
    [
        "a = Cast <to = 1> (x) y = Relu (a)",
        "a = Transpose <perm = [0,1]> (x) y = Cast <to = 1> (a)",
        "a = Add (x, x) y = Cast <to = 1> (a)",
    ],
)
def test_uint8_input(nodes: str, tmp_path: Path) -> None:
    """It stays uint8. What reads it before a Cast does computes in int32 then, and the same, past 255 too."""
    model = typed(nodes, TensorProto.UINT8)
    result = built(model, tmp_path)
    assert result.manifest.engine_inputs[0].dtype == "uint8"
    feeds = {"x": np.arange(0, 256, 32, dtype=np.uint8).reshape(2, 4)}
    other = lower(model, Path(), supports(select("rtx"))).model
    expected, got = (ReferenceEvaluator(m).run(None, feeds)[0] for m in (model, other))
    assert np.array_equal(expected, got)


@pytest.mark.parametrize("name", ["INT16", "UINT16", "UINT32", "UINT64"])
def test_types_that_tensorrt_lacks(name: str, tmp_path: Path, run: Run) -> None:
    path = save(typed("y = Cast <to = 1> (x)", getattr(TensorProto, name)), tmp_path)
    result = run("build", path)
    assert_clean_error(result, f"x: this input is {name.lower()}", "int32" if "16" in name else "int64")
    assert "Unsupported ONNX data type" not in result.stdout + result.stderr


def test_string(tmp_path: Path) -> None:
    text = refused(graph("y = Identity (x)", "string[2] x", "string[2] y"), tmp_path)
    assert "x: this input is string" in text


def test_bool(tmp_path: Path) -> None:
    result = built(graph("y = Where (c, x, x)", "bool[2,4] c, float[2,4] x"), tmp_path)
    assert result.manifest.engine_inputs[0].dtype == "bool"


def test_float64(tmp_path: Path) -> None:
    """The engine's inputs are float32, and the build says so."""
    result = built(graph("y = Relu (x)", "double[2,4] x", "double[2,4] y"), tmp_path)
    assert result.manifest.onnx_inputs[0].dtype == "float64"
    assert result.manifest.engine_inputs[0].dtype == "float32"
    assert any("input 'x' is float64 in the model, float32 in the engine" in notice for notice in result.notices)


def test_float8_input(tmp_path: Path) -> None:
    """TensorRT's parser takes it, its builder does not."""
    text = refused(typed("y = Cast <to = 1> (x)", TensorProto.FLOAT8E4M3FN, 19, 9), tmp_path)
    assert "x: this input is float8e4m3fn" in text
    assert "DequantizeLinear" in text


def test_int64(tmp_path: Path) -> None:
    """Sentinels of slices do no harm, large values stay, ids are fed as int64."""
    built(graph("y = Slice (x, s, e)", weights=f"int64[1] s = {{0}}, int64[1] e = {{{2**63 - 1}}}"), tmp_path)
    built(
        graph(
            "y = Slice (x, s, e, a)", weights=f"int64[1] s = {{0}}, int64[1] e = {{{2**63 - 1}}}, int64[1] a = {{1}}"
        ),
        tmp_path,
    )
    large = built(graph("y = Add (x, w)", "int64[2,4] x", "int64[2,4] y", f"int64[1] w = {{{2**40}}}"), tmp_path)
    assert large.manifest.engine_outputs[0].dtype == "int64"
    weights = "float[5,3] w = {" + ", ".join("1" * 15) + "}"
    ids = built(graph("y = Gather (w, i)", "int64[B,4] i", "float[B,4,3] y", weights), tmp_path)
    assert ids.manifest.engine_inputs[0].dtype == "int64"


@pytest.mark.parametrize(
    ("nodes", "dtype", "words"),
    [
        ("y = Add (x, w)", "float", ("sum_1 (Add)", "w is float16", "store w as float32")),
        (
            "y = LayerNormalization (x, w)",
            "float16",
            ("sum_1 (LayerNormalization)", "w is float32", "store w as float16"),
        ),
        ("y = PRelu (x, w)", "float16", ("sum_1 (PRelu)", "w is float32", "store w as float16")),
    ],
)
def test_mixed_types(nodes: str, dtype: str, words: tuple[str, ...], tmp_path: Path) -> None:
    other = np.float16 if dtype == "float" else np.float32
    model = named(graph(nodes, f"{dtype}[2,4] x", f"{dtype}[2,4] y"), "sum_1")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, other), "w"))
    text = refused(model, tmp_path)
    for word in words:
        assert word in text
    unnamed = graph(nodes, f"{dtype}[2,4] x", f"{dtype}[2,4] y")
    unnamed.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, other), "w"))
    assert f"node {model.graph.node[0].op_type}_y" in refused(unnamed, tmp_path)


def test_constants_that_are_no_numbers(tmp_path: Path) -> None:
    model = graph("y = Add (x, w)")
    model.graph.initializer.append(
        helper.make_tensor("w", TensorProto.FLOAT, [4], [float("nan"), 1.0, float("inf"), float("-inf")])
    )
    built(model, tmp_path)


@pytest.mark.parametrize("start", ["one", "k"])
def test_long_chains(start: str, tmp_path: Path) -> None:
    """Values are worked out through thousands of nodes, without as many calls of Python inside each other."""
    names = [start, *(f"t{i}" for i in range(3000))]
    nodes = [helper.make_node("Neg", [a], [b]) for a, b in pairwise(names)]
    model = graph("y = ReduceMean (x, a)", "float[2,4] x, int64[1] k", "float[2,1] y", "int64[1] one = {1}", opset=18)
    model.graph.node[0].input[1] = names[-1]
    nodes += model.graph.node
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    if start == "one":
        del model.graph.input[1:]
        built(model, tmp_path)
    else:
        assert "known only at run time" in refused(model, tmp_path)


def test_refused_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fusions are timed on a GPU, that takes long: the preflight comes before it."""
    path = save(
        graph("t, i = TopK (x, k) y = Relu (t)", "float[2,6000] x", "float[2,5000] y", "int64[1] k = {5000}"), tmp_path
    )
    here = gpu.current() or gpu.Gpu("a GPU", "sm_89", (13, 0))
    build_module = importlib.import_module("trtconvert.build")  # the package has a function of that name
    monkeypatch.setattr(gpu, "current", lambda: here)

    def measured(*_: object) -> None:
        raise AssertionError("something was measured")

    monkeypatch.setattr(build_module, "Trials", measured)
    with pytest.raises(ConvertError, match="3840"):
        build_module.build(path, options=BuildOptions(targets=(here.arch,)))


def test_inspect_of_open_shapes(tmp_path: Path, run: Run) -> None:
    """What a build would ask for is told, and nothing is called unsupported for want of it."""
    save(graph("y = Relu (x)", "float[N,L,4] x", "float[N,L,4] y"), tmp_path)
    result = run("inspect", "model.onnx")
    assert "to build it: dynamic dimensions without a range: x [N, L, 4]: add" in result.stdout
    assert "--shape x=" in result.stdout
    assert "TensorRT can import every node" in result.stdout
    report = inspect_model(save(graph("y = Squeeze (x)", "float[N,1,4] x", "float[N,4] y"), tmp_path))
    assert report.totals == {"native": 1} or report.nodes[0].fix


# --- files that ended the process ----------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", [["x"], ["x", "s", "s"]], ids=["refused anyway", "as the op takes them"])
def test_a_plugin_node_without_outputs(inputs: list[str], tmp_path: Path, run: Run) -> None:
    """TensorRT's parser ends the process at it."""
    nodes = [
        helper.make_node("LayerNormGelu", ["x", "s", "s"], ["y"], domain="trtconvert"),
        helper.make_node("LayerNormGelu", inputs, [], "idle", domain="trtconvert"),
    ]
    given = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [2, 3]), ("s", [3]))
    ]
    graph = helper.make_graph(nodes, "g", given, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("trtconvert", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    told = "it has no outputs" if len(inputs) > 1 else "it has 1 inputs, the op takes 3"
    inspected, built = run("inspect", tmp_path / "m.onnx"), run("build", tmp_path / "m.onnx")
    assert f"idle (trtconvert::LayerNormGelu): {told}" in inspected.stdout.replace(
        "(LayerNormGelu)", "(trtconvert::LayerNormGelu)"
    )
    assert built.returncode == 1
    assert told in built.stderr
    assert not (tmp_path / "m.plan").exists()


def test_a_doc_string_that_is_no_text(tmp_path: Path, run: Run) -> None:
    """It says nothing of the model, so it is no reason to refuse it."""
    node = helper.make_node("Relu", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    model.doc_string = "MARK" * 3
    data = model.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data.replace(b"MARK" * 3, bytes([0x90]) * 12))
    built = run("build", tmp_path / "m.onnx", "--target", "sm_89")
    assert built.returncode == 0, built.stderr
