"""`--precision`: what is converted, what stays in float32 and why, and that the result computes the same."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper
from onnxruntime.transformers.float16 import convert_float_to_float16

from tests.conftest import SAMPLES, Run, assert_clean_error
from tests.graphs import graph, layer_norm, refused, save
from trtconvert import BuildOptions, ConvertError, build, reference
from trtconvert import model as onnx_model
from trtconvert.accuracy.references import twin_of
from trtconvert.bodies import add_bodies
from trtconvert.custom_ops.custom import Custom
from trtconvert.diagnosis import structure
from trtconvert.fuse import fuse_model
from trtconvert.inputs import random_feeds
from trtconvert.manifest import model_io, read
from trtconvert.precision.convert import Conversion, Converted
from trtconvert.precision.kinds import KINDS
from trtconvert.precision.options import PrecisionOptions
from trtconvert.precision.prepare import views
from trtconvert.registry import by_pattern
from trtconvert.shapes import Profile, Range, profile

HERE = Path()
BOUND = {"fp16": 3e-3, "bf16": 3e-2}  # relative L2
FLOATS = ("convnextv2_block", "custom_relu", "ln_gelu_opset20", "near_miss", "pvt_mlp_dynamo", "resnet_block",
          "sam_upscaler", "tanh_gelu", "vit_block", "wav2vec2_features", "keras_ln_gelu")  # fmt: skip

IN_FP16_ONLY = ("near_miss", "tanh_gelu", "ln_gelu_opset20", "wav2vec2_features")  # `tests.suites.precision` has all


def options(name: str, **more: Any) -> PrecisionOptions:
    return PrecisionOptions(name, **more)


def fast(name: str, fuse: str = "none", **more: Any) -> BuildOptions:
    return BuildOptions(targets=("sm_89",), fuse=fuse, precision=PrecisionOptions(name, **more))


def converted(model: ModelProto, name: str, folder: Path = HERE, **more: Any) -> Converted:
    found = Conversion(options(name, **more), model, folder, Profile({}), Custom())
    return found.apply(model, Profile({}))


def kept(made: Converted) -> dict[str, str]:
    return {node.op: node.reason for node in made.kept}


def error(got: NDArray[Any], expected: NDArray[Any]) -> float:
    a, b = got.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def run(model: ModelProto, feeds: dict[str, Any], folder: Path = HERE) -> dict[str, NDArray[Any]]:
    return reference.run(model, folder, feeds)


def dtypes(model: ModelProto) -> set[str]:
    """Of the float tensors that nodes make."""
    found = {view.info(name).dtype for view in views(model, HERE) for name in view.producers}
    return {dtype for dtype in found if "float" in dtype}


# --- LayerNorm that overflows --------------------------------------------------------------------------------------


X = {"x": np.random.default_rng(1).standard_normal((2, 8, 768)).astype(np.float32)}


def test_plain_conversion_overflows() -> None:
    """onnxruntime's converter with its default options, computed as a GPU would: the variance is Inf, the result is lost."""
    plain = convert_float_to_float16(layer_norm(), keep_io_types=True)
    structure.settle(plain, "plain")
    twin = twin_of(plain)
    twin.graph.output.append(helper.make_tensor_value_info("variance", TensorProto.FLOAT, None))
    outputs = run(twin, X)
    assert np.isinf(outputs["variance"]).all()
    assert error(outputs["y"], run(layer_norm(), X)["y"]) > 0.5


def test_nodes_that_overflow_stay() -> None:
    made = converted(layer_norm(), "fp16")
    assert {node.node for node in made.kept} == {"square", "variance", "sum", "std"}
    assert "65504" in kept(made)["Pow"]
    expected = run(layer_norm(), X)["y"]
    for model in (made.model, twin_of(made.model)):
        got = run(model, X)["y"]
        assert got.dtype == np.float32
        assert error(got, expected) < 1e-3


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_fused_nodes_need_no_island(name: str) -> None:
    source, fused = layer_norm(), layer_norm()
    assert len(fuse_model(fused, HERE, by_pattern(())).fusions) == 1
    made = Conversion(options(name), source, HERE, Profile({})).apply(fused, Profile({}))
    assert made.kept == []
    assert dtypes(made.model) - {"float32"} == {KINDS[name].dtype}
    (body,) = made.model.functions
    assert [n.op_type for n in body.node if n.op_type == "Cast"], "the body computes in float32 inside"
    assert error(run(twin_of(made.model), X)["y"], run(source, X)["y"]) < BOUND[name]
    if name == "fp16":
        assert error(run(made.model, X)["y"], run(source, X)["y"]) < BOUND[name]


def test_without_large_values_nothing_stays() -> None:
    assert converted(layer_norm(scale=1.0), "fp16").kept == []


def test_the_norm_op_stays_where_its_squares_overflow() -> None:
    model = graph("y = LayerNormalization(x, s)", weights="float[4] s = {1, 1, 1, 1}")
    assert converted(model, "fp16").kept == []
    large = graph("t = Mul(x, k) y = LayerNormalization(t, s)", weights="float[4] s = {1, 1, 1, 1}, float k = {1000}")
    assert "squares" in kept(converted(large, "fp16"))["LayerNormalization"]


# --- the sample models ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample", "name"), [*((s, "fp16") for s in FLOATS), *((s, "bf16") for s in FLOATS if s not in IN_FP16_ONLY)]
)
def test_sample(sample: str, name: str, tmp_path: Path) -> None:
    """Builds, keeps its inputs and outputs, and the converted model computes nearly the same."""
    path = SAMPLES / f"{sample}.onnx"
    chosen = BuildOptions(targets=("sm_89",), fuse="all", precision=options(name))
    described = build(path, tmp_path / "engine.plan", chosen).manifest
    source = onnx_model.load(path)
    assert [(io.name, io.dtype) for io in described.engine_inputs] == [
        (io.name, io.dtype) for io in model_io(source, "input")
    ]
    assert [(io.name, io.dtype) for io in described.engine_outputs] == [
        (io.name, io.dtype) for io in model_io(source, "output")
    ]
    model = onnx_model.load(tmp_path / described.precision.file)
    assert KINDS[name].dtype in dtypes(model)
    add_bodies(source)
    _, feeds = next(random_feeds(model_io(source, "input"), described.profile, seed=3))
    expected = run(source, feeds)
    twins = [twin_of(model), *[model] * (name == "fp16")]
    for twin in twins:
        for output, got in run(twin, feeds).items():
            assert error(got, expected[output]) < BOUND[name]


def test_int8_model_in_fp16(tmp_path: Path) -> None:
    described = build(SAMPLES / "qdq_mlp.onnx", tmp_path / "engine.plan", fast("fp16", "all")).manifest
    assert {plugin.name for plugin in described.plugins} == {
        "LayerNormGeluQuantize",
        "DequantizeGeluQuantize",
        "LayerNormQuantize",
    }
    assert described.precision.kept == []


@pytest.mark.parametrize("sample", ["fp16_ln_gelu", "bf16_ln_gelu"])
def test_16_bit_model_in_float32(sample: str, tmp_path: Path) -> None:
    described = build(SAMPLES / f"{sample}.onnx", tmp_path / "engine.plan", fast("fp32", "all")).manifest
    source = onnx_model.load(SAMPLES / f"{sample}.onnx")
    model = onnx_model.load(tmp_path / described.precision.file)
    assert [(io.name, io.dtype) for io in described.engine_outputs] == [
        (io.name, io.dtype) for io in model_io(source, "output")
    ]
    (node,) = [node for node in model.graph.node if node.op_type == "LayerNormGelu"]
    view = views(model, HERE)[0]
    assert {view.info(name).dtype for name in (*node.input, *node.output)} == {"float32"}


# --- inputs and outputs --------------------------------------------------------------------------------------------


def test_io_precision(tmp_path: Path) -> None:
    path = save(graph("t = Relu(x) y = Add(t, c)", weights="float[4] c = {1, 2, 3, 4}"), tmp_path)
    for io, dtype in (("keep", "float32"), ("fp16", "float16"), ("bf16", "bfloat16")):
        described = build(path, options=fast("fp16", io=io)).manifest
        got = {(one.name, one.dtype) for one in (*described.engine_inputs, *described.engine_outputs)}
        assert got == {("x", dtype), ("y", dtype)}


def test_an_output_that_is_read_inside_keeps_its_name_and_type() -> None:
    model = graph("y = Relu(x) z = Neg(y)", outputs="float[2,4] y, float[2,4] z")
    made = converted(model, "fp16").model
    assert [(io.name, io.dtype) for io in model_io(made, "output")] == [("y", "float32"), ("z", "float32")]
    feeds = {"x": np.array([[1, -2, 3, 4]] * 2, np.float32)}
    for name, expected in run(model, feeds).items():
        np.testing.assert_array_equal(run(made, feeds)[name], expected)


def test_outputs_that_are_inputs_or_weights() -> None:
    model = graph("z = Relu(x)", outputs="float[2,4] z, float[2,4] x, float[2] c", weights="float[2] c = {1, 2}")
    for io in ("keep", "fp16"):
        made = converted(model, "fp16", io=io).model
        wanted = "float32" if io == "keep" else "float16"
        assert {io.dtype for io in model_io(made, "output")} == {wanted}
        outputs = run(made, {"x": np.ones((2, 4), wanted)})
        np.testing.assert_array_equal(outputs["c"], [1, 2])


# --- what stays ----------------------------------------------------------------------------------------------------

SOFTMAX = "s = Add(x, m) y = Softmax(s)"


def test_masks_before_softmax_are_clamped() -> None:
    """-1e9 far beyond float16: it need not stay, nor what reads it; a row that is masked wholly stays finite."""
    weights = "float k = {-1e9}, float one = {1}"
    nodes = f"f = Cast<to = 1>(mask) o = Sub(one, f) m = Mul(o, k) {SOFTMAX}"
    model = graph(nodes, "float[2,4] x, int64[2,4] mask", weights=weights)
    made = converted(model, "fp16")
    assert made.kept == []
    feeds = {"x": np.arange(8, dtype=np.float32).reshape(2, 4) / 4, "mask": np.int64([[1, 0, 1, 0], [0, 0, 0, 0]])}
    got, expected = run(twin_of(made.model), feeds)["y"], run(model, feeds)["y"]
    np.testing.assert_allclose(got[0], expected[0], atol=1e-3)
    assert np.isfinite(got).all()


def test_a_mask_that_does_more_stays() -> None:
    weights = "float[2,4] m = {-1e9, 0, 0, 0, 0, 0, 0, -1e9}"
    model = graph(SOFTMAX, outputs="float[2,4] y, float[2,4] s", weights=weights)
    assert {"Add", "Softmax"} <= {*kept(converted(model, "fp16"))}
    infinite = graph(SOFTMAX, weights="float[4] m = {-inf, 0, 0, 0}")
    assert converted(infinite, "fp16").kept == []


def test_epsilon_below_the_least() -> None:
    """1e-12 would be 0 in float16, and 0 / 0 NaN; in bfloat16 it is there."""
    model = graph("v = Mul(x, x) a = Add(v, e) s = Sqrt(a) y = Div(x, s)", weights="float e = {1e-12}")
    made = converted(model, "fp16")
    assert [node.op for node in made.kept] == ["Add", "Sqrt"]  # the root, 1e-6, is there again
    assert converted(model, "bf16").kept == []
    feeds = {"x": np.float32([[0, 1, 2, 3]] * 2)}
    np.testing.assert_allclose(run(twin_of(made.model), feeds)["y"], [[0, 1, 1, 1]] * 2, atol=1e-3)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_variance_as_a_difference_stays(name: str) -> None:
    """E[x^2] - E[x]^2 of numbers around 10: no 16-bit type has the digits that are left."""
    model = graph(
        "t = Relu(x) q = Mul(t, t) e = ReduceMean<axes = [-1]>(q) m = ReduceMean<axes = [-1]>(t) s = Mul(m, m)"
        " v = Sub(e, s) w = Add(v, k) d = Sqrt(w) c = Sub(t, m) y = Div(c, d)",
        weights="float k = {1e-3}",
    )
    made = converted(model, name)
    assert [node.node for node in made.kept] == ["Mul_q", "ReduceMean_e", "ReduceMean_m", "Mul_s", "Sub_v"]
    feeds = {"x": np.float32([[10, 10.5, 9.5, 10], [10.25, 9.75, 10, 10]])}
    assert error(run(twin_of(made.model), feeds)["y"], run(model, feeds)["y"]) < BOUND[name]


def test_counts_sizes_and_angles_stay() -> None:
    counts = graph(
        "f = Cast<to = 1>(i) t = Mul(f, h) y = Add(x, t)", "float[2,4] x, int64[4] i", weights="float h = {5000}"
    )
    assert "integer" in kept(converted(counts, "fp16"))["Mul"]
    sizes = graph(
        "s = Shape(x) f = Cast<to = 1>(s) g = Mul(f, h) i = Cast<to = 7>(g) y = Expand(c, i)",
        weights="float h = {1}, float[1, 1] c = {2}",
    )
    assert "sizes" in kept(converted(sizes, "fp16"))["Mul"]
    angles = graph("a = Mul(x, h) y = Sin(a)", weights="float h = {1000}")
    assert {"Mul", "Sin"} == {*kept(converted(angles, "fp16"))}
    assert converted(graph("y = Sin(x)"), "fp16").kept == []


def test_keep_fp32(tmp_path: Path) -> None:
    model = graph("t = Relu(x) u = Neg(t) y = Exp(u)")
    made = converted(model, "fp16", keep_fp32=("Relu", "Neg_u"))
    assert kept(made) == {"Relu": "--keep-fp32", "Neg": "--keep-fp32"}
    said = refused(model, tmp_path, fast("fp16", keep_fp32=("Neg_v",)))
    assert "--keep-fp32 names Neg_v" in said
    assert "did you mean Neg_u" in said


def test_without_onnxruntime_prone_ops_stay() -> None:
    """Nothing can be measured of an op that has no body."""
    model = graph("t = acme.Nobody(x) u = Exp(t) v = Relu(x) y = Add(u, v)")
    made = converted(model, "fp16")
    assert "not known" in kept(made)["Nobody"]
    assert any("not measured" in note for note in made.notes)
    assert "Relu" not in kept(made)


# --- graphs inside nodes, functions, other domains -----------------------------------------------------------------

LOOP = """
y, z = Loop<body = inner (int64 i, bool c, float[2,4] s) => (bool co, float[2,4] so, float[2,4] each) {
  co = Identity(c)
  t = Add(s, outside)
  each = Mul(t, h)
  so = If(co) <then_branch = yes () => (float[2,4] a) { q = Mul(t, large) a = Div(q, large) },
               else_branch = no () => (float[2,4] b) { b = Neg(t) }>
}>(n, k, x)
"""


def test_graphs_inside_nodes() -> None:
    """Values are measured in them; the one that is too large stays, the rest is converted, captured tensors too."""
    model = graph(
        "outside = Relu(x) " + LOOP,
        "float[2,4] x, int64 n, bool k",
        "float[2,4] y, float[N,2,4] z",
        weights="float large = {1e6}, float h = {0.5}",
    )
    made = converted(model, "fp16")
    assert {node.op for node in made.kept} == {"Mul", "Div"}
    assert all("/yes/" in node.node for node in made.kept)
    feeds = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4), "n": np.int64(3), "k": np.bool_(True)}
    feeds = {name: np.asarray(value) for name, value in feeds.items()}
    expected = run(model, feeds)
    for twin in (made.model, twin_of(made.model)):
        for name, got in run(twin, feeds).items():
            assert error(got, expected[name]) < 2e-3
    (loop,) = [node for node in made.model.graph.node if node.op_type == "Loop"]
    body = loop.attribute[0].g
    assert body.input[2].type.tensor_type.elem_type == TensorProto.FLOAT16


def test_functions_and_onnxruntimes_ops() -> None:
    functions = """<domain: "acme", opset_import: ["" : 17]> Big (a) => (b) {
        k = Constant<value = float {1e6}>() c = Mul(a, k) b = Div(c, k) }"""
    domains = '"acme" : 1, "com.microsoft" : 1'
    model = graph("t = acme.Big(x) y = com.microsoft.Gelu(t)", functions=functions, domains=domains)
    made = converted(model, "fp16")
    assert {*kept(made)} == {"Mul", "Div"}
    assert {node.domain for node in made.model.graph.node} == {""}
    feeds = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}
    assert error(run(made.model, feeds)["y"], run(model, feeds)["y"]) < 2e-3


def test_mixed_model() -> None:
    """What an exporter cast already is converted as a whole; Casts between equal types go."""
    model = graph("a = Cast<to = 10>(x) b = Relu(a) c = Cast<to = 1>(b) y = Exp(c)")
    made = converted(model, "fp16").model
    assert [node.op_type for node in made.graph.node] == ["Cast", "Relu", "Exp", "Cast"]
    bf16 = converted(model, "bf16").model
    assert dtypes(bf16) == {"bfloat16", "float32"}


def test_float32_parts_of_an_op_stay() -> None:
    """Resize's scales are float32 whatever its data is, NonMaxSuppression takes nothing else."""
    resize = graph("y = Resize(x, , scales)", outputs="float[4,8] y", weights="float[2] scales = {2, 2}")
    assert converted(resize, "fp16").kept == []
    boxes = graph("y = NonMaxSuppression(b, s)", "float[1,4,4] b, float[1,1,4] s", "int64[N,3] y")
    assert "ONNX has no NonMaxSuppression in float16" in kept(converted(boxes, "fp16"))["NonMaxSuppression"]


def test_bfloat16_raises_the_opset() -> None:
    model = graph("y = Conv(x, w)", "float[1,2,5] x", "float[1,2,3] y", "float[2,2,3] w = {1,2,3,4,5,6,7,8,9,1,2,3}")
    made = converted(model, "bf16")
    assert made.kept == []
    assert onnx_model.opset(made.model) == 22
    feeds = {"x": np.linspace(-1, 1, 10, dtype=np.float32).reshape(1, 2, 5)}
    assert error(run(twin_of(made.model), feeds)["y"], run(model, feeds)["y"]) < 3e-2
    transposed = graph(
        "y = ConvTranspose(x, w)", "float[1,2,5] x", "float[1,2,7] y", "float[2,2,3] w = {1,2,3,4,5,6,7,8,9,1,2,3}"
    )
    assert kept(converted(transposed, "bf16")) == {"ConvTranspose": "TensorRT has no ConvTranspose in bfloat16"}


# --- other converters ----------------------------------------------------------------------------------------------


def test_onnxruntimes_converter(tmp_path: Path) -> None:
    path = save(layer_norm(), tmp_path)
    for fuse, islands in (("none", 4), ("all", 0)):
        described = build(path, options=fast("fp16", fuse, caster="onnxruntime")).manifest
        assert len(described.precision.kept) == islands
        model = onnx_model.load(tmp_path / described.precision.file)
        assert error(run(twin_of(model), X)["y"], run(layer_norm(), X)["y"]) < 1e-3
    assert "knows float16" in refused(layer_norm(), tmp_path, fast("bf16", caster="onnxruntime"))


def test_modelopt_is_named_where_it_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="NVIDIA ModelOpt, which is not installed"):
        build(save(layer_norm(), tmp_path), options=fast("fp16", caster="modelopt"))


# --- files ---------------------------------------------------------------------------------------------------------


def test_manifest_and_converted_model(tmp_path: Path) -> None:
    path = save(layer_norm(), tmp_path)
    result = build(path, options=fast("fp16"))
    precision = read(result.plan).precision
    file = tmp_path / precision.file
    assert file.name == "model.plan.onnx"
    assert (precision.name, precision.io, precision.caster) == ("fp16", "keep", "trtconvert")
    assert hashlib.sha256(file.read_bytes()).hexdigest() == precision.sha256
    assert [node["node"] for node in precision.kept] == ["square", "variance", "sum", "std"]
    assert precision.calibration["samples"] == 1
    assert re.fullmatch("[0-9a-f]{64}", precision.calibration["digest"])
    onnx.checker.check_model(str(file), full_check=True)


def test_external_data(tmp_path: Path) -> None:
    model = layer_norm()
    gamma = next(t for t in model.graph.initializer if t.name == "gamma")
    onnx.external_data_helper.set_external_data(gamma, "gamma.bin")
    (tmp_path / "gamma.bin").write_bytes(gamma.raw_data)
    gamma.ClearField("raw_data")
    gamma.data_location = TensorProto.EXTERNAL
    path = save(model, tmp_path)
    (tmp_path / "out").mkdir()
    result = build(path, tmp_path / "out" / "e.plan", fast("fp16"))
    twin = onnx_model.load(tmp_path / "out" / result.manifest.precision.file)
    assert error(run(twin, X, tmp_path / "out")["y"], run(layer_norm(), X)["y"]) < 1e-3


def test_dynamic_shapes_are_measured_at_all_points() -> None:
    """The sum over the longest rows is what does not fit."""
    model = graph(
        "e = Exp(x) y = ReduceSum<keepdims = 1>(e, axes)", "float[1,N] x", "float[1,1] y", "int64[1] axes = {1}"
    )
    given = profile(model, {"x": Range((1, 4), (1, 8), (1, 60000))}, lambda: {})
    made = Conversion(options("fp16"), model, HERE, given).apply(model, given)
    assert [node.op for node in made.kept] == ["ReduceSum"]


def test_command(run: Run, tmp_path: Path) -> None:
    path = save(layer_norm(), tmp_path)
    result = run("build", path, "--precision", "fp16", "--no-fuse", "--target", "sm_89")
    assert result.returncode == 0, result.stderr
    assert "precision fp16, 4 nodes in fp32; converted model model.plan.onnx" in result.stdout
    assert re.search(r"fp32 +Pow x1: makes values up to .* \(square\)", result.stdout)
    wrong = run("build", path, "--precision", "fp16", "--keep-fp32", "squar")
    assert_clean_error(wrong, "did you mean square")
