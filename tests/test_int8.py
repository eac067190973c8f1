"""`--precision int8`: where Q and DQ stand, with what scales, and that the model still computes what it did."""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper

from tests.conftest import SAMPLES, Run, assert_clean_error
from tests.test_forms import AFFINE, DEC, GELU, LN, model
from trtconvert import BuildOptions, ConvertError, build, reference, registry
from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert.bodies import add_bodies
from trtconvert.fuse import fuse_model
from trtconvert.inputs import random_feeds
from trtconvert.manifest import model_io, read
from trtconvert.precision.int8 import Quantized, quantize
from trtconvert.precision.options import CALIBRATORS, PrecisionOptions
from trtconvert.shapes import profile

HERE = Path()
BOUND = 0.05  # relative L2 of these models on normal data
RANDOM = np.random.default_rng(7)
W, V = RANDOM.standard_normal((8, 8)), RANDOM.standard_normal((8, 16))
QUANTIZABLE = (
    *("convnextv2_block", "custom_relu", "fp16_ln_gelu", "keras_ln_gelu", "ln_gelu_opset20", "pvt_mlp_dynamo"),
    *("resnet_block", "sam_upscaler", "tanh_gelu", "vit_block", "wav2vec2_features", "wav2vec2_features_dynamic"),
)
FUSED = {
    "vit_block": {"LayerNormQuantize": 2, "DequantizeGeluQuantize": 1},
    "sam_upscaler": {"LayerNormGeluQuantize": 1},
    "tanh_gelu": {"LayerNormGeluQuantize": 1},
    "wav2vec2_features": {"LayerNormGeluQuantize": 2, "LayerNormGelu": 1},
    "convnextv2_block": {"LayerNormQuantize": 1, "GlobalResponseNorm": 1},
    "resnet_block": {"GroupNormSilu": 2},
    "keras_ln_gelu": {"LayerNormGeluQuantize": 1},
}
Feed = Mapping[str, NDArray[Any]]


def feeds(built: ModelProto, count: int = 4, seed: int = 0) -> list[dict[str, NDArray[Any]]]:
    shapes = {name: {"opt": r.opt} for name, r in profile(built, {}).ranges.items()}
    found = []
    for each in range(count):
        points = random_feeds(model_io(built, "input"), shapes, seed + each, without=("min", "max"))
        found.append(next(feed for _, feed in points))
    return found


def int8(built: ModelProto, samples: Iterable[Feed] | None = None, **options: Any) -> Quantized:
    given = list(samples) if samples is not None else feeds(built)
    made = quantize(built, HERE, lambda: given, **{"method": "minmax", **options})
    onnx_model.check(made.model)
    return made


def error(one: ModelProto, other: ModelProto, feed: Feed, folder: Path = HERE) -> float:
    """Relative L2, the largest of all outputs."""
    for each in (one := onnx_model.copy(one), other := onnx_model.copy(other)):
        add_bodies(each)
    want, got = (reference.run(each, folder, feed) for each in (one, other))
    assert want.keys() == got.keys()
    assert all(want[name].dtype == got[name].dtype for name in want)
    pairs = [(np.float64(want[name]), np.float64(got[name])) for name in want]
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(a)) for a, b in pairs)


def constants(built: ModelProto) -> dict[str, NDArray[Any]]:
    return {t.name: numpy_helper.to_array(t) for t in built.graph.initializer}


def nodes(built: ModelProto, op: str) -> list[NodeProto]:
    return [node for node in built.graph.node if node.op_type == op]


def quantized(built: ModelProto) -> list[str]:
    """The activations that have a Q, in graph order; their Q and DQ are symmetric, of one scale, and not at an output."""
    held, outputs = constants(built), {o.name for o in built.graph.output}
    for node in nodes(built, "QuantizeLinear"):
        scale, zero = held[node.input[1]], held[node.input[2]]
        assert scale.ndim == 0
        assert scale > 0
        assert zero.dtype == np.int8
        assert zero == 0
        assert not outputs & set(node.output)
    assert not outputs & {name for node in nodes(built, "DequantizeLinear") for name in node.output}
    return [node.input[0] for node in nodes(built, "QuantizeLinear")]


def maker(built: ModelProto, name: str) -> NodeProto:
    return next(node for node in built.graph.node if name in node.output)


# --- weights -------------------------------------------------------------------------------------------------------

KERNELS = {
    "MatMul": ("y = MatMul(x, w)", "float[2,4,8] x", (8, 6), 1),
    "MatMul of a stack": ("y = MatMul(x, w)", "float[2,4,8] x", (2, 8, 6), None),
    "Gemm": ("y = Gemm(x, w, c6)", "float[4,8] x", (8, 6), 1),
    "Gemm transB": ("y = Gemm<transB=1>(x, w, c6)", "float[4,8] x", (6, 8), 0),
    "Gemm alpha beta": ("y = Gemm<alpha=0.5, beta=3.0>(x, w, c6)", "float[4,8] x", (8, 6), 1),
    "Conv": ("y = Conv(x, w, c6)", "float[1,8,9,9] x", (6, 8, 3, 3), 0),
    "Conv 1-D": ("y = Conv(x, w)", "float[1,8,30] x", (6, 8, 3), 0),
    "depthwise": ("y = Conv<group=6>(x, w, c6)", "float[1,6,9,9] x", (6, 1, 3, 3), 0),
    "ConvTranspose": ("y = ConvTranspose<strides=[2,2]>(x, w, c6)", "float[1,8,9,9] x", (8, 6, 2, 2), 1),
    "grouped ConvTranspose": ("y = ConvTranspose<group=2>(x, w, c6)", "float[1,8,9,9] x", (8, 3, 2, 2), None),
    "transposed": ("t = Transpose(w) i = Identity(t) y = MatMul(x, i)", "float[2,4,8] x", (6, 8), 1),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_scale_for_each_output_channel_and_float_biases(name: str) -> None:
    body, inputs, shape, axis = KERNELS[name]
    weight = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    bias = np.linspace(-1, 1, 6)
    rank = inputs.count(",") + 1
    built = model(body, inputs, f"float[{','.join('abcd'[:rank])}] y", w=weight, c6=bias)
    made = int8(built).model
    assert quantized(made) == ["x"]
    product = next(node for node in made.graph.node if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul"))
    dequantized, held = maker(made, product.input[1]), constants(made)
    integers, scale, zero = (held[name] for name in dequantized.input)
    wanted = weight.T if "Transpose(w)" in body else weight
    assert integers.dtype == zero.dtype == np.int8
    assert not zero.any()
    assert scale.shape == (() if axis is None else (wanted.shape[axis],))
    assert axis is None or onnx_model.attribute_values(dequantized)["axis"] == axis
    along = scale.reshape([-1 if i == axis else 1 for i in range(wanted.ndim)]) if axis is not None else scale
    assert np.abs(integers * along - wanted).max() <= 0.51 * scale.max()
    if len(product.input) > 2:
        assert np.array_equal(held[product.input[2]], bias.astype(np.float32))
    assert "w" not in held
    assert error(built, made, feeds(built, 1)[0]) < BOUND


def test_a_weight_that_others_read_stays_for_them() -> None:
    """A table of embeddings that is the last layer too; and one weight of two products with different channels."""
    ids = "e = Gather(w, i) y = Gemm<transB=1>(x, w) z = MatMul(x, w)"
    built = model(ids, "float[4,8] x, int64[3] i", "float[3,8] e, float[4,8] y, float[4,8] z", w=W)
    made = int8(built).model
    held = constants(made)
    assert np.array_equal(held["w"], W.astype(np.float32))
    axes = [onnx_model.attribute_values(n).get("axis") for n in nodes(made, "DequantizeLinear")]
    assert sorted(axis for axis in axes if axis is not None) == [0, 1]
    assert quantized(made) == ["x"]
    assert error(built, made, feeds(built, 1)[0]) < BOUND


def test_batch_norms_go_into_convolutions_before_their_weights_are_rounded() -> None:
    body = "c = Conv(x, w, c6) y = BatchNormalization<epsilon=0.01>(c, g6, c6, m6, v6)"
    values = np.array([1e-3, 1, 100, 5, 0.1, 2])  # scales of channels that would not go together
    built = model(
        body,
        "float[1,8,9,9] x",
        "float[1,6,7,7] y",
        w=RANDOM.standard_normal((6, 8, 3, 3)) / values.reshape(-1, 1, 1, 1),
        c6=np.linspace(-1, 1, 6),
        g6=values,
        m6=np.linspace(0, 1, 6),
        v6=np.linspace(0.5, 2, 6),
    )
    made = int8(built).model
    assert [n.op_type for n in made.graph.node if "Linear" not in n.op_type] == ["Conv"]
    assert error(built, made, feeds(built, 1)[0]) < BOUND


def test_old_operator_sets_are_raised() -> None:
    built = model("c = Conv(x, w) r = Relu(c) y = MaxPool<kernel_shape=[2,2]>(r)", "float[1,8,9,9] x", "float[1,6,6,6] y",
                  opset=9, w=RANDOM.standard_normal((6, 8, 3, 3)))  # fmt: skip
    made = int8(built).model
    assert onnx_model.opset(made) == 13
    assert error(built, made, feeds(built, 1)[0]) < BOUND


# --- places --------------------------------------------------------------------------------------------------------


def test_a_transformer_s_block() -> None:
    """One Q for three products, right behind LayerNorm; residual sums, attention and the output read floats."""
    attention = "kt = Transpose<perm=[0,2,1]>(k0) s = MatMul(q0, kt) a = Softmax<axis=-1>(s) o = MatMul(a, v0)"
    body = (
        f"{LN} q0 = MatMul(z, w) k0 = MatMul(z, w2) v0 = MatMul(z, w3) {attention} p0 = MatMul(o, w) r = Add(x, p0) "
        f"{LN.replace('z =', 'z1 =').replace('(x', '(r')} h0 = MatMul(z1, v) h = Add(h0, c16) "
        f"{GELU.replace('z', 'h').replace('hp', 'zp')} m = MatMul(y, vt) out = Add(r, m)"
    )
    built = model(body, outputs="float[2,4,8] out", w=W, w2=W.T, w3=-W, v=V, vt=V.T, c16=np.linspace(-1, 1, 16))
    made = int8(built).model
    assert quantized(made) == ["z", "o", "z1", "h", "y"]
    assert [list(n.input) for n in nodes(made, "Add")[-1:]] == [["r", "m"]]
    found = fuse_model(onnx_model.copy(made), HERE, registry.by_pattern(()))
    assert [f.op for f in found.fusions] == ["LayerNormQuantize", "LayerNormQuantize", "DequantizeGeluQuantize"]
    assert found.near_misses == []
    assert error(built, made, feeds(built, 1)[0]) < BOUND
    plain = int8(built, before_gelu=False).model
    assert quantized(plain) == ["z", "o", "z1", "y"]


def test_quantized_before_it_is_moved_where_only_its_sizes_are_read_too() -> None:
    """As tf2onnx writes a Dense layer of Keras."""
    body = (
        f"{LN} {GELU} sizes = Shape(y) some = Slice(sizes, i0, i2) shape = Concat<axis=0>(some, i16) "
        "flat = Reshape(y, rows) m = MatMul(flat, w16) out = Reshape(m, shape)"
    )
    given = {"i0": [0], "i2": [2], "i16": [16], "rows": [-1, 8]}
    built = model(
        body, "float[2,T,8] x", "float[2,T,16] out", w16=V, **{k: np.array(v, np.int64) for k, v in given.items()}
    )
    feed = {"x": np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32)}
    made = int8(built, [feed]).model
    assert quantized(made) == ["y"]
    assert [f.op for f in fuse_model(onnx_model.copy(made), HERE, registry.by_pattern(())).fusions] == [
        "LayerNormGeluQuantize"
    ]
    assert error(built, made, feed) < BOUND


def test_nothing_inside_a_decomposed_norm_or_gelu(tmp_path: Path) -> None:
    """MatMul, LayerNorm, GELU, MatMul, as exporters write them out: one plugin that gives int8, in the plan."""
    body = f"x0 = MatMul(x, w) {DEC.replace('(x', '(x0').replace(', x', ', x0')} {AFFINE} {GELU} out = MatMul(y, w16)"
    built = model(body, outputs="float[2,4,16] out", opset=13, w=W, w16=V)
    made = int8(built).model
    assert quantized(made) == ["x", "y"]
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx_model.serialize(built))
    options = BuildOptions(targets=("sm_89",), fuse="all", precision=PrecisionOptions("int8"))
    result = build(path, options=options)
    assert [n.op.name for n in result.plugin_nodes if n.op is not None] == ["LayerNormGeluQuantize"]
    assert any("measured on random data" in note for note in result.notices)


RESIDUAL = {
    "a skip": "ca = Conv(x, w) ra = Relu(ca) cb = Conv(ra, w2) a = Add(cb, x) rb = Relu(a) y = Conv(rb, w)",
    "the other way": "ca = Conv(x, w) ra = Relu(ca) cb = Conv(ra, w2) a = Add(x, cb) rb = Relu(a) y = Conv(rb, w)",
    "two convolutions": "ca = Conv(x, w) ra = Relu(ca) cb = Conv(ra, w2) s = Conv(x, w3) a = Add(cb, s) rb = Relu(a) "
    "y = Conv(rb, w)",
}


@pytest.mark.parametrize("name", RESIDUAL)
def test_residual_sums_of_convolutions_read_int8(name: str) -> None:
    """So that the sum can be computed in the convolution's kernel, which gives int8."""
    weights = {k: RANDOM.standard_normal((8, 8, 1, 1)) / 3 for k in ("w", "w2", "w3")}
    built = model(RESIDUAL[name], "float[1,8,6,6] x", "float[1,8,6,6] y", **weights)
    made = int8(built).model
    skip = "s" if name == "two convolutions" else "x"
    assert sorted(quantized(made)) == sorted({"x", "ra", "rb", skip})
    (total,) = nodes(made, "Add")
    read = [maker(made, name).op_type for name in total.input]
    assert sorted(read) == ["Conv", "DequantizeLinear"]
    (dequantized,) = [maker(made, name) for name in total.input if maker(made, name).op_type == "DequantizeLinear"]
    assert maker(made, dequantized.input[0]).input[0] == skip
    assert error(built, made, feeds(built, 1)[0]) < BOUND


def test_outputs_and_other_readers_get_floats() -> None:
    outputs = "float[2,4,8] y, float[2,4,8] h, float[2,4,8] z"
    built = model("h = MatMul(x, w) y = MatMul(h, w) z = Mul(h, two)", outputs=outputs, w=W)
    made = int8(built).model
    assert quantized(made) == ["x", "h"]
    feed = feeds(built, 1)[0]
    found = reference.run(made, HERE, feed)
    assert np.array_equal(found["z"], 2 * found["h"])
    assert len(np.unique(found["h"])) > 60  # no int8 of one scale


LEFT = {
    "transposed data": ("y = Gemm<transA=1>(x, w)", "float[8,4] x", "it transposes x"),
    "a vector": ("y = MatMul(x, w)", "float[8] x", "it is a product with a vector"),
    "a constant": ("c = MatMul(w, w) y = MatMul(x, c)", "float[4,8] x", "its input w is a constant"),
}


@pytest.mark.parametrize("name", LEFT)
def test_products_that_stay_float_say_why(name: str) -> None:
    body, inputs, reason = LEFT[name]
    built = model(body, inputs, "float[a,b] y" if name != "a vector" else "float[a] y", w=W)
    with pytest.raises(ConvertError, match=reason):
        int8(built)


def test_kept_nodes_stay_float() -> None:
    built = model("h = MatMul(x, w) y = MatMul(h, w)", w=W)
    built.graph.node[1].name = "last"
    made = int8(built, keep=["last"])
    assert quantized(made.model) == ["x"]
    assert made.left == {"last": ("MatMul", "it is to stay float")}
    assert made.notes == ["int8: 1 of 2 products with weights", "last stays float: it is to stay float"]
    with pytest.raises(
        ConvertError, match="--keep-fp32 names lats, and the model has no such node or op\n  fix: did you mean last"
    ):
        int8(built, keep=["lats"])
    with pytest.raises(ConvertError, match="MatMul_h: it is to stay float"):
        int8(built, keep=["MatMul"])


def test_models_without_products_are_refused() -> None:
    with pytest.raises(ConvertError, match="nothing in the model can be int8"):
        int8(model("y = Relu(x)"))
    once = int8(model("y = MatMul(x, w)", w=W)).model
    with pytest.raises(ConvertError, match="it is quantized already"):
        int8(once)


# --- ranges --------------------------------------------------------------------------------------------------------


def scale(made: Quantized, name: str = "x") -> float:
    held = constants(made.model)
    return next(float(held[n.input[1]]) for n in nodes(made.model, "QuantizeLinear") if n.input[0] == name)


def test_methods() -> None:
    """minmax holds the largest value; percentile leaves one of 10,000 out; entropy cuts the tail; none hangs on the order."""
    built = model("y = MatMul(x, w)", "float[64,8] x", "float[64,8] y", w=W)
    random = np.random.default_rng(0)
    data = [{"x": random.standard_normal((64, 8)).astype(np.float32)} for _ in range(40)]
    largest = max(np.abs(feed["x"]).max() for feed in data)
    data[20]["x"][3, 3] = -200.0
    assert scale(int8(built, data)) == pytest.approx(200 / 127)
    assert scale(int8(built, data, method="percentile")) == pytest.approx(largest / 127, rel=0.2)
    assert scale(int8(built, data, method="entropy")) < 100 / 127
    for method in CALIBRATORS:
        assert scale(int8(built, data, method=method)) == scale(int8(built, data[::-1], method=method))
    with pytest.raises(ConvertError, match="unknown calibration method 'mean'"):
        int8(built, data, method="mean")


@pytest.mark.parametrize("method", CALIBRATORS)
def test_dead_activations_and_channels(method: str) -> None:
    """Scales are never 0."""
    weight = W.copy()
    weight[:, 3] = 0
    built = model("d = Mul(x, zero1) h = MatMul(d, w) r = Add(h, b) y = MatMul(r, w)", zero1=0.0, w=weight)
    made = int8(built, method=method).model
    assert quantized(made) == ["d", "r"]
    assert all((constants(made)[n.input[1]] > 0).all() for n in nodes(made, "DequantizeLinear"))
    assert error(built, made, feeds(built, 1)[0]) < BOUND


def test_tensors_that_overflow_stay_float() -> None:
    built = model("h = MatMul(x, w) i = Div(h, zero1) y = MatMul(i, w)", zero1=0.0, w=W)
    made = int8(built)
    assert quantized(made.model) == ["x"]
    (reason,) = [reason for _, reason in made.left.values()]
    assert reason == "i has NaN or Inf on calibration sample 1"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_data_that_is_not_finite_is_refused(bad: float) -> None:
    built = model("y = MatMul(x, w)", w=W)
    data = feeds(built, 3)
    data[1]["x"][0, 0, 0] = bad
    with pytest.raises(ConvertError, match="the calibration data has NaN or Inf in 'x'\n  at: sample 2"):
        int8(built, data)
    with pytest.raises(ConvertError, match="there is no calibration data"):
        int8(built, [])


def test_what_int8_costs_most_stays_float_where_asked() -> None:
    """A tensor of two sizes: with one scale for both, the small part is lost, and the outputs hang on it."""
    chain = " ".join(f"h{i + 1} = MatMul(h{i}, e)" for i in range(9))
    body = f"h0 = Mul(x, ones) {chain} t = Mul(h9, sizes) m = MatMul(t, back) y = MatMul(m, e)"
    sizes = np.array([3000.0, *[1.0] * 7])
    built = model(body, ones=np.ones(8), e=np.linalg.qr(W)[0], sizes=sizes, back=np.diag([0.0, *[1.0] * 7]))
    plain, searched = int8(built), int8(built, search=True)
    assert list(searched.left.values()) == [("MatMul", next(iter(searched.left.values()))[1])]
    assert "int8 of t alone costs" in next(iter(searched.left.values()))[1]
    feed = feeds(built, 1)[0]
    assert error(built, searched.model, feed) < BOUND < error(built, plain.model, feed)


def test_it_is_quiet_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    built = model("h = Gemm(x, w, b) y = Gemm(h, w, h)", "float[4,8] x", "float[4,8] y", w=W)
    for method in CALIBRATORS:
        int8(built, method=method)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    assert logging.root.manager.disable == 0
    assert list(tmp_path.iterdir()) == []


def test_float16_and_bfloat16() -> None:
    half = model("h = MatMul(x, w) y = MatMul(h, w)", "float16[2,4,8] x", "float16[2,4,8] y", w=W.astype(np.float16))
    made = int8(half).model
    assert quantized(made) == ["x", "h"]
    assert onnx_model.opset(made) == 19  # the first whose Q takes float16
    assert {constants(made)[n.input[1]].dtype.name for n in nodes(made, "QuantizeLinear")} == {"float16"}
    assert error(half, made, feeds(half, 1)[0]) < BOUND
    brain = onnx.load(SAMPLES / "bf16_ln_gelu.onnx")
    with pytest.raises(ConvertError, match="nothing in the model can be int8"):
        int8(brain)


# --- sample models, builds and the command -------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUANTIZABLE)
def test_sample_models(name: str) -> None:
    built = onnx_model.load(SAMPLES / f"{name}.onnx")
    made = int8(built).model
    assert quantized(made)
    found = fuse_model(onnx_model.copy(made), SAMPLES, registry.by_pattern(()))
    assert Counter(f.op for f in found.fusions) == FUSED.get(name, Counter(f.op for f in found.fusions))
    feed = feeds(built, 1)[0]
    assert error(built, made, feed, SAMPLES) < BOUND
    assert error(built, found.model, feed, SAMPLES) < BOUND


def test_build_writes_the_model_and_says_what_was_measured(run: Run, tmp_path: Path) -> None:
    data = np.random.default_rng(0).standard_normal((5, 1, 50, 96)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", tokens=data)
    source = SAMPLES / "vit_block.onnx"
    flags = ("--precision", "int8", "--calib", "samples.npz", "--fuse", "all", "--target", "sm_89")
    result = run("build", source, "-o", "v.plan", *flags)
    assert result.returncode == 0, result.stderr
    assert "LayerNormQuantize x2, DequantizeGeluQuantize x1" in result.stdout
    assert "random data" not in result.stderr
    described = read(tmp_path / "v.plan")
    assert described.precision.name == "int8"
    told = described.precision.calibration
    assert (told["method"], told["samples"], told["data"]) == ("percentile", 5, "samples.npz")
    assert len(told["digest"]) == 64
    made, plain = onnx_model.load(tmp_path / "v.plan.onnx"), onnx_model.load(source)
    assert error(plain, made, {"tokens": data[0]}) < BOUND


def test_int8_with_the_rest_in_float16(tmp_path: Path) -> None:
    source, plan = SAMPLES / "sam_upscaler.onnx", tmp_path / "s.plan"
    options = BuildOptions(targets=("sm_89",), fuse="all", precision=PrecisionOptions("int8+fp16"))
    result = build(source, plan, options)
    assert [n.op.name for n in result.plugin_nodes if n.op is not None] == ["LayerNormGeluQuantize"]
    made, plain = onnx_model.load(tmp_path / "s.plan.onnx"), onnx_model.load(source)
    types = {onnx_model.dtype_name(t.data_type) for t in made.graph.initializer}
    assert types & {"int8", "float16"} == {"int8", "float16"}
    assert error(plain, made, feeds(plain, 1)[0]) < BOUND


@pytest.mark.parametrize(("sample", "name"), [("keras_ln_gelu", "int8+fp16"), ("fp16_ln_gelu", "int8")])
def test_steps_of_products_are_float32(sample: str, name: str, tmp_path: Path) -> None:
    """Also behind a Reshape, and of a float16 model: TensorRT multiplies int8 of float16 steps in float16."""
    options = BuildOptions(targets=("sm_89",), fuse="none", precision=PrecisionOptions(name))
    build(SAMPLES / f"{sample}.onnx", tmp_path / "s.plan", options)
    made = onnx_model.load(tmp_path / "s.plan.onnx")
    steps = {n.input[1] for n in made.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")}
    types = {onnx_model.dtype_name(t.data_type) for t in made.graph.initializer if t.name in steps}
    assert types == {"float32"}
    dtypes = onnx_graph.infer(made)[0]
    products = [n.output[0] for n in made.graph.node if n.op_type == "MatMul"]
    assert {dtypes[name].dtype for name in products} == {"float32"}
    assert "float16" in {info.dtype for info in dtypes.values()}


FLAGS = {
    "--calib needs a precision": (("--calib", "x.npz"), "--calib needs --precision int8"),
    "search needs int8": (("--precision", "fp16", "--calib-search"), "--calib-search needs --precision int8"),
    "types of inputs": (("--precision", "int8", "--io-precision", "fp16"), "need int8+fp16"),
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags_that_contradict_each_other(name: str, run: Run) -> None:
    flags, told = FLAGS[name]
    result = run("build", SAMPLES / "vit_block.onnx", *flags)
    assert result.returncode == 2
    assert told in result.stderr


def test_bad_data_is_a_clean_error(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "wrong.npz", token=np.zeros((1, 50, 96), np.float32))
    result = run("build", SAMPLES / "vit_block.onnx", "--precision", "int8", "--calib", "wrong.npz", "-o", "v.plan")
    assert_clean_error(result, "no array for input 'tokens'", "wrong.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.npz"]
