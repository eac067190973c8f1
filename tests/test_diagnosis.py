"""TensorRT's log: one cause, no cascade, and the ONNX nodes behind its layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.graphs import graph, named, refused
from trtconvert import BuildOptions
from trtconvert.diagnosis.faults import Fault, refusal
from trtconvert.diagnosis.tensorrt_log import explain, layer_node, plain

# As TensorRT writes them: 1.7.1 of RTX, and 8 to 10 as users report them.
RANKS = (
    "IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error (IConditionalOutputLayer branch_OutputLayer: Must have "
    "inputs with equal ranks when condition is not a build-time constant. Dimensions are [2,4] and [1,2,4]. In lowerShapes at "
    "/_src/optimizer/common/nodes/conditionalOutputNode.cpp:144 In analyzeShapes at /_src/optimizer/shapeof/analyzer.cpp:2825)"
)
FOREIGN = (
    "[optimizer.cpp::computeCosts::3869] Error Code 10: Internal Error (Could not find any implementation for node "
    "{ForeignNode[first...last]}.)"
)
NO_PROFILE = (
    "IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error (Network has dynamic or shape inputs, but no optimization "
    "profile has been defined. In validate at /_src/optimizer/api/network.cpp:4023)"
)
CUDA = "In getDeviceCount: CudaError 35: CUDA driver version is insufficient for CUDA runtime version"
MODEL = named(
    graph("a = MatMul (x, w) b = Add (a, x) c = Relu (b) y = MatMul (c, w)", "float[4,4] x", "float[4,4] y", "float[1] w = {1}"),
    "first", "middle", "branch", "last",
)  # fmt: skip


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            RANKS,
            "IConditionalOutputLayer branch_OutputLayer: Must have inputs with equal ranks when condition is not a build-time "
            "constant. Dimensions are [2,4] and [1,2,4]",
        ),
        (NO_PROFILE, "Network has dynamic or shape inputs, but no optimization profile has been defined"),
        (
            "Assertion failed: resolvedWeights(axesWeights): Axis input must resolve to a build-time constant!",
            "Axis input must resolve to a build-time constant!",
        ),
        (
            'creator && "Plugin not found, are the plugin name, version, and namespace correct?"',
            "Plugin not found, are the plugin name, version, and namespace correct?",
        ),
        (
            "Invalid Node - tr\nITensor::getDimensions: Error Code 4: API Usage Error (tr: first input has type UInt8 but must "
            "have type Float. In checkType at /_src/optimizer/common/nodeBase.cpp:456)",
            "tr: first input has type UInt8 but must have type Float",
        ),
        (f"{CUDA}\nthe real reason", "the real reason"),
        ("", ""),
    ],
)
def test_plain(message: str, said: str) -> None:
    assert plain(message) == said


@pytest.mark.parametrize("order", [[RANKS, NO_PROFILE, CUDA], [CUDA, NO_PROFILE, RANKS], [NO_PROFILE, CUDA, RANKS]])
def test_cascade_is_dropped(order: list[str]) -> None:
    found = explain(order, [], MODEL)
    assert "equal ranks" in found.what
    assert "CudaError" not in found.what
    assert "same rank" in found.fix
    assert found.where == "node branch (Relu)"


def test_what_is_usually_cascade_is_the_cause_where_nothing_else_is_said() -> None:
    assert "optimization profile" in explain([NO_PROFILE], [], MODEL).what
    assert "CudaError" in explain([CUDA], [], MODEL).what
    assert explain([], [], MODEL).what == "TensorRT gave no reason"


def test_fused_layers_are_told_as_nodes() -> None:
    found = explain(
        [FOREIGN],
        [
            "Skipping tactic 0x0 due to insufficient memory on requested size of 8 GB",
            "Tactic 1 due to insufficient workspace",
        ],
        MODEL,
    )
    assert "Could not find any implementation" in found.what
    assert "ForeignNode" not in found.what + found.where
    assert "2 tactics were left out" in found.what
    for words in ("first (MatMul) to last (MatMul)", "4 in all", "MatMul x2", "Add x1"):
        assert words in found.where
    assert "--workspace" in found.fix


def test_range_of_names_that_nobody_knows() -> None:
    found = explain([FOREIGN.replace("first...last", "{ONNXTRT_Broadcast_1}...x9")], [], MODEL)
    assert "ONNXTRT_Broadcast_1" in found.where


@pytest.mark.parametrize(
    ("layer", "node"),
    [
        ("first", "first"),
        ("first_OutputLayer", "first"),
        ("middle/shuffle_12", "middle"),
        ("first_1", "first"),
        ("b", "middle"),
        ("x", "first"),
        ("firstborn", None),
        ("nothing", None),
    ],
)
def test_layer_names(layer: str, node: str | None) -> None:
    found = layer_node(layer, list(MODEL.graph.node))
    assert (found.name if found is not None else None) == node


def test_builder_that_refuses(tmp_path: Path) -> None:
    """A failure that only the builder has: no fp32 product for sm_75. The node is named, with what helps."""
    weights = "float[4,4] w = {" + ", ".join("1" * 16) + "}"
    model = named(graph("h = MatMul (x, w) r = Relu (h) y = MatMul (r, w)", weights=weights), "mm_1", "relu", "mm_2")
    text = refused(model, tmp_path, BuildOptions(targets=("sm_75",), fuse="none"))
    for words in ("FP32 GEMM is not supported", "node mm_1 (MatMul)", "--target", "float16"):
        assert words in text
    assert "_src" not in text
    assert "Error Code" not in text
    assert len(text.splitlines()) <= 4


def test_verbose_shows_the_raw_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    weights = "float[4,4] w = {" + ", ".join("1" * 16) + "}"
    model = graph("y = MatMul (x, w)", weights=weights)
    for verbose in (True, False):
        refused(model, tmp_path, BuildOptions(targets=("sm_75",), fuse="none", verbose=verbose))
        assert ("[ERROR]" in capfd.readouterr().err) == verbose


def test_one_message_for_many_faults() -> None:
    faults = [
        Fault("a", "Det", "why", "rewrite it"),
        Fault("b", "Det", "why", "rewrite it", "loop/body/b"),
        Fault("b", "Det", "why", "rewrite it", "loop/body/b"),
        Fault("c", "Relu", "why", "rewrite it"),
    ]
    assert str(refusal("TensorRT", faults)) == (
        "TensorRT cannot take the model: nodes a, loop/body/b (Det), node c (Relu): why\n  fix: rewrite it"
    )
    text = str(refusal("TensorRT", [*faults, Fault("x", "", "it is a string", "make it a number")]))
    assert "x: it is a string -> make it a number" in text
    assert "for 2 reasons" in text
    assert len(str(refusal("TensorRT", [Fault(f"n{i}", "Det", "why", "") for i in range(500)]))) < 400
