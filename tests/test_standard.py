"""Standard ops in forms that TensorRT lacks: what is written for them computes what ONNX's node tests expect."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnxruntime import quantization

from tests.conftest import SAMPLES
from tests.suites import attempts, onnx_nodes
from trtconvert import ConvertError, backend, build, gpu, reference, saturation
from trtconvert import model as onnx_model
from trtconvert.lower import Lowered, lower
from trtconvert.options import BuildOptions
from trtconvert.profiles import bake
from trtconvert.standard import WRITERS

# ONNX's node tests have no case of the form that is written, or none that an integer type of TensorRT's serves.
UNTESTED = {"Cast", "Celu", "MatMul", "Mod", "Range"}
Cases = dict[str, list[onnx_nodes.Case]]
RANDOM = np.random.default_rng(0)
cpu_only = pytest.mark.skipif(gpu.current() is not None, reason="asserts ahead-of-time builds, as on a CPU")


@pytest.fixture(scope="module")
def rtx() -> Any:
    return backend.supports(backend.select("rtx"))


@pytest.fixture(scope="module")
def found() -> Cases:
    by_op: Cases = {}
    for case in onnx_nodes.cases():
        if not case.name.endswith("_expanded"):
            by_op.setdefault(case.op, []).append(case)
    return by_op


@pytest.mark.parametrize("op", sorted(WRITERS))
def test_node_tests(op: str, found: Cases, rtx: Any) -> None:
    """Of each op that is written in some forms: ONNX's tests of all its forms."""
    rewritten = 0
    for case in found[op]:
        model = onnx.load_from_string(case.model)
        if any(value.type.WhichOneof("value") != "tensor_type" for value in (*model.graph.input, *model.graph.output)):
            continue
        bake.bake(model, {name: case.inputs[name] for name in case.parameters})
        lowered = lower(model, Path(), rtx, lenient=True)
        if lowered.faults or not any(op in note for note in lowered.notes):
            continue
        rewritten += 1
        if not lowered.plugin_nodes:  # those have outputs that ONNX' op has not
            onnx_model.check(lowered.model)
        assert attempts.difference(case, model, lowered.model) == "equal", case.name
    assert rewritten or op in UNTESTED


# --- beyond the node tests -------------------------------------------------------------------------------------------


def graph(inputs: str, outputs: str, nodes: str, opset: int = 21) -> ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
    )


def same(model: ModelProto, rtx: Any, feed: dict[str, NDArray[Any]]) -> Lowered:
    """The model lowers to another one that onnxruntime computes the same with."""
    onnx_model.check(model)
    lowered = lower(model, Path(), rtx)
    assert [n.op_type for n in lowered.model.graph.node] != [n.op_type for n in model.graph.node]
    onnx_model.check(lowered.model)
    expected, got = (reference.session(m).run(None, feed) for m in (model, lowered.model))
    for a, b in zip(expected, got, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
    return lowered


@pytest.mark.parametrize("inner", [3, 258, 259, 1000, 5000])
def test_products_of_integers_are_exact(inner: int, rtx: Any) -> None:
    """Sums of more products than float32 holds exactly are taken apart. onnxruntime's own saturate on CPUs without VNNI."""
    model = graph(f"uint8[2,{inner}] a, int8[{inner},3] b, uint8 z", "int32[2,3] y", "y = MatMulInteger (a, b, z)")
    feed = {
        "a": RANDOM.integers(0, 256, (2, inner)).astype(np.uint8),
        "b": np.full((inner, 3), -128, np.int8),
        "z": np.asarray(7, np.uint8),
    }
    lowered = lower(model, Path(), rtx).model
    assert "MatMulInteger" not in {n.op_type for n in lowered.graph.node}
    (y,) = reference.session(lowered).run(None, feed)
    assert y.dtype == np.int32
    assert (y == (feed["a"].astype(np.int64) - 7) @ feed["b"].astype(np.int64)).all()


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Max"])
def test_uint8_wraps(op: str, rtx: Any) -> None:
    model = graph("uint8[256,1] a, uint8[256] b", "uint8[256,256] y", f"y = {op} (a, b)")
    every = np.arange(256, dtype=np.uint8)
    lowered = lower(model, Path(), rtx).model
    (y,) = reference.session(lowered).run(None, {"a": every[:, None], "b": every})
    expected = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum}[op](every[:, None], every)
    assert y.dtype == np.uint8
    assert (y == expected).all()


def test_uint8_that_moves_before_the_cast(rtx: Any) -> None:
    """A Cast straight behind an input stays as it is; other nodes get the input as int32."""
    image = graph("uint8[1,4,4,3] x", "float[1,4,4,3] y", "y = Cast <to = 1> (x)")
    assert [n.op_type for n in lower(image, Path(), rtx).model.graph.node] == ["Cast"]
    moved = graph("uint8[1,4,4,3] x", "float[1,3,4,4] y", "t = Transpose <perm = [0,3,1,2]> (x) y = Cast <to = 1> (t)")
    same(moved, rtx, {"x": RANDOM.integers(0, 256, (1, 4, 4, 3)).astype(np.uint8)})


def test_quantization_in_pairs_stays(rtx: Any) -> None:
    """There int8 is meant: preflight says what TensorRT makes of it."""
    model = graph(
        "float[4] x",
        "float[4] y",
        "s = Constant <value = float {0.1}> () z = Constant <value = uint8 {3}> ()"
        " q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)",
    )
    assert "QuantizeLinear" in {n.op_type for n in lower(model, Path(), rtx).model.graph.node}


def test_rounding_before_opset_11(rtx: Any) -> None:
    """To even between two, without Round."""
    model = graph("float[9] x, float s, uint8 z", "uint8[9] y", "y = QuantizeLinear (x, s, z)", opset=10)
    x = np.asarray([0.5, 1.5, 2.5, -0.5, -1.5, 3.49, 3.51, 300, -300], np.float32)
    lowered = same(model, rtx, {"x": x, "s": np.asarray(1, np.float32), "z": np.asarray(10, np.uint8)})
    assert "Round" not in {n.op_type for n in lowered.model.graph.node}


def attention(dtype: int, size: int, **attributes: Any) -> ModelProto:
    values = [helper.make_tensor_value_info(n, dtype, [1, 2, 8, size]) for n in "qkvy"]
    node = helper.make_node("Attention", list("qkv"), ["y"], name="a", **attributes)
    made = helper.make_graph([node], "g", values[:3], values[3:])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def test_attention_stays_where_tensorrt_has_a_kernel(rtx: Any) -> None:
    kept = lower(attention(TensorProto.FLOAT16, 64, is_causal=1), Path(), rtx).model
    assert [n.op_type for n in kept.graph.node] == ["Attention"]
    for dtype, size, attributes in (
        (TensorProto.FLOAT, 64, {}),
        (TensorProto.FLOAT16, 8, {}),
        (TensorProto.FLOAT16, 64, {"softcap": 3.0}),
    ):
        gone = lower(attention(dtype, size, **attributes), Path(), rtx).model
        assert "Attention" not in {n.op_type for n in gone.graph.node}


POOLS = [
    "AveragePool <kernel_shape = [2,3], strides = [2,1], dilations = [2,1], pads = [1,0,0,1], count_include_pad = 1>",
    "AveragePool <kernel_shape = [3,2], dilations = [1,2], ceil_mode = 1, strides = [2,2], pads = [1,1,1,1]>",
    "MaxPool <kernel_shape = [3,2], dilations = [2,2], pads = [2,1,2,0], strides = [2,3]>",
    'AveragePool <kernel_shape = [2,2], dilations = [2,2], auto_pad = "VALID">',
    "MaxPool <kernel_shape = [2,2], ceil_mode = 1, strides = [3,3]>",
]


@pytest.mark.parametrize("pool", POOLS)
def test_pooling(pool: str, rtx: Any) -> None:
    model = graph("float[2,3,10,11] x", "float y", f"y = {pool} (x)", 22 if pool.startswith("Average") else 12)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    x = RANDOM.standard_normal((2, 3, 10, 11)).astype(np.float32)
    lowered = lower(model, Path(), rtx).model
    expected, got = (reference.session(m).run(None, {"x": x})[0] for m in (model, lowered))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("layout", "kind"), list(itertools.product((0, 1), ("GRU", "LSTM", "RNN"))))
def test_batch_first_recurrence(layout: int, kind: str, rtx: Any) -> None:
    """TensorRT's parser does not look at the layout."""
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[kind]
    values = [("x", [5, 2, 3]), ("w", [1, gates * 4, 3]), ("r", [1, gates * 4, 4])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "h")]
    node = helper.make_node(kind, ["x", "w", "r"], ["y", "h"], hidden_size=4, layout=layout)
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 22)], ir_version=10
    )
    (made,) = [n for n in lower(model, Path(), rtx).model.graph.node if n.op_type == kind]
    assert onnx_model.attribute_values(made).get("layout", 0) == 0
    assert (made.input[0] == "x") == (layout == 0)


def test_what_is_not_known_is_told(tmp_path: Path) -> None:
    """With the node, the reason, and what to do."""
    model = graph("float[1,N,2] x", "float[1,N,2] y", "y = DFT <axis = 1> (x)", opset=17)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ConvertError) as caught:
        build(tmp_path / "m.onnx", options=BuildOptions(targets=("sm_89",), shapes={}))
    message = str(caught.value)
    assert "DFT" in message or "N" in message
    assert "fix" in message


def test_a_table_too_large_is_told(rtx: Any) -> None:
    model = graph("float[1,100000,2] x", "float[1,100000,2] y", "y = DFT <axis = 1> (x)", opset=17)
    with pytest.raises(ConvertError, match="table of 100000 x 2 x 100000 x 2 elements"):
        lower(model, Path(), rtx)


def test_sequences_do_not_end_the_process(found: Cases, rtx: Any) -> None:
    """ONNX's writer of SequenceMap's body does, when it is given a sequence."""
    for case in found["SequenceMap"]:
        lowered = lower(onnx.load_from_string(case.model), Path(), rtx, lenient=True)
        assert "SequenceMap" in {n.op_type for n in lowered.model.graph.node}


# --- the suite -----------------------------------------------------------------------------------------------------


@cpu_only
def test_the_suite_counts() -> None:
    wanted = "^test_(cumsum_1d|det_2d|add_int16|reduce_sum_keepdims_random)$"
    rows = list(onnx_nodes.run_all(onnx_nodes.cases(wanted), attempts.Attempt("sm_89", plain=True, check=True)))
    text = onnx_nodes.report(rows, 1.0)
    assert "4 models: 2 built, 2 explained, 0 crash, 0 traceback, 0 hang" in text
    assert "| explained | Det |" in text
    assert "int16, which TensorRT lacks" in text
    assert "lowered: 2 of 2 compute what the test expects" in text
    assert {row.name: row.answer.baked for row in rows}["test_cumsum_1d"] == ("axis",)


def test_a_crash_and_an_exception_are_rows() -> None:
    (case,) = onnx_nodes.cases("^test_det_2d$")
    assert onnx_nodes._row(case, "crash", "ended with exit code -6").answer.outcome == "crash"
    assert onnx_nodes._row(case, "crash", "took over 60 s").answer.outcome == "hang"
    assert onnx_nodes._row(case, "error", "KeyError: 1").answer.outcome == "traceback"


INTEGER_PRODUCTS = {
    "MatMulInteger": ("uint8[4,512] a, int8[512,16] b", "int32[4,16] y", "y = MatMulInteger (a, b)"),
    "ConvInteger": (
        "uint8[4,512,1] a, int8[512,16] b",
        "int32[4,16,1] y",
        "t = Transpose (b) w = Unsqueeze (t, A) y = ConvInteger (a, w)",
    ),
    "QLinearMatMul": (
        "uint8[4,512] a, int8[512,16] b",
        "int8[4,16] y",
        "s = Constant <value = float {1.0}> () l = Constant <value = float {1048576.0}> () z = Constant <value = uint8 {0}> () "
        "i = Constant <value = int8 {0}> () y = QLinearMatMul (a, s, z, b, s, i, l, i)",
    ),
}


@pytest.mark.parametrize("name", INTEGER_PRODUCTS)
def test_the_reference_does_not_saturate(name: str) -> None:
    """onnxruntime's own products do on CPUs without VNNI."""
    model = graph(*INTEGER_PRODUCTS[name])
    if name == "ConvInteger":
        model.graph.initializer.append(numpy_helper.from_array(np.array([2]), "A"))
    a, b = np.full((4, 512), 255, np.uint8), np.full((512, 16), 127, np.int8)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    (y,) = reference.run(model, Path(), {"a": a.reshape(shape), "b": b}).values()
    wanted = 512 * 255 * 127
    assert (y == (wanted if name != "QLinearMatMul" else round(wanted / 2**20))).all()


def test_only_saturating_products_are_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing where none is wrong, or none is there."""
    product, other = graph(*INTEGER_PRODUCTS["MatMulInteger"]), graph("float[4] x", "float[4] y", "y = Neg (x)")
    for wrong in (True, False):
        monkeypatch.setattr(saturation, "here", lambda wrong=wrong: wrong)
        assert saturation.without(other, Path()) is other
        assert (saturation.without(product, Path()) is product) is not wrong
    assert [n.op_type for n in product.graph.node] == ["MatMulInteger"]


@pytest.mark.parametrize("weights", ["QInt8", "QUInt8"])
def test_models_of_the_dynamic_quantizer_build(weights: str, tmp_path: Path) -> None:
    """TensorRT takes constants of int8 before DequantizeLinear only; the quantizer writes them before MatMulInteger."""
    path = tmp_path / "dynamic.onnx"
    quantization.quantize_dynamic(SAMPLES / "vit_block.onnx", path, weight_type=quantization.QuantType[weights])
    assert "MatMulInteger" in {n.op_type for n in onnx.load(path).graph.node}
    assert build(path, tmp_path / "dynamic.plan", BuildOptions(targets=("sm_89",))).plan.is_file()
