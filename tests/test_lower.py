"""What TensorRT's parser lacks and ONNX defines: expanded; what build and inspect say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, helper
from onnx.reference import ReferenceEvaluator

from tests.conftest import SAMPLES, Run
from trtconvert import BuildOptions, backend, build, gpu, reference
from trtconvert import model as onnx_model
from trtconvert.lower import lower
from trtconvert.preflight import inspect_model

RANDOM = np.random.default_rng(0)
IMAGE = RANDOM.standard_normal((2, 3, 7, 8)).astype(np.float32)
SCORES = RANDOM.standard_normal((4, 5)).astype(np.float32)
CLASSES = np.asarray([0, 4, 2, 2])
THETA = RANDOM.standard_normal((2, 2, 3)).astype(np.float32)
Feed = dict[str, NDArray[Any]]

# Ops without an importer in TensorRT-RTX 1.7.1: opset, inputs, nodes, feed.
LOSS_INPUTS = "float[4,5] x, int64[4] t"
LOSS_FEED = {"x": SCORES, "t": CLASSES}
MISSING: dict[str, tuple[int, str, str, Feed]] = {
    "CenterCropPad": (
        18,
        "float[2,3,7,8] x, int64[2] s",
        "y = CenterCropPad <axes = [2, 3]> (x, s)",
        {"x": IMAGE, "s": np.asarray([9, 5])},
    ),
    "SoftmaxCrossEntropyLoss": (13, LOSS_INPUTS, "y = SoftmaxCrossEntropyLoss (x, t)", LOSS_FEED),
    "NegativeLogLikelihoodLoss": (
        13,
        LOSS_INPUTS,
        'y = NegativeLogLikelihoodLoss <reduction = "sum"> (x, t)',
        LOSS_FEED,
    ),
    "AffineGrid": (
        20,
        "float[2,2,3] theta, int64[4] s",
        "y = AffineGrid <align_corners = 1> (theta, s)",
        {"theta": THETA, "s": np.asarray([2, 3, 4, 5])},
    ),
    "DynamicQuantizeLinear": (
        19,
        "float[4,5] x",
        "q, scale, zero = DynamicQuantizeLinear (x) y = DequantizeLinear (q, scale, zero)",
        {"x": SCORES},
    ),
}

# Ops that TensorRT-RTX has, taken for missing: the same for another TensorRT. In opsets that define a body for them.
GAMMA = "g = Constant <value_floats = [1.0, 2.0, 3.0]> ()"
OTHERS = {
    "Celu": (12, "y = Celu <alpha = 1.5> (x)"),
    "GroupNormalization": (21, f"{GAMMA} y = GroupNormalization <num_groups = 3> (x, g, g)"),
    "HardSwish": (14, "y = HardSwish (x)"),
    "LayerNormalization": (17, "k = ReduceMean <axes = [0, 1, 2], keepdims = 0> (x) y = LayerNormalization (x, k)"),
    "LogSoftmax": (13, "y = LogSoftmax (x)"),
    "MeanVarianceNormalization": (13, "y = MeanVarianceNormalization (x)"),
    "Mish": (18, "y = Mish (x)"),
    "ReduceLogSumExp": (18, "y = ReduceLogSumExp (x)"),
    "ThresholdedRelu": (18, "y = ThresholdedRelu <alpha = 0.2> (x)"),
}


def model(opset: int, inputs: str, nodes: str) -> ModelProto:
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}) => (float y) {{ {nodes} }}'
    )
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


def assert_same(original: ModelProto, lowered: ModelProto, feed: Feed) -> None:
    onnx_model.check(lowered)
    (a,), (b,) = ReferenceEvaluator(original).run(None, feed), reference.session(lowered).run(None, feed)
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(a)


@pytest.fixture(scope="module")
def rtx() -> Any:
    return backend.supports(backend.select("rtx"))


@pytest.mark.parametrize("name", MISSING)
def test_missing_op(name: str, rtx: Any, tmp_path: Path) -> None:
    """Expanded, with what its body holds of such ops, to what the parser imports; inspect says so."""
    opset, inputs, nodes, feed = MISSING[name]
    original = model(opset, inputs, nodes)
    result = lower(original, Path(), rtx)
    assert all(rtx(node.op_type) for node in onnx_model.all_nodes(result.model))
    assert result.notes[0] == f"{name} x1 written as the function that ONNX defines for it"
    assert_same(original, result.model, feed)
    onnx.save(original, tmp_path / "m.onnx")
    statuses = {n.op: n.status for n in inspect_model(tmp_path / "m.onnx").nodes}
    assert statuses.pop(name) == "expanded"
    if name != "DynamicQuantizeLinear":  # its uint8 is what TensorRT cannot take
        assert set(statuses.values()) <= {"native"}


@pytest.mark.skipif(gpu.current() is not None, reason="asserts ahead-of-time builds, as on a CPU")
@pytest.mark.parametrize("name", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_missing_op_builds(name: str, tmp_path: Path) -> None:
    opset, inputs, nodes, _ = MISSING[name]
    onnx.save(model(opset, inputs, nodes), tmp_path / "m.onnx")
    result = build(tmp_path / "m.onnx", options=BuildOptions(targets=("sm_86",)))
    assert result.notices == [f"{name} x1 written as the function that ONNX defines for it"]


@pytest.mark.parametrize("name", OTHERS)
def test_other_op(name: str) -> None:
    opset, nodes = OTHERS[name]
    original = model(opset, "float[2,3,7,8] x", nodes)
    result = lower(original, Path(), lambda op_type: op_type != name)
    assert name not in {node.op_type for node in onnx_model.all_nodes(result.model)}
    assert_same(original, result.model, {"x": IMAGE})


def test_in_a_subgraph() -> None:
    body = """y = If (c) <
        then_branch = t () => (float[2,3,7,8] a) { a = Celu (x) },
        else_branch = e () => (float[2,3,7,8] b) { b = Neg (x) }
    >"""
    original = model(17, "float[2,3,7,8] x, bool c", body)
    result = lower(original, Path(), lambda op_type: op_type != "Celu")
    assert result.notes == ["Celu x1 written as the function that ONNX defines for it"]
    for c in (True, False):
        assert_same(original, result.model, {"x": IMAGE, "c": np.asarray(c)})


def test_a_local_function_s_default_attributes(rtx: Any) -> None:
    """Also where one function calls another: ONNX's inliner forgets them."""
    original = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17, "acme" : 1]>
        g (float[4,5] x) => (float[4,5] y) { y = acme.Outer (x) }
        <domain: "acme", opset_import: ["" : 17, "acme" : 1]> Outer (a) => (b) { b = acme.Inner (a) }
        <domain: "acme", opset_import: ["" : 17]> Inner <alpha: float = 0.3> (a) => (b) {
            b = LeakyRelu <alpha: float = @alpha> (a)
        }""")
    lowered = lower(original, Path(), rtx).model
    (y,) = reference.session(lowered).run(None, {"x": SCORES})
    assert np.allclose(y, np.where(SCORES < 0, 0.3 * SCORES, SCORES))


def test_without_a_body_it_stays(rtx: Any) -> None:
    """TensorRT's parser and inspect say what is missing."""
    original = model(11, "float[2,3,3] x", "y = Det (x)")
    assert [n.op_type for n in lower(original, Path(), rtx).model.graph.node] == ["Det"]
    mish = model(17, "float[2,4] x", "y = Mish (x)")  # which ONNX defines from opset 18 on
    assert [n.op_type for n in lower(mish, Path(), lambda _: False).model.graph.node] == ["Mish"]


@pytest.mark.parametrize(
    "path", sorted(path for path in SAMPLES.glob("*.onnx") if path.stem != "qdq_mlp"), ids=lambda path: path.stem
)
def test_a_model_that_needs_nothing_stays_as_it_is(path: Path, rtx: Any) -> None:
    """But for names of nodes, and attributes of plugin nodes."""
    original = onnx.load(path)
    result = lower(original, path.parent, rtx)
    assert result.notes == []
    for node in (*original.graph.node, *result.model.graph.node):
        node.ClearField("name")
        if node.domain:
            del node.attribute[:]
    assert result.model.graph == original.graph


def test_all_of_it_at_once(rtx: Any, tmp_path: Path, run: Run) -> None:
    """A local function that holds one of onnxruntime's ops, in the branch of an If that is taken, behind a missing op."""
    body = """k = Constant <value = int64[2] {4, 4}> () p = CenterCropPad (x, k) c = Constant <value = bool {1}> ()
        y = If (c) <
            then_branch = t () => (float[4,4] a) { a = acme.Block (p) },
            else_branch = e () => (float[4,4] b) { b = acme.Unknown (p) }
        >"""
    original = model(18, "float[2,5] x", body)
    block = [helper.make_node("QuickGelu", ["v"], ["w"], domain="com.microsoft")]
    opsets = [helper.make_opsetid("com.microsoft", 1)]
    original.opset_import.extend([*opsets, helper.make_opsetid("acme", 1)])
    original.functions.append(helper.make_function("acme", "Block", ["v"], ["w"], block, opsets))
    result = lower(original, Path(), rtx)
    assert result.notes == [
        "QuickGelu x1 (onnxruntime's) written as standard ONNX",
        "If y: its condition is constant, the then branch was taken",
        "CenterCropPad x1 written as the function that ONNX defines for it",
    ]
    onnx_model.check(result.model)
    x = SCORES[:2]
    (y,) = reference.session(result.model).run(None, {"x": x})
    p = np.zeros((4, 4), np.float32)
    p[1:3] = x[:, :4]
    assert np.allclose(y, p / (1 + np.exp(-1.702 * p)), rtol=1e-6)
    names = [node.name for node in onnx_model.all_nodes(result.model)]
    assert all(names)
    assert len(set(names)) == len(names)
    onnx.save(original, tmp_path / "m.onnx")
    shown = run("inspect", tmp_path / "m.onnx").stdout
    assert "TensorRT can import every node" in shown
