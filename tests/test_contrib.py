"""onnxruntime's own ops: the standard nodes written for them compute what onnxruntime's CPU kernels compute."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.conftest import SAMPLES
from trtconvert import BuildOptions, ConvertError, backend, build, fuse, gpu, graph, reference, registry
from trtconvert import model as onnx_model
from trtconvert.custom_ops import custom
from trtconvert.lower import Lowered, lower
from trtconvert.lowering import contrib
from trtconvert.op import Op
from trtconvert.preflight import inspect_model

Feed = dict[str, NDArray[Any]]
MS = "com.microsoft"
OPSETS = (11, 13, 17, 18, 20, 23)  # 13, 18: axes become inputs; 17, 20, 23: LayerNormalization, Gelu, RMSNormalization
TOLERANCE = {np.float32: 1e-6, np.float16: 2e-3}
cpu_only = pytest.mark.skipif(gpu.current() is not None, reason="asserts ahead-of-time builds, as on a CPU")


def node_model(
    op_type: str, inputs: list[NDArray[Any] | None], outputs: list[str], opset: int, domain: str, attributes: Any
) -> tuple[ModelProto, Feed]:
    """A model of one node, and its feed; outputs get the dtypes and shapes that onnxruntime gives them."""
    feed = {f"i{k}": array for k, array in enumerate(inputs) if array is not None}
    names = [f"i{k}" if array is not None else "" for k, array in enumerate(inputs)]
    node = helper.make_node(op_type, names, outputs, domain=domain, name="node", **attributes)
    values = [value(name, array) for name, array in feed.items()]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    made = [name for name in outputs if name]
    model = helper.make_model(
        helper.make_graph([node], "g", values, [onnx.ValueInfoProto(name=name) for name in made]),
        opset_imports=opsets,
        ir_version=8,
    )
    results = reference.session(model).run(None, feed)
    del model.graph.output[:]
    model.graph.output.extend(value(name, array) for name, array in zip(made, results, strict=True))
    return model, feed


def value(name: str, array: NDArray[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def lowered(model: ModelProto) -> Lowered:
    return lower(model, Path(), lambda op_type: True)


def assert_same(model: ModelProto, feed: Feed, tolerance: float = 1e-6) -> ModelProto:
    """The model lowers to valid standard ONNX with the same outputs; returns that."""
    onnx_model.check(model)
    result = lowered(model).model
    assert {n.domain for n in onnx_model.all_nodes(result)} <= {""}
    onnx.checker.check_model(result, full_check=True)
    expected, got = (reference.session(m).run(None, feed) for m in (model, result))
    for a, b in zip(expected, got, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        a, b = a.astype(np.float64), b.astype(np.float64)
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(a)
    return result


def normal(*shape: int, dtype: Any = np.float32) -> NDArray[Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


# --- elementwise ops and normalisations: op, shapes of the inputs (None: left out), outputs, attributes ----------------

X, C = (2, 5, 32), (32,)
Row = tuple[str, str, list[tuple[int, ...] | None], list[str], dict[str, Any]]
ROWS: list[Row] = [
    ("Gelu", MS, [X], ["y"], {}),
    ("FastGelu", MS, [X], ["y"], {}),
    ("FastGelu", MS, [X, C], ["y"], {}),
    ("BiasGelu", MS, [X, C], ["y"], {}),
    ("QuickGelu", MS, [X], ["y"], {}),
    ("QuickGelu", MS, [X], ["y"], {"alpha": 1.25}),
    ("LayerNormalization", "", [X, C], ["y"], {}),
    ("LayerNormalization", "", [X, C, C], ["y", "mean", "inv"], {"epsilon": 1e-2}),
    ("LayerNormalization", "", [X, (5, 32), (5, 32)], ["y"], {"axis": 1}),
    ("LayerNormalization", "", [X, (5, 32)], ["y", "mean"], {"axis": -2}),
    ("SimplifiedLayerNormalization", "", [X, C], ["y"], {"epsilon": 1e-2, "stash_type": 1}),
    ("SimplifiedLayerNormalization", "", [X, C], ["y", "inv"], {"axis": 2}),
    ("SkipLayerNormalization", MS, [X, X, C], ["y"], {}),
    ("SkipLayerNormalization", MS, [X, X, C, C], ["y"], {"epsilon": 1e-2}),
    ("SkipLayerNormalization", MS, [X, X, C, C, C], ["y", "", "", "sum"], {}),
    ("SkipLayerNormalization", MS, [X, (1, 5, 32), C, None, C], ["y", "", "", "sum"], {}),
    ("SkipLayerNormalization", MS, [X, (5, 32), C, C], ["y"], {}),
    ("SkipSimplifiedLayerNormalization", MS, [X, X, C], ["y"], {}),
    ("SkipSimplifiedLayerNormalization", MS, [X, X, C, C], ["y", "", "", "sum"], {"epsilon": 1e-2}),
    ("SkipSimplifiedLayerNormalization", MS, [(7, 32), (7, 32), C], ["y"], {}),
]


def row_model(row: Row, dtype: Any, opset: int) -> tuple[ModelProto, Feed]:
    op_type, domain, shapes, outputs, attributes = row
    arrays = [None if shape is None else normal(*shape, dtype=dtype) for shape in shapes]
    return node_model(op_type, arrays, outputs, opset, domain, attributes)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{len(row[2])}-{len(row[3])}")
def test_row(row: Row, dtype: Any) -> None:
    for opset in OPSETS:
        assert_same(*row_model(row, dtype, opset), TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("opset", "op_type", "expected"),
    [
        (19, "Gelu", {"Erf"}),
        (20, "Gelu", {"Gelu"}),
        (20, "FastGelu", {"Gelu"}),
        (16, "SkipLayerNormalization", {"ReduceMean"}),
        (17, "SkipLayerNormalization", {"LayerNormalization"}),
        (22, "SkipSimplifiedLayerNormalization", {"ReduceMean"}),
        (23, "SkipSimplifiedLayerNormalization", {"RMSNormalization"}),
    ],
)
def test_nodes_are_those_of_the_model_s_opset(opset: int, op_type: str, expected: set[str]) -> None:
    """The op itself where the opset has it: TensorRT has a layer for it."""
    model, feed = row_model(next(row for row in ROWS if row[0] == op_type), np.float32, opset)
    result = assert_same(model, feed)
    assert onnx_model.opset(result) == opset
    assert expected <= {n.op_type for n in result.graph.node}


# --- FusedMatMul, FusedConv, FusedGemm, EmbedLayerNormalization -----------------------------------------------------


@pytest.mark.parametrize("opset", [11, 23])
def test_fused_matmul(opset: int) -> None:
    for swap_a, swap_b, batch_a, batch_b in itertools.product((0, 1), repeat=4):
        a, b = (normal(2, 3, *dims).swapaxes(-1, -1 - swap) for dims, swap in (((4, 5), swap_a), ((5, 6), swap_b)))
        a, b = (np.moveaxis(m, -2, 0) if batch else m for m, batch in ((a, batch_a), (b, batch_b)))
        attributes = {"alpha": 0.5, "transA": swap_a, "transB": swap_b, "transBatchA": batch_a, "transBatchB": batch_b}
        arrays = [np.ascontiguousarray(m) for m in (a, b)]
        assert_same(*node_model("FusedMatMul", arrays, ["y"], opset, MS, attributes))
    for b in (normal(5), normal(4, 5)):  # a vector has nothing to transpose
        assert_same(*node_model("FusedMatMul", [normal(5), b], ["y"], opset, MS, {"transA": 1, "transB": 1}))


ACTIVATIONS = [
    ("", []),
    ("Relu", []),
    ("Tanh", []),
    ("Sigmoid", []),
    ("LeakyRelu", [0.2]),
    ("Clip", [-0.5, 0.7]),
    ("HardSigmoid", [0.3, 0.4]),
]


@pytest.mark.parametrize(("activation", "parameters"), ACTIVATIONS, ids=[a for a, _ in ACTIVATIONS])
def test_fused_conv(activation: str, parameters: list[float]) -> None:
    attributes: dict[str, Any] = {"group": 2, "pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    if activation:
        attributes["activation"] = activation
    if parameters:
        attributes["activation_params"] = parameters
    x, w, b, z = normal(2, 4, 9, 9), normal(6, 2, 3, 3), normal(6), normal(2, 6, 9, 9)
    for opset, inputs in itertools.product((11, 17), ([x, w], [x, w, b], [x, w, None, z], [x, w, b, z])):
        assert_same(*node_model("FusedConv", inputs, ["y"], opset, MS, attributes))
    attributes = {**attributes, "auto_pad": "SAME_UPPER", "strides": [2, 2], "dilations": [1, 1]}
    del attributes["pads"]
    assert_same(*node_model("FusedConv", [x, w, b], ["y"], 17, MS, attributes))


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [("Relu", {}), ("LeakyRelu", {"alpha": 0.2}), ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}), ("Softsign", {})],
)
def test_fused_gemm(activation: str, parameters: dict[str, float]) -> None:
    own = {f"activation_{name}": number for name, number in parameters.items()}
    attributes = {"transA": 1, "alpha": 0.7, "beta": 0.3, "activation": activation, **own}
    assert_same(*node_model("FusedGemm", [normal(4, 3), normal(4, 5), normal(5)], ["y"], 13, MS, attributes))


def embed_inputs(segments: bool, mask: bool, positions: int) -> list[NDArray[Any] | None]:
    """positions: rows of position_ids, 0 for none."""
    ids = np.random.default_rng(0).integers(0, 7, (2, 5)).astype(np.int32)
    return [
        ids,
        ids % 2 if segments else None,
        normal(7, 16),
        normal(9, 16),
        normal(2, 16) if segments else None,
        normal(16),
        normal(16),
        np.asarray([[1, 1, 1, 0, 0], [1, 0, 1, 1, 2]], np.int32) if mask else None,
        ids[:positions] + 2 if positions else None,
    ]


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize(("segments", "mask", "positions"), [(1, 1, 0), (0, 0, 0), (1, 0, 2), (1, 1, 1)])
def test_embed_layer_norm(opset: int, segments: bool, mask: bool, positions: int) -> None:
    inputs = embed_inputs(segments, mask, positions)
    assert_same(*node_model("EmbedLayerNormalization", inputs, ["y", "mask_index"], opset, MS, {}))
    attributes = {"epsilon": 1e-2}
    assert_same(*node_model("EmbedLayerNormalization", inputs, ["y", "", "sum"], opset, MS, attributes))


# --- ops of the quantizer ---------------------------------------------------------------------------------------------


def quantized(dtype: Any, *shape: int, scale: float = 0.02, zero: int = 3, bits: int = 8) -> list[Any]:
    """A tensor, its scale, and its zero point. Products of 7 bits do not saturate in onnxruntime on any CPU."""
    limits = np.iinfo(dtype)
    whole = np.random.default_rng(sum(shape)).integers(limits.min, limits.max + 1, shape)
    x = (whole >> (8 - bits)).astype(dtype)
    return [x, np.asarray(scale, np.float32), np.asarray(zero, dtype)]


def of_quantized(dtype: Any) -> list[tuple[str, list[NDArray[Any] | None], dict[str, Any]]]:
    """Ops with 8-bit tensors of that dtype: op, inputs, attributes."""
    x, z = quantized(dtype, 2, 4, 6, 6), quantized(dtype, 2, 4, 6, 6, scale=0.05, zero=0)
    to = quantized(dtype, 1, scale=0.03)[1:]
    matrix, unit = quantized(dtype, 5, 4, bits=7), quantized(dtype, 1, scale=1 / 256, zero=np.iinfo(dtype).min)[1:]
    weights = quantized(np.int8, 4, 3, zero=0, bits=7)
    bias = np.arange(3, dtype=np.int32) * 100
    return [
        ("QLinearAdd", [*x, *z, *to], {}),
        ("QLinearMul", [*x, *quantized(dtype, 4, 1, 1), *to], {}),
        ("QLinearSigmoid", [*x, *unit], {}),
        ("QLinearLeakyRelu", [*x, *to], {"alpha": 0.2}),
        ("QLinearSoftmax", [*matrix, *unit], {"axis": -1, "opset": 13}),
        ("QLinearSoftmax", [*matrix, *unit], {"axis": 1, "opset": 11}),
        ("QLinearGlobalAveragePool", [*x, *to], {"channels_last": 0}),
        ("QLinearAveragePool", [*x, *to], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("QLinearConcat", [*to, *x, *z], {"axis": 1}),
        ("QLinearWhere", [x[0] > 3, *x, *z, *to], {}),
        ("QGemm", [*matrix, *weights, bias, *to], {"alpha": 1.0}),
        ("QGemm", [*matrix, *weights, bias], {"alpha": 1.0}),
        ("MatMulIntegerToFloat", [matrix[0], weights[0], matrix[1], weights[1], matrix[2], None, normal(3)], {}),
        ("MatMulIntegerToFloat", [matrix[0], weights[0], matrix[1], weights[1]], {}),
    ]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_ops_of_the_quantizer(dtype: Any) -> None:
    """Where onnxruntime rounds the real result, this does, but for one that lies between two steps."""
    for op_type, inputs, attributes in of_quantized(dtype):
        model, feed = node_model(op_type, inputs, ["y"], 17, MS, attributes)
        assert contrib.is_contrib(model.graph.node[0])
        result = lowered(model).model
        onnx.checker.check_model(result, full_check=True)
        (want,), (got,) = (reference.session(m).run(None, feed) for m in (model, result))
        assert (got.dtype, got.shape) == (want.dtype, want.shape), op_type
        off = np.abs(got.astype(np.float64) - want.astype(np.float64))
        if want.dtype == np.float32:
            assert off.max() <= 1e-5 * np.abs(want).max(), op_type
        else:
            assert off.max() <= 1, op_type
            assert (off > 0).mean() <= 0.03, op_type


def test_dynamic_quantize_matmul() -> None:
    weights = quantized(np.int8, 32, 8, zero=0, bits=6)
    for bias in ([], [None, normal(8)]):
        model, feed = node_model("DynamicQuantizeMatMul", [normal(4, 32), *weights[:2], *bias], ["y"], 17, MS, {})
        assert_same(model, feed, 1e-3)


def test_quantized_forms_that_are_refused() -> None:
    for op_type, attributes, told in (
        ("QLinearAveragePool", {"kernel_shape": [3, 3], "channels_last": 1}, "channels last"),
        ("QLinearSoftmax", {"axis": 1, "opset": 11}, "over several axes"),
    ):
        node = helper.make_node(op_type, ["x", "s", "z", "s", "z"], ["y"], domain=MS, **attributes)
        assert told in str(contrib.refusal(node))


# --- whole models ----------------------------------------------------------------------------------------------------


def optimized(model: ModelProto, path: Path) -> ModelProto:
    """The model as onnxruntime's optimizer writes it at level EXTENDED."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


BERT = """
<ir_version: 8, opset_import: ["" : {opset}]>
bert (int64[2,6] ids, int64[2,6] segments) => (float[2,6,16] y)
<float[8,16] words, float[6,16] positions, float[2,16] kinds, float[16] g, float[16] b, float[16,32] w1, float[32] b1,
 float[32,16] w2, float[16] b2, float[32,16] w3>
{{
    half = Constant <value = float {{0.5}}> ()
    one = Constant <value = float {{1.0}}> ()
    two = Constant <value = float {{2.0}}> ()
    root = Constant <value = float {{1.4142135381698608}}> ()
    eps = Constant <value = float {{0.000001}}> ()
    cube = Constant <value = float {{0.044715}}> ()
    three = Constant <value = float {{3.0}}> ()
    rate = Constant <value = float {{0.7978845608}}> ()
    e1 = Gather (words, ids)
    e2 = Gather (kinds, segments)
    e3 = Add (e1, positions)
    e = Mul (e3, e2)
    {norm_e}
    h1 = MatMul (ne, w1)
    h = Add (h1, b1)
    d = Div (h, root)
    f = Erf (d)
    p = Add (f, one)
    q = Mul (h, p)
    r = Mul (q, half)
    o1 = MatMul (r, w2)
    o = Add (o1, b2)
    s = Add (o, ne)
    {norm_s}
    t1 = MatMul (ns, w1)
    t2 = Pow (t1, three)
    t3 = Mul (t2, cube)
    t4 = Add (t1, t3)
    t5 = Mul (t4, rate)
    t6 = Tanh (t5)
    t7 = Add (t6, one)
    t8 = Mul (t1, half)
    t9 = Mul (t8, t7)
    u = MatMul (t9, w3)
    v = Add (u, ns)
    v2 = Pow (v, two)
    vm = ReduceMean <axes = [-1]> (v2)
    ve = Add (vm, eps)
    vs = Sqrt (ve)
    vd = Div (v, vs)
    z = Mul (g, vd)
    zt = Transpose <perm = [0, 2, 1]> (z)
    zz = MatMul (z, zt)
    y = MatMul (zz, z)
}}
"""
NORM = """
    {x}m = ReduceMean <axes = [-1]> ({x})
    {x}d = Sub ({x}, {x}m)
    {x}p = Pow ({x}d, two)
    {x}v = ReduceMean <axes = [-1]> ({x}p)
    {x}e = Add ({x}v, eps)
    {x}s = Sqrt ({x}e)
    {x}n = Div ({x}d, {x}s)
    {x}w = Mul ({x}n, g)
    n{x} = Add ({x}w, b)
"""


def bert(opset: int) -> tuple[ModelProto, Feed]:
    """A small graph with the fused ops of a BERT before onnxruntime fuses them."""
    text = BERT.format(opset=opset, norm_e=NORM.format(x="e"), norm_s=NORM.format(x="s"))
    model = onnx.parser.parse_model(text)
    for info in list(model.graph.value_info):
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        model.graph.initializer.append(numpy_helper.from_array(normal(*shape), info.name))
    del model.graph.value_info[:]
    random = np.random.default_rng(1)
    return model, {"ids": random.integers(0, 8, (2, 6)), "segments": random.integers(0, 2, (2, 6))}


@cpu_only
@pytest.mark.parametrize("opset", [13, 17])
def test_a_model_from_onnxruntime_s_optimizer(opset: int, tmp_path: Path) -> None:
    """It is checked, inspected, lowered to the same function, and built; with LayerNormalization in the default domain,
    which ONNX lacks in opset 13, and SimplifiedLayerNormalization, which ONNX lacks in any."""
    path = tmp_path / "m.onnx"
    model, feed = bert(opset)
    model = optimized(model, path)
    ops = Counter((n.domain, n.op_type) for n in model.graph.node)
    own = {(MS, name) for name in ("FastGelu", "FusedMatMul", "Gelu", "SkipLayerNormalization")}
    assert own | {("", "SimplifiedLayerNormalization"), ("", "LayerNormalization")} <= set(ops)
    assert_same(model, feed)
    report = inspect_model(path)
    assert {n.op for n in report.nodes if n.status == "expanded"} >= {f"{MS}::FastGelu"}
    assert {n.status for n in report.nodes} == {"native", "expanded"}
    result = build(path)
    assert "FastGelu x1 (onnxruntime's) written as standard ONNX" in result.notices
    assert result.plan.is_file()


@cpu_only
@pytest.mark.parametrize("name", ["near_miss", "sam_upscaler", "vit_block", "wav2vec2_features"])
def test_a_sample_from_onnxruntime_s_optimizer(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = optimized(onnx.load(SAMPLES / f"{name}.onnx"), path)
    assert any(n.domain == MS for n in model.graph.node)
    feed = {}
    for info in model.graph.input:
        shape = graph.describe(info).shape or ()
        feed[info.name] = normal(*(d if isinstance(d, int) else 2 for d in shape))
    assert_same(model, feed, tolerance=3e-6)  # the whole of a model, not one op
    assert build(path).plan.is_file()
    fuse(path, output=tmp_path / "fused.onnx")


BUILT = [row for row in ROWS if len(row[3]) == 1 or row[3][-1] == "sum"]


@cpu_only
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("row", BUILT, ids=lambda row: f"{row[0]}-{len(row[2])}-{len(row[3])}")
def test_each_builds(row: Row, dtype: Any, tmp_path: Path) -> None:
    for opset in (13, 17):
        path = tmp_path / f"{opset}.onnx"
        onnx.save(row_model(row, dtype, opset)[0], path)
        assert build(path, options=BuildOptions(targets=("sm_86",))).plan.is_file()


@cpu_only
@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "attributes"),
    [
        ("FusedMatMul", [normal(4, 2, 3, 5), normal(2, 3, 6, 5)], ["y"], {"transBatchA": 1, "transB": 1, "alpha": 2.0}),
        ("FusedConv", [normal(1, 4, 9, 9), normal(6, 4, 3, 3), normal(6), normal(1, 6, 7, 7)], ["y"], {"activation": "Relu"}),
        ("FusedGemm", [normal(4, 3), normal(3, 5)], ["y"], {"activation": "Tanh"}),
        ("EmbedLayerNormalization", embed_inputs(True, True, 0), ["y", "mask_index"], {}),
        ("EmbedLayerNormalization", embed_inputs(False, False, 1), ["y", "mask_index", "sum"], {}),
    ],
)  # fmt: skip
def test_others_build(op_type: str, inputs: list[Any], outputs: list[str], attributes: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(node_model(op_type, inputs, outputs, 17, MS, attributes)[0], path)
    assert build(path, options=BuildOptions(targets=("sm_86",))).plan.is_file()


# --- where they stand, who else wants them, and what cannot be written ---------------------------------------------------


def two_gelus(opset: int = 13) -> ModelProto:
    """Half precision, in a subgraph, behind each other."""
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>
        g (float16[2,4] x, bool c) => (float16[2,4] y) {{
            a = com.microsoft.Gelu (x)
            b = Neg (a)
            y = If (c) <
                then_branch = t () => (float16[2,4] p) {{ p = com.microsoft.FastGelu (b) }},
                else_branch = e () => (float16[2,4] q) {{ q = com.microsoft.QuickGelu <alpha = 1.5> (b) }}
            >
        }}""")


def test_in_subgraphs_and_behind_each_other() -> None:
    for c in (True, False):
        assert_same(two_gelus(), {"x": normal(2, 4, dtype=np.float16), "c": np.asarray(c)}, 2e-3)


def test_inference_goes_on_behind_them() -> None:
    model = two_gelus()
    known = graph.infer(contrib.for_inference(onnx_model.copy(model)))
    assert known[0]["b"] == graph.TensorInfo("float16", (2, 4))
    assert model == two_gelus()


def test_equal_nodes_share_a_body_and_names_stay_unique() -> None:
    model = two_gelus()
    again = model.graph.node.add()
    again.CopyFrom(model.graph.node[0])
    again.output[0] = "a2"
    result = lowered(model)
    made = [name for g in onnx_model.all_graphs(result.model.graph) for n in g.node for name in n.output]
    assert len(made) == len(set(made))
    assert result.notes[0] == "Gelu x2 (onnxruntime's) written as standard ONNX"


def test_a_model_s_own_definition_counts() -> None:
    model = two_gelus()
    body = [helper.make_node("Relu", ["x"], ["y"])]
    model.functions.append(helper.make_function(MS, "Gelu", ["x"], ["y"], body, [helper.make_opsetid("", 13)]))
    assert any(n.op_type == "Relu" for n in lowered(model).model.graph.node)


def test_a_plugin_of_that_name_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gelu(Op):
        """y = gelu(x)"""

        def output(self, x: Any) -> Any:
            return x

    monkeypatch.setattr(custom, "ops", lambda: [*registry.ops(), Gelu])
    result = lowered(two_gelus())
    assert [node.op for node in result.plugin_nodes] == [Gelu]
    assert not any(note.startswith("Gelu ") for note in result.notes)


@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "attributes", "words"),
    [
        ("FusedConv", ["x", "w"], ["y"], {"activation": "Swish"}, "activation 'Swish'"),
        ("FusedConv", ["x", "w"], ["y"], {"activation": "Clip"}, "with parameters"),
        ("SkipSimplifiedLayerNormalization", ["x", "x", "w"], ["y", "mean"], {}, "output 'mean'"),
        ("BiasGelu", ["x"], ["y"], {}, "has 1 inputs, onnxruntime defines 2 to 2"),
        ("Attention", ["x", "w"], ["y"], {"num_heads": 2}, "level BASIC"),
    ],
)
def test_what_cannot_be_written(
    op_type: str, inputs: list[str], outputs: list[str], attributes: Any, words: str, tmp_path: Path
) -> None:
    """The error names the node; inspect says unsupported; inference does not mind."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4]) for n in "xwy"]
    node = helper.make_node(op_type, inputs, outputs, domain=MS, name="here", **attributes)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    model = helper.make_model(
        helper.make_graph([node], "g", values[:2], values[2:]), opset_imports=opsets, ir_version=8
    )
    with pytest.raises(ConvertError) as raised:
        lowered(model)
    assert words in str(raised.value)
    assert "here" in str(raised.value)
    onnx.save(model, tmp_path / "m.onnx")
    assert [n.status for n in inspect_model(tmp_path / "m.onnx").nodes] == ["unsupported"]
    assert contrib.for_inference(onnx_model.copy(model)).graph == model.graph


def test_cli_shows_what_was_written(run: Any, tmp_path: Path) -> None:
    if gpu.current() is not None:
        pytest.skip("asserts an ahead-of-time build, as on a CPU")
    onnx.save(row_model(ROWS[0], np.float32, 17)[0], tmp_path / "m.onnx")
    result = run("build", tmp_path / "m.onnx", "--target", "sm_86")
    assert "note: Gelu x1 (onnxruntime's) written as standard ONNX" in result.stderr
    assert "expanded" in run("inspect", tmp_path / "m.onnx").stdout


def test_the_real_parser_has_these_importers() -> None:
    known = backend.supports(backend.select("rtx"))
    assert known("Relu")
    assert known("Constant")
    assert not known("Det")


@pytest.mark.parametrize("inputs", [["x", "", "b"], ["", "g", "b"]])
def test_a_required_input_that_is_left_out(inputs: list[str]) -> None:
    node = helper.make_node("LayerNormalization", inputs, ["y"], domain="com.microsoft")
    assert "lacks an input that it needs" in str(contrib.refusal(node))
