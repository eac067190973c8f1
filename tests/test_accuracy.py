"""What verify measures and compares with: errors in numbers, the reference and the twin, and the node behind NaN and Inf."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from tests.graphs import graph
from trtconvert.accuracy import metrics
from trtconvert.accuracy.proof import REFERENCE, TWIN, Proof
from trtconvert.accuracy.references import in_fp64, precision_of, reference_of, twin_of
from trtconvert.accuracy.results import Channel, OutputResult
from trtconvert.accuracy.running import ModelRun
from trtconvert.accuracy.shares import Trial
from trtconvert.backend import select

HERE = Path()
RANDOM = np.random.default_rng(5)
LAYER_NORM = (
    "m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) e = Add(v, eps)"
    " s = Sqrt(e) y = Div(d, s)"
)


def half(number: float) -> str:
    """An fp16 constant as ONNX text has it: its bits."""
    return f"{{{int(np.float16(number).view(np.uint16))}}}"


def outputs(model: ModelProto, **arrays: np.ndarray) -> dict[str, np.ndarray]:
    return ModelRun(model, HERE).run(arrays)


def judged(model: ModelProto, got: dict[str, np.ndarray], **arrays: np.ndarray) -> dict[str, OutputResult]:
    """Verdicts on what an engine of the model would return."""
    proof = Proof(model, HERE)
    ran = {**proof.run({}, arrays), "engine": got}
    return {row.output: row for row in proof.rows("engine", "test", arrays, ran)}


# --- errors in numbers ---------------------------------------------------------------------------------------------


def test_errors_of_a_known_difference() -> None:
    errors = metrics.measure(np.array([3.0, 4.5]), np.array([3.0, 4.0]))
    assert (errors.elements, errors.max_abs, errors.rel_l2) == (2, 0.5, 0.1)
    assert errors.max_rel == 0.125
    assert errors.cosine == pytest.approx((9 + 18) / (5 * np.hypot(3, 4.5)))
    assert errors.quantiles["0.5"] == 0.25
    assert errors.channel is None, "slices of one element each"
    errors = metrics.measure(np.ones((2, 8)) * [[1.0], [1.5]], np.ones((2, 8)))
    assert errors.channel == Channel(0, 1, 0.5)
    assert metrics.measure(np.array([np.nan, 1.0]), np.array([1.0, 1.0])).elements == 1
    assert metrics.measure(np.zeros((0, 3)), np.zeros((0, 3))).rel_l2 == 0.0


def test_systematic_error_is_told_from_noise() -> None:
    """A gain of 1e-3 in noise three times as large shows by value; an offset of every third column by axis; noise alone not."""
    want = RANDOM.standard_normal((256, 48))
    noise = 3e-3 * RANDOM.standard_normal(want.shape)
    low, high = metrics.measure(want * 1.001 + noise, want).bias["value"]
    assert low <= 1e-3 <= high < 1.3e-3
    columns = np.where(np.arange(48) % 3 == 0, 1e-3, 0.0)
    bias = metrics.measure(want + columns + noise, want).bias
    assert bias["axis 1"][0] > 3e-4 > bias["axis 0"][0]
    assert all(low < 2e-4 for low, _ in metrics.measure(want + noise, want).bias.values())


def test_one_channel_of_many() -> None:
    want = RANDOM.standard_normal((8, 4096))
    got = want + 1e-6
    got[:, 4000] *= 1.02
    errors = metrics.measure(got, want)
    assert errors.rel_l2 < 1e-3
    assert errors.channel is not None
    assert (errors.channel.axis, errors.channel.index) == (1, 4000)


def test_evidence_is_bounded() -> None:
    want = RANDOM.standard_normal(100_000)
    got = want + 1e-4 * RANDOM.standard_normal(want.shape)
    got[77] = np.nan
    evidence = metrics.evidence(got, want)
    assert len(evidence.counts) == 64
    assert sum(evidence.counts) + evidence.exact == want.size - 1
    assert len(evidence.expected) == len(evidence.got) == 1024
    assert len(evidence.worst) == 16
    assert evidence.worst[0].index == (77,)


# --- reference and twin --------------------------------------------------------------------------------------------


def test_twin_cuts_the_operands_of_products_to_tf32() -> None:
    """To 10 bits of mantissa, to the nearest even; Inf and very large numbers pass through."""
    x = RANDOM.standard_normal((4, 64)).astype(np.float32)
    x[0, 0] = 3e38
    model = graph("y = MatMul(x, one)", "float[4,64] x", "float[4,64] y", "float one = {1}")
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.eye(64, dtype=np.float32), "one"))
    bits = x.view(np.uint32)
    want = ((bits + 0x0FFF + ((bits >> 13) & 1)) & 0xFFFFE000).view(np.float32)
    want[0, 0] = x[0, 0]
    np.testing.assert_array_equal(outputs(twin_of(model), x=x)["y"][1:], want[1:])
    assert np.isfinite(outputs(twin_of(model), x=x)["y"]).all()


def test_what_goes_into_convolutions_may_be_cut_off() -> None:
    """Towards zero, at powers of two too; an engine that does so is no wrong one, one that is off by as much again is."""
    x = RANDOM.standard_normal((1, 8, 16, 16)).astype(np.float32)
    x[0, 0, 0, :4] = [0, 1, np.nextafter(np.float32(1), np.float32(0)), -np.nextafter(np.float32(2), np.float32(1))]
    model = graph("y = Conv<group=8>(x, one)", "float[1,8,16,16] x", "float[1,8,16,16] y", "float one = {1}")
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((8, 1, 1, 1), np.float32), "one"))
    got = outputs(twin_of(model, cuts=True), x=x)["y"]
    np.testing.assert_array_equal(got, (x.view(np.uint32) & 0xFFFFE000).view(np.float32))
    assert judged(model, {"y": got}, x=x)["y"].passed
    assert not judged(model, {"y": (got * np.float32(1 - 7e-4)).astype(np.float32)}, x=x)["y"].passed


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_twin_rounds_each_result(dtype: type) -> None:
    """Also where onnxruntime keeps fp32 between two ops, and for bf16, for which it has no kernels; in bodies too."""
    name = "float16" if dtype is np.float16 else "bfloat16"
    bodies = (
        f"{side} = g () => ({name}[8] b) {{ b = {op}(a, x) }}"
        for side, op in (("then_branch", "Add"), ("else_branch", "Sub"))
    )
    model = graph(f"a = Mul(x, x) y = If(c) <{', '.join(bodies)}>", f"bool c, {name}[8] x", f"{name}[8] y")
    x = RANDOM.standard_normal(8).astype(dtype)
    got = outputs(twin_of(model), c=np.array(True), x=x)["y"]
    np.testing.assert_array_equal(got, ((x * x).astype(dtype) + x).astype(np.float32))
    exact = x.astype(np.float32) ** 2 + x.astype(np.float32)
    np.testing.assert_allclose(outputs(reference_of(model), c=np.array(True), x=x)["y"], exact, rtol=1e-6)


def test_reference_in_fp64_goes_around_ops_that_have_no_kernel_for_it() -> None:
    """Erf has none, Mul and Sum have."""
    model = graph("e = Erf(x) z = Mul(e, k) y = Cast<to=1>(z)", "float[2,4] x", "float[2,4] y", "float k = {0.1}")
    x = RANDOM.standard_normal((2, 4)).astype(np.float32)
    made = in_fp64(model)
    assert "Erf" in [node.op_type for node in made.graph.node]
    got = outputs(made, x=x)["y"]
    assert got.dtype == np.float64
    erf = outputs(graph("y = Erf(x)"), x=x)["y"]
    np.testing.assert_array_equal(got, erf.astype(np.float64) * np.float64(np.float32(0.1)))


def test_products_of_quantized_integers_are_exact() -> None:
    """What comes from DequantizeLinear on both sides is not cut to TF32."""
    text = "w = DequantizeLinear(q, s) a = QuantizeLinear(x, s) b = DequantizeLinear(a, s) y = MatMul(b, w)"
    model = graph(text, weights="float s = {0.017}, int8[4,4] q = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}")
    assert precision_of(model) == "int8"
    x = RANDOM.standard_normal((2, 4)).astype(np.float32)
    np.testing.assert_array_equal(outputs(twin_of(model), x=x)["y"], outputs(model, x=x)["y"])


# --- NaN, Inf, integers --------------------------------------------------------------------------------------------


def test_overflow_names_the_first_node() -> None:
    """LayerNorm written out, in fp16, of values near 300: the square overflows. The model's own overflow is no fault of the
    engine, the conversion's is."""
    short = graph(LAYER_NORM, "float16[2,64] x", "float16[2,64] y", f"float16 eps = {half(1e-5)}")
    single = graph(LAYER_NORM, "float[2,64] x", "float[2,64] y", "float eps = {0.00001}")
    for node in short.graph.node:
        node.name = f"node {node.output[0]}"
    x = (300 * RANDOM.standard_normal((2, 64))).astype(np.float32)
    assert (outputs(twin_of(short), x=x)["y"] == 0).all(), "divided by Inf"
    row = judged(short, {"y": np.zeros((2, 64), np.float16)}, x=x)["y"]
    assert "relative L2 1 > 0.1" in row.fault, "no twin excuses that"
    assert "the model itself is off by 1, for NaN or Inf first made by node q (Mul)" in row.node
    right = outputs(single, x=x)["y"].astype(np.float16)
    assert judged(short, {"y": right}, x=x)["y"].passed, "an engine may do better"
    strange = np.full((2, 64), np.nan, np.float32)
    proof = Proof(single, HERE, converted=(short, HERE))
    ran = {**proof.run({}, {"x": x}), "engine": {"y": strange}}
    row = next(iter(proof.rows("engine", "test", {"x": x}, ran)))
    assert "128 of 128 elements are NaN or Inf where the reference is not" in row.fault
    assert row.node.endswith("first made by node q (Mul)")
    assert row.first_bad is not None
    assert row.first_bad.index == (0, 0)


def test_the_models_own_nan_and_inf_pass() -> None:
    model = graph("a = Log(x) y = Sqrt(a)")
    x = np.array([[0, -1, 1, 2], [3, 4, 0.5, 6]], np.float32)
    with np.errstate(all="ignore"):
        right = np.sqrt(np.log(x))
    assert judged(model, {"y": right}, x=x)["y"].passed
    right[1, 3] = np.nan
    row = judged(model, {"y": right}, x=x)["y"]
    assert "1 of 8 elements are NaN or Inf" in row.fault
    assert "stays finite" not in row.node, "the model makes NaN of its own"


def test_integers_are_exact_but_where_rounding_decides() -> None:
    """ArgMax of two that fp16 cannot tell apart may be either; of others not."""
    model = graph(
        "h = Mul(x, k) y = ArgMax<axis=1, keepdims=0>(h)",
        "float16[2,2] x",
        "int64[2] y",
        f"float16 k = {half(0.339111328125)}",
    )
    x = np.array([[1.5, 1.501], [1.0, 2.0]], np.float16)
    proof = Proof(model, HERE)
    ran = proof.run({}, {"x": x})
    tie = ran[REFERENCE]["y"] != ran[TWIN]["y"]
    assert tie.tolist() == [True, False]
    assert judged(model, {"y": ran[REFERENCE]["y"]}, x=x)["y"].passed
    assert judged(model, {"y": ran[TWIN]["y"]}, x=x)["y"].passed
    assert "1 of 2 elements differ" in judged(model, {"y": 1 - ran[REFERENCE]["y"]}, x=x)["y"].fault


def test_json_has_everything_and_no_nan() -> None:
    """NaN and Inf are text: JSON knows neither."""
    model = graph("y = Relu(x)")
    x = np.ones((2, 4), np.float32)
    written = judged(model, {"y": np.full((2, 4), np.nan, np.float32)}, x=x)["y"].as_dict()
    assert written["first_bad"] == {"index": [0, 0], "got": "nan", "expected": 1.0}
    assert written["evidence"]["worst"][0]["got"] == "nan"
    assert written["twin"]["rel_l2"] == 0.0
    assert not written["passed"]


# --- what hides below the noise ------------------------------------------------------------------------------------


def test_shares_of_suspects() -> None:
    """Two deviations of 1e-4 in noise of 1e-3: each is told from the other, and from what the twin rounds alike."""
    want = RANDOM.standard_normal(40_000)
    first, second, rounding = 1e-4 * np.sin(3 * want), 1e-4 * want, 1e-3 * RANDOM.standard_normal(want.size)
    suspected = [want + first, want + second]
    noise = 2e-4 * RANDOM.standard_normal(want.size)
    for planted, expected in ((first, [0]), (second, [1]), (first + second, [0, 1]), (0 * want, [])):
        trial = Trial(2)
        trial.hear(want + planted + rounding + noise, want, want + rounding, suspected)
        found = dict(trial.found())
        assert [*found] == expected
        assert all(abs(share - 1) < 0.1 for share in found.values())
    trial = Trial(2)
    for _ in range(3):  # the twin itself does what the first suspect does: nothing can be told of that
        trial.hear(want + first + noise, want, want + first + rounding, suspected)
    assert [*trial.found()] == []


@pytest.mark.parametrize(("now", "then"), [("none", "tanh"), ("tanh", "none")])
def test_the_other_gelu_is_named(now: str, then: str) -> None:
    """By an fp16 engine's last rounding hidden; the right one passes."""
    select("rtx")
    texts = [f'y = Gelu<approximate="{name}">(x)' for name in (now, then)]
    right, wrong = (graph(t, "float16[64,64] x", "float16[64,64] y", opset=20, ir=9) for t in texts)
    x = RANDOM.standard_normal((64, 64)).astype(np.float16)
    engine = {
        name: outputs(reference_of(m), x=x)["y"].astype(np.float16) for name, m in (("right", right), ("wrong", wrong))
    }
    assert judged(right, {"y": engine["right"]}, x=x)["y"].passed
    fault = judged(right, {"y": engine["wrong"]}, x=x)["y"].fault
    assert "where the model says" in fault
    assert "explains the error" in fault
